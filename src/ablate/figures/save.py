"""Saves a figure."""

from __future__ import annotations

import logging
import warnings
from collections.abc import Iterator
from contextlib import contextmanager
from contextvars import ContextVar
from io import BytesIO
from pathlib import Path
from typing import TYPE_CHECKING, Any, Literal, get_args

from ablate.run_files import replacing

if TYPE_CHECKING:
    from matplotlib.figure import Figure

Format = Literal["png", "pdf", "svg"]
FORMATS: tuple[Format, ...] = get_args(Format)
# It would report every table of a font that is embedded.
logging.getLogger("fontTools").setLevel(logging.WARNING)
# Letters stay letters, and the same figure makes the same file.
VECTOR: dict[Any, Any] = {"pdf.fonttype": 42, "svg.fonttype": "none", "svg.hashsalt": "ablate"}
_format: ContextVar[Format] = ContextVar("format", default="png")


@contextmanager
def saved_as(format: Format) -> Iterator[None]:
    """Save every figure in this format in place of PNG."""
    token = _format.set(format)
    try:
        yield
    finally:
        _format.reset(token)


def save(figure: Figure, path: Path) -> Path:
    """Write the figure under another name, then rename it, so that nobody reads a partial file.
    Return its path, whose suffix is that of `saved_as`."""
    import matplotlib
    from matplotlib.backends.backend_agg import FigureCanvasAgg
    from matplotlib.backends.backend_pdf import FigureCanvasPdf
    from matplotlib.backends.backend_svg import FigureCanvasSVG

    path = path.with_suffix(f".{_format.get()}")
    path.parent.mkdir(parents=True, exist_ok=True)
    with replacing(path) as temporary, warnings.catch_warnings(), matplotlib.rc_context(VECTOR):
        # A token in a script that the font lacks is drawn as a box.
        warnings.filterwarnings("ignore", "Glyph .* missing")
        # savefig would draw everything twice, for the layout.
        figure.dpi = 150
        if (layout := figure.get_layout_engine()) is not None:
            layout.execute(figure)
            figure.set_layout_engine("none")
        content = BytesIO()  # to a full disk, print_pdf raises an AttributeError
        match _format.get():
            case "png":
                FigureCanvasAgg(figure).print_png(content)
            case "pdf":
                FigureCanvasPdf(figure).print_pdf(content, metadata={"CreationDate": None})
            case "svg":
                FigureCanvasSVG(figure).print_svg(content, metadata={"Date": None})
        temporary.write_bytes(content.getvalue())
    return path
