"""The input, forget and output gates of an LSTM while it reads a text."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import torch
from torch import Tensor
from torch.nn.functional import pad

from ablate.figures.panels import Panel, chosen, draw_panels
from ablate.figures.save import save
from ablate.model.cell.lstm import LSTM
from ablate.model.rnn_lm import RNNLM

GATES = ("input", "forget", "output")
PARAMETERS = ("weight_ih", "weight_hh", "bias_ih", "bias_hh")
MOST = 48  # units that are drawn, evenly spaced over all


def gate_figures(
    model: RNNLM, example: dict[str, Any], folder: Path, layer: int | None
) -> list[Path]:
    """A PNG for each layer, or for this one, counted from 1; none for other cells. example: a batch
    of size 1."""
    layers = chosen("layer", layer, len(model.recurrent.layers))
    tokens = example["tokens"]
    labels = example.get("labels") or [str(n) for n in range(tokens.shape[1])]
    paths = []
    for number, gates in enumerate(lstm_gates(model, tokens), 1):
        if number not in layers:
            continue
        units = gates[0].shape[-1]
        drawn = torch.linspace(0, units - 1, min(units, MOST)).long().tolist()
        names = [str(unit) for unit in drawn]
        seen = torch.ones(len(names), len(labels), dtype=torch.bool)
        panels = [
            Panel(f"{name} gate", gate[0][:, drawn].T, names, labels, seen)
            for name, gate in zip(GATES, gates, strict=True)
        ]
        of = f"Gates of the LSTM, layer {number} of {len(model.recurrent.layers)}"
        what = "1: everything new is written (input), all is kept (forget), all is shown (output)"
        figure = draw_panels(
            panels, f"{of}\n{what}", 1.0, query="unit", key="token that is read", measure="gate"
        )
        paths.append(save(figure, folder / f"gates_layer_{number:02}.png"))
    return paths


@torch.no_grad()
def lstm_gates(model: RNNLM, tokens: Tensor) -> list[tuple[Tensor, Tensor, Tensor]]:
    """Input, forget and output gate of each layer, b i d each, which torch does not return."""
    layers = model.recurrent.layers
    if not all(isinstance(layer, LSTM) for layer in layers):
        return []
    was_training = model.training
    model.eval()
    x, found = model.embedding(tokens.to(model.embedding.weight.device)), []
    for number, layer in enumerate(layers):
        assert isinstance(layer, LSTM)
        y, _ = layer(x)
        before = pad(y[:, :-1], (0, 0, 1, 0))  # a window starts from a state of zeros
        w, u, b, c = (layer.get_parameter(f"{name}_l0") for name in PARAMETERS)
        sums = x @ w.T + b + before @ u.T + c
        entering, forget, _, output = sums.sigmoid().cpu().chunk(4, dim=-1)
        found.append((entering, forget, output))
        x = x + y if model.recurrent.residual and number else y
    model.train(was_training)
    return found
