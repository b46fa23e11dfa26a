"""Recordings of one's own with their transcripts, as data=speech has them from a synthesiser.

Either a transcript NAME.txt stands beside each NAME.wav or NAME.flac, or the folder has the form of
LJSpeech: metadata.csv with a line NAME|text, or NAME|text|text in words, and recordings in wavs/.
"""

import io
from collections.abc import Sequence
from functools import lru_cache
from importlib.util import find_spec
from math import gcd
from pathlib import Path
from typing import Any, ClassVar

import numpy as np
from numpy.typing import NDArray

from ablate.data import source
from ablate.data.speech import Spoken, SpokenPairs
from ablate.data.split import three_way
from ablate.errors import UserError
from ablate.speech.mel import RATE, log_mel
from ablate.version import install

ENDINGS = (".wav", ".flac")
TABLE = "metadata.csv"


class Recordings(SpokenPairs):
    """root: the folder. lower: transcripts are lower-cased.

    About 70, 15 and 15 of 100 transcripts train, validate and test, by a hash of the text: the same
    sentence is never in two splits. Recordings are made mono and sampled at the rate of `RATE`.
    """

    for_training: ClassVar[tuple[str, ...]] = (*SpokenPairs.for_training, "data_seed")
    # What is hashed is the text in small letters.
    dividing: ClassVar[tuple[str, ...]] = (*SpokenPairs.dividing, "lower")

    def __init__(self, *, root: str, lower: bool, **options: Any) -> None:
        super().__init__(**options)
        self.root, self.lower = self.checked("root", root), self.checked("lower", lower)

    def spoken(self) -> dict[str, Sequence[Spoken]]:
        folder = source.local(self.root)
        if not folder.is_dir():
            raise UserError(f"data.root={self.root}: no such folder")
        if find_spec("soundfile") is None:
            raise UserError(f"data=recordings reads sound with soundfile: {install('speech')}")
        transcribed = self._transcribed(folder)
        splits = three_way([text.encode() for _, text in transcribed])
        for split, numbers in splits.items():
            if not numbers:
                raise UserError(
                    f"data.root={self.root}: the {split} split would be empty: of"
                    f" {len(transcribed)} recordings the hash of no transcript falls into it;"
                    " add some"
                )
        return {
            split: [Spoken(text, _read(*_version(path)), None) for path, text in
                    (transcribed[number] for number in numbers)]
            for split, numbers in splits.items()
        }  # fmt: skip

    def location(self, split: str, number: int) -> str:
        return f"the recording of {self._spoken[split][number].text!r}"

    def _transcribed(self, folder: Path) -> list[tuple[Path, str]]:
        """Each recording and its text, by name."""
        table = folder / TABLE
        recordings = self._listed(table) if table.exists() else self._with_transcripts(folder)
        if not recordings:
            raise UserError(
                f"data.root={self.root}: has no {TABLE}, and no recording NAME.wav or NAME.flac"
                " with a transcript NAME.txt"
            )
        clean = [(path, " ".join(text.split())) for path, text in recordings]
        return [(path, text.lower() if self.lower else text) for path, text in clean]

    def _with_transcripts(self, folder: Path) -> list[tuple[Path, str]]:
        recordings = []
        for path in sorted(p for p in folder.rglob("*") if p.suffix.lower() in ENDINGS):
            written = path.with_suffix(".txt")
            if not written.exists():
                raise UserError(f"data.root={self.root}: {path.name} has no {written.name} beside")
            recordings.append((path, _text(written)))
        return recordings

    def _listed(self, table: Path) -> list[tuple[Path, str]]:
        recordings = []
        for number, line in enumerate(source.lines(_text(table)), 1):
            name, *texts = line.split("|")
            paths = [table.parent / "wavs" / f"{name}{ending}" for ending in ENDINGS]
            path = next((path for path in paths if path.exists()), None)
            if not texts or path is None:
                why = f"there is no wavs/{name}.wav" if texts else "is not NAME|text"
                raise UserError(f"data.root={self.root}: line {number} of {TABLE}: {why}")
            recordings.append((path, texts[-1]))
        return recordings


def _text(path: Path) -> str:
    return source.text(source.contents(path, key="data.root"), str(path), key="data.root")


def _version(path: Path) -> tuple[Path, int, int]:
    """A file, its size and time of change."""
    status = path.stat()
    return path, status.st_size, status.st_mtime_ns


@lru_cache(100_000)
def _read(path: Path, size: int, changed: int) -> NDArray[np.float32]:
    """The log-mels of a recording; kept, since the id of a run and its data both ask."""
    import soundfile

    raw = source.contents(path, key="data.root")
    try:
        samples, rate = soundfile.read(io.BytesIO(raw), always_2d=True)
    except soundfile.LibsndfileError as error:
        raise UserError(f"data.root: {path} cannot be read as sound ({error})") from None
    return log_mel(resampled(samples.mean(1), rate))


def resampled(samples: NDArray[np.float64], rate: int) -> NDArray[np.float64]:
    """Samples at `rate` a second -> at RATE, by a polyphase filter."""
    from scipy.signal import resample_poly

    if rate == RATE:
        return samples
    common = gcd(rate, RATE)
    result: NDArray[np.float64] = resample_poly(samples, RATE // common, rate // common)
    return result
