"""Spectrograms of one text spoken by different voices, one below another."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING

import numpy as np
from numpy.typing import NDArray

from ablate.systems.speech.mel import BANDS, FRAMES, HIGHEST, mel

if TYPE_CHECKING:
    from matplotlib.figure import Figure

TITLES = {
    "reference": "reference speech",
    "codec": "codec: the reference as its tokens keep it",
    "model": "model: output",
}
TICKS = (100, 500, 1000, 2000, 4000, 8000)  # Hz


def draw_speech(
    text: str,
    voices: Mapping[str, NDArray[np.float32]],
    words: Sequence[tuple[str, float]] | None,
) -> Figure:
    """voices: log-mels (frames x bands) by the keys of `TITLES`. words: each word and the second
    at which it starts in "reference" and "codec", drawn there as a line; None: unknown."""
    from matplotlib.figure import Figure

    longest = max(map(len, voices.values()))
    figure = Figure(figsize=(max(6.0, 1.5 + longest * 0.06), 6.0), layout="constrained")
    everything = np.concatenate([*voices.values()])
    low, high = float(everything.min()), float(everything.max())
    axes = figure.subplots(len(voices), 1, sharex=True)
    edges = np.linspace(0.0, mel(HIGHEST), BANDS + 2)[1:-1]
    positions = np.interp([mel(f) for f in TICKS], edges, np.arange(BANDS))
    for axis, (name, log_mels) in zip(axes, voices.items(), strict=True):
        extent = (-0.5 / FRAMES, (len(log_mels) - 0.5) / FRAMES, -0.5, BANDS - 0.5)
        decibels = 20 / np.log(10) * (log_mels.T - high)
        shown = axis.imshow(
            decibels, aspect="auto", origin="lower", extent=extent, vmax=0,
            vmin=20 / np.log(10) * (low - high),
        )  # fmt: skip
        axis.set_title(TITLES[name], fontsize=10, loc="left")
        axis.set_yticks(positions, [f"{f:g}" for f in TICKS], fontsize=7)
        axis.set_ylabel("frequency (Hz)")
        if words is not None and name != "model":
            for word, start in words:
                axis.axvline(start, color="white", linewidth=1)
                axis.text(start, BANDS - 4, f" {word}", color="white", va="top", parse_math=False)
    axes[-1].set_xlim(-0.5 / FRAMES, (longest - 0.5) / FRAMES)
    axes[-1].set_xlabel("time (s)")
    figure.colorbar(shown, ax=list(axes), label="dB below the loudest", pad=0.01)
    figure.suptitle(f"“{text}”: amplitude by frequency and time", fontsize=10, parse_math=False)
    return figure
