"""The input, forget and output gates of an LSTM while it reads a text."""

from __future__ import annotations

from collections.abc import Collection, Sequence
from pathlib import Path

import torch
from torch import Tensor

from ablate.figures.panels import Panel, draw_panels
from ablate.figures.save import save

GATES = ("input", "forget", "output")
MOST = 48  # units that are drawn, evenly spaced over all


def draw_gates(
    layers: Sequence[Sequence[Tensor]], chosen: Collection[int], labels: list[str], folder: Path
) -> list[Path]:
    """A PNG for each of the chosen layers, counted from 1.

    layers: input, forget and output gate of each, b i d. labels: of the tokens, i.
    """
    paths = []
    for number, gates in enumerate(layers, 1):
        if number not in chosen:
            continue
        units = gates[0].shape[-1]
        drawn = torch.linspace(0, units - 1, min(units, MOST)).long().tolist()
        names = [str(unit) for unit in drawn]
        seen = torch.ones(len(names), len(labels), dtype=torch.bool)
        panels = [
            Panel(f"{name} gate", gate[0][:, drawn].T, names, labels, seen)
            for name, gate in zip(GATES, gates, strict=True)
        ]
        of = f"Gates of the LSTM, layer {number} of {len(layers)}"
        what = "1: everything new is written (input), all is kept (forget), all is shown (output)"
        figure = draw_panels(
            panels, f"{of}\n{what}", query="unit", key="token that is read", measure="gate"
        )
        paths.append(save(figure, folder / f"gates_layer_{number:02}.png"))
    return paths
