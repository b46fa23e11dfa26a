"""Custom recordings with their transcripts, as data=speech has them from a synthesizer.

Either each NAME.wav or NAME.flac has a transcript NAME.txt, or the folder has the form of
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
from ablate.data.split import text_key, three_way
from ablate.errors import UserError, few
from ablate.machine.terminal.bar import progress
from ablate.machine.version import install
from ablate.systems.speech.data.speech import Spoken, SpokenPairs
from ablate.systems.speech.mel import QUIET, RATE, log_mel

ENDINGS = (".wav", ".flac")
TABLE = "metadata.csv"
RATES = (1_000, 1_000_000)  # valid samples per second in a header
LOUDEST = 100.0  # times full scale: beyond it, samples were not scaled to 1
UNKNOWN = 0x7FFF0000  # sizes from here on are written to a pipe, before the size is known


class Recordings(SpokenPairs):
    """root: the folder. lower: transcripts are lower-cased.

    About 70, 15 and 15 of 100 transcripts train, validate and test, by a hash of the text: the same
    sentence is never in two splits. Recordings are converted to mono and to the rate `RATE`.
    """

    for_training: ClassVar[tuple[str, ...]] = (*SpokenPairs.for_training, "data_seed")

    def __init__(self, *, root: str, lower: bool, **options: Any) -> None:
        super().__init__(**options)
        self.root, self.lower = root, lower

    def spoken(self) -> dict[str, Sequence[Spoken]]:
        folder = source.local(self.root)
        if not folder.is_dir():
            raise UserError(f"data.root={self.root}: no such folder")
        if find_spec("soundfile") is None:
            raise UserError(f"data=recordings reads sound with soundfile: {install('speech')}")
        transcribed = self._transcribed(folder)
        splits = three_way([text_key(text) for _, text in transcribed])
        for split, numbers in splits.items():
            if not numbers:
                raise UserError(
                    f"data.root={self.root}: the {split} split would be empty: of"
                    f" {len(transcribed)} recordings the hash of no transcript falls into it;"
                    " add some"
                )
        return {
            split: [Spoken(text, _read(*_version(path)), None) for path, text in
                    progress([transcribed[n] for n in numbers], f"reading {split}", "recordings")]
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
        if empty := [path.name for path, text in clean if not text]:
            raise UserError(f"data.root={self.root}: the transcript of {few(empty, ', ')} is empty")
        return [(path, text.lower() if self.lower else text) for path, text in clean]

    def _with_transcripts(self, folder: Path) -> list[tuple[Path, str]]:
        recordings = []
        for path in sorted(p for p in source.visible(folder) if p.suffix.lower() in ENDINGS):
            written = path.with_suffix(".txt")
            if not written.exists():
                raise UserError(
                    f"data.root={self.root}: {path.name} has no transcript {written.name}"
                )
            recordings.append((path, _text(written)))
        return recordings

    def _listed(self, table: Path) -> list[tuple[Path, str]]:
        recordings = []
        for number, line in enumerate(source.lines(_text(table)), 1):
            name, *texts = line.split("|")
            paths = [table.parent / "wavs" / f"{name}{ending}" for ending in ENDINGS]
            path = next((path for path in paths if path.exists()), None)
            if not texts or path is None:
                why = f"wavs/{name}.wav does not exist" if texts else "is not NAME|text"
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
    """The log-mels of a recording; kept, since the id of a run and its data both use them."""
    import soundfile

    raw = source.contents(path, key="data.root")
    try:
        samples, rate = soundfile.read(io.BytesIO(raw), always_2d=True)
    except soundfile.LibsndfileError as error:
        raise UserError(
            f"data.root: {path} cannot be read as sound ({error.error_string})"
        ) from None
    if wrong := "is cut off" if _cut(raw) else _wrong(samples, rate):
        raise UserError(f"data.root: the recording {path} {wrong}")
    log_mels = log_mel(resampled(samples.mean(1), rate))
    if np.ptp(samples) == 0 or log_mels.max() <= np.float32(np.log(QUIET)):
        raise UserError(f"data.root: the recording {path} is silent, and has a transcript")
    return log_mels


def _wrong(samples: NDArray[np.float64], rate: int) -> str | None:
    """Why samples, n channels, are invalid."""
    if not RATES[0] <= rate <= RATES[1]:
        return f"has {rate:,} samples per second, by its header ({RATES[0]:,} to {RATES[1]:,})"
    if not len(samples):
        return "has no samples"
    if bad := int((~np.isfinite(samples).all(1)).sum()):
        return f"has NaN or infinity in {bad:,} of its {len(samples):,} samples"
    if (peak := np.abs(samples).max()) > LOUDEST:
        return f"has samples up to {peak:,.4g}, and 1 is full scale; divide by the largest number"
    return None


def _cut(raw: bytes) -> bool:
    """Whether a WAV ends before its samples do by its header; libsndfile reports this only of
    FLAC."""
    at = 12  # the first chunk: its name, its size, its content
    while raw[:4] == b"RIFF" and at + 8 <= len(raw):
        size = int.from_bytes(raw[at + 4 : at + 8], "little")
        if raw[at : at + 4] == b"data":
            return size < UNKNOWN and at + 8 + size > len(raw)
        at += 8 + size + size % 2
    return False


def resampled(samples: NDArray[np.float64], rate: int) -> NDArray[np.float64]:
    """Samples at `rate` a second -> at RATE, by a polyphase filter."""
    from scipy.signal import resample_poly

    if rate == RATE:
        return samples
    common = gcd(rate, RATE)
    result: NDArray[np.float64] = resample_poly(samples, RATE // common, rate // common)
    return result
