"""Rows of the tables of tests for speech; see tests/make_systems.py."""

from pathlib import Path
from typing import Any

import numpy as np
import pytest
import tiny
from make_systems import COUNTS

from ablate.systems.speech.mel import frame_distortion, mel

FILES = {
    "speech": COUNTS | {"codes": 16},
    "recordings": {"root": "recordings", "codes": 16, "batch_size": 4},
}
DATA_OTHERS = {"voice": "de", "speed": 120, "pitch": 80}
DATA_OF_ONE = {"recordings": {"tokenizer": "word", "max_length": 20}, "speech": {"max_length": 50}}
SLOW_DATA = ["speech"]  # to say numbers takes seconds
NO_AXIS = dict.fromkeys(("data.direction", "data.texts"), "test_speech.py")
SWEEPS = ["speech"]
TASKS_ELSEWHERE = ["speech"]  # test_speech.py
NEEDS = {"task=speech": ["data=speech"]}
REFUSED = """
1 data=speech model=transformer task=speech data.direction=recognition
3 model=transformer model.share_embeddings=true model.norm_type=batch data=dates task=speech
"""
EXAMPLES = {
    "mel scale": lambda: mel(6300.0),
    "mel-cepstral distortion": lambda: frame_distortion(np.array([3.0, 0.0]), np.array([0.0, 4.0])),
}


def speech(folder: Path, *more: str) -> list[str]:
    """A tiny RNN with attention that speaks numbers."""
    own = f"model=rnn_seq2seq data=speech task=speech data.codes=16 {tiny.COUNTS} model.dim=8"
    return [*own.split(), *tiny.four_steps(folder), *more]


def accepted() -> dict[str, dict[str, list[Any]]]:
    return {}


def write(folder: Path) -> None:
    write_recordings(folder / "recordings")


def write_recordings(
    folder: Path, *, table: bool = False, rate: int = 8000, ending: str = "wav"
) -> None:
    """Tones of 25 to 48 hundredths of a second; table: in the form of LJSpeech."""
    soundfile = pytest.importorskip("soundfile")
    place = folder / "wavs" if table else folder
    place.mkdir(parents=True)
    lines = []
    for n in range(24):
        tone = 0.3 * np.sin(np.arange(rate * (25 + n) // 100) * (0.1 + 0.02 * n))
        soundfile.write(place / f"{n:02}.{ending}", np.stack([tone, tone], 1), rate)
        text = f"Tone  {n} {'low' if n < 12 else 'high'}"
        lines.append(f"{n:02}|No. {n}|{text}")
        if not table:
            (place / f"{n:02}.txt").write_text(f"{text}\n")
    if table:
        (folder / "metadata.csv").write_text("\n".join(lines) + "\n")
