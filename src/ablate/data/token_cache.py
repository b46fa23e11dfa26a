"""Tokens of a text on disk, which every run of the same content and tokenizer maps into memory.

A folder for each key, in tokens/ of the folder of downloads ($ABLATE_CACHE, or ~/.cache/ablate):
the tokens of each split in SPLIT.bin, and notes.json. It may be deleted while no run uses it. The
first run makes it, and others that start meanwhile wait.
"""

import json
import os
import shutil
from collections.abc import Callable, Iterable, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import torch
from filelock import FileLock, Timeout
from lightning.pytorch.utilities import rank_zero_only as on_first_process
from numpy.typing import NDArray
from torch import Tensor

from ablate.data import source
from ablate.machine.terminal.say import say
from ablate.run_files import read_mapping

NOTES = "notes.json"
Arrays = Iterable[NDArray[np.int32]]


@dataclass(frozen=True)
class Tokens:
    """splits: token ids, as uint16 if the vocabulary allows, else int32. notes: JSON values."""

    splits: dict[str, Tensor]
    notes: dict[str, Any]


def in_memory(splits: Mapping[str, Arrays], notes: dict[str, Any], vocab_size: int) -> Tokens:
    """Tokens that are not kept. notes: they may be filled in by the iterators."""
    kept = {
        split: torch.from_numpy(np.concatenate([np.empty(0, dtype := _dtype(vocab_size)), *(
            array.astype(dtype) for array in arrays)]))
        for split, arrays in splits.items()
    }  # fmt: skip
    return Tokens(kept, notes)


def on_disk(
    key: str, make: Callable[[], tuple[Mapping[str, Arrays], dict[str, Any], int]]
) -> Tokens | None:
    """The tokens of this key, made if they are not there: splits, notes and vocabulary size, as for
    `in_memory`. None, with a message, if the folder cannot be written."""
    folder = Path()
    try:
        folder = source.cache() / "tokens" / key
        if (found := _read(folder)) is not None:
            return found
        folder.parent.mkdir(exist_ok=True)
        with _locked(folder.with_name(f"{key}.lock")):
            if (found := _read(folder)) is None:
                _write(folder, *make())
                found = _read(folder)
        assert found is not None
        return found
    except OSError as error:
        reason = f"{error.filename or folder}: {error.strerror}"
    except source.NoCache as error:
        reason = str(error)
    on_first_process(say)(
        f"tokens are kept in memory, and the next run makes them again: {reason}; ABLATE_CACHE"
        " names another folder"
    )
    return None


@contextmanager
def _locked(path: Path) -> Iterator[None]:
    lock = FileLock(path)
    try:
        lock.acquire(timeout=1)
    except Timeout:
        say("another run tokenizes the same text; waiting for it")
        lock.acquire()
    try:
        yield
    finally:
        lock.release()


def _read(folder: Path) -> Tokens | None:
    """None if a file is missing or has another size than when it was written."""
    notes = read_mapping(folder / NOTES)
    splits = {}
    for split, (dtype, count) in notes.get("files", {}).items():
        path, width = folder / f"{split}.bin", np.dtype(dtype).itemsize
        if not path.is_file() or path.stat().st_size != count * width:
            return None
        # Copy on write: torch warns of read-only memory.
        mapped = np.memmap(path, dtype, mode="c") if count else np.empty(0, dtype)
        splits[split] = torch.from_numpy(mapped)
    return Tokens(splits, notes) if splits and "bytes" in notes else None


def _write(
    folder: Path, splits: Mapping[str, Arrays], notes: dict[str, Any], vocab_size: int
) -> None:
    part = folder.with_name(f".{folder.name}.{os.getpid()}")
    try:
        part.mkdir()
        dtype, counts = _dtype(vocab_size), {}
        for split, arrays in splits.items():
            counts[split] = 0
            with open(part / f"{split}.bin", "wb") as file:
                for array in arrays:
                    file.write(array.astype(dtype).tobytes())
                    counts[split] += len(array)
        notes["files"] = {split: (np.dtype(dtype).name, n) for split, n in counts.items()}
        (part / NOTES).write_text(json.dumps(notes), encoding="utf-8")
        shutil.rmtree(folder, ignore_errors=True)  # one that was damaged
        part.rename(folder)
    finally:
        shutil.rmtree(part, ignore_errors=True)


def _dtype(vocab_size: int) -> type[np.uint16] | type[np.int32]:
    return np.uint16 if vocab_size <= 2**16 else np.int32
