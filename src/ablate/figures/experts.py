"""The load of a mixture of experts: how often each expert of each layer is chosen."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING

import numpy as np
import torch
from torch import Tensor

from ablate.figures.panels import entitle

if TYPE_CHECKING:
    from matplotlib.figure import Figure

MOST_NUMBERS = 16  # experts whose share is written into the figure


def draw_load(shares: Sequence[Tensor]) -> Figure:
    """shares: of each layer from the first to the last, the share of choices of each expert."""
    from matplotlib.figure import Figure

    most = max(map(len, shares))
    loads = torch.full((len(shares), most), torch.nan)
    for row, share in zip(loads, shares, strict=True):
        row[: len(share)] = share
    figure = Figure(
        figsize=(2.5 + 0.55 * min(most, 24), 1.6 + 0.4 * len(shares)), layout="constrained"
    )
    axis = figure.subplots()
    shown = axis.imshow(loads.numpy(), cmap="viridis", vmin=0, aspect="auto")
    axis.set_xticks(range(most), [str(n + 1) for n in range(most)])
    axis.set_yticks(range(len(shares)), [str(n + 1) for n in range(len(shares))])
    axis.set(xlabel="expert", ylabel="layer")
    if most <= MOST_NUMBERS:
        middle = float(loads.nan_to_num().max()) / 2
        for (layer, expert), value in np.ndenumerate(loads.numpy()):
            if not np.isnan(value):
                color = "black" if value > middle else "white"
                axis.text(
                    expert, layer, f"{value:.0%}", ha="center", va="center", color=color, size=8
                )
    figure.colorbar(shown, label="share of the choices")
    even = " or ".join(sorted({f"{1 / len(share):.1%}" for share in shares}))
    entitle(figure, f"Load of the experts, validation tokens\neven: {even} each")
    return figure
