"""Saves a figure."""

from __future__ import annotations

import os
import warnings
from pathlib import Path
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from matplotlib.figure import Figure


def save(figure: Figure, path: Path) -> Path:
    """Write the PNG under another name, then rename it, so that nobody reads a partial file."""
    from matplotlib.backends.backend_agg import FigureCanvasAgg

    path.parent.mkdir(parents=True, exist_ok=True)
    temporary = path.with_name(f".{path.name}.{os.getpid()}.tmp")
    with warnings.catch_warnings():
        # A token in a script that the font lacks is drawn as a box.
        warnings.filterwarnings("ignore", "Glyph .* missing")
        # savefig would draw everything twice, for the layout.
        figure.dpi = 150
        if (layout := figure.get_layout_engine()) is not None:
            layout.execute(figure)
            figure.set_layout_engine("none")
        FigureCanvasAgg(figure).print_png(temporary)
    os.replace(temporary, path)
    return path
