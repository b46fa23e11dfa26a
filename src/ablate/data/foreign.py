"""Token shards of other programs, read as they are.

    llm.c, modded-nanogpt   *.bin: 256 int32 (magic, version, count), then uint16 or uint32
    nanoGPT                 train.bin, val.bin: uint16
    Megatron-LM             NAME.bin with NAME.idx, which has the type and the lengths
    OLMo, dolma             *.npy: uint16, or uint32 of a large vocabulary; or in NumPy's format

A file validates or tests if a word of its name, or of a folder below data.root, is val, valid,
validation, dev or test. None of them names its tokenizer or counts the characters of its text.
"""

import hashlib
import os
import re
from collections.abc import Sequence
from glob import glob, has_magic
from itertools import takewhile
from pathlib import Path

import numpy as np

from ablate.data import digest, source
from ablate.data.shards import Shard, Shards, Stored, dtype_for
from ablate.errors import UserError

# Magic and version of the header, and the type of the tokens: dev/data/data_common.py of llm.c.
LLM_C = {(20240520, 1): "<u2", (20240801, 7): "<u4"}
HEADER = 1024  # bytes
MEGATRON = b"MMIDIDX\x00\x00"
MEGATRON_TYPES = {1: "|u1", 4: "<i4", 5: "<i8", 8: "<u2"}
HELD = re.compile(r"(?:^|[^a-z])(?:(val|valid|validation|dev)|(test))(?:[^a-z]|$)", re.IGNORECASE)
HASHED = 2**16  # bytes at both ends of a file


def foreign(root: Path, files: Sequence[Path], vocab_size: int) -> Stored[Shards]:
    """The tokens of these files. UserError for one that is damaged or of an unknown format."""
    if not root.exists():  # a pattern
        root = Path(*takewhile(lambda part: not has_magic(part), root.parts))
    shards: dict[str, list[Shard]] = {}
    content = []
    for path in files:
        try:
            shards.setdefault(_split(path, root), []).append(_shard(path, vocab_size))
            content.append([_split(path, root), path.stat().st_size, _ends(path)])
        except OSError as error:
            raise UserError(
                f"{error.filename or path}: cannot be read ({error.strerror})"
            ) from None
    splits = {split: Shards(of, vocab_size) for split, of in shards.items()}
    return Stored(splits, digest("foreign", content))


def token_files(root: str) -> list[Path]:
    """The files with tokens of a folder, a file or a pattern, in order."""
    path = source.local(root)
    if path.is_dir():
        every = sorted(source.visible(path))
    elif path.is_file():
        every = [path]
    else:
        every = [Path(file) for file in sorted(glob(str(path), recursive=True))]
    return [file for file in every if file.suffix in (".bin", ".npy")]


def _split(path: Path, root: Path) -> str:
    inside = path.relative_to(root) if path.is_relative_to(root) else Path(path.name)
    found = HELD.search(str(inside.with_suffix("") if inside.name else path.stem))
    return "train" if not found else "val" if found[1] else "test"


def _shard(path: Path, vocab_size: int) -> Shard:
    size = path.stat().st_size
    if path.suffix == ".npy":
        return _npy(path, size, vocab_size)
    if os.path.lexists(path.with_suffix(".idx")):
        return _megatron(path, size)
    with open(path, "rb") as file:
        header = np.frombuffer(file.read(12), "<i4") if size >= HEADER else np.zeros(3, "<i4")
    magic, release, count = map(int, header)
    if (dtype := LLM_C.get((magic, release))) is not None:
        return _exactly(Shard(path, dtype, count, HEADER), size)
    if magic in {known for known, _ in LLM_C}:
        raise UserError(f"{path}: has version {release} of llm.c's format, which is not read")
    return _raw(path, "<u2", size, vocab_size)


def _npy(path: Path, size: int, vocab_size: int) -> Shard:
    with open(path, "rb") as file:
        if file.read(6) != b"\x93NUMPY":
            return _raw(path, dtype_for(vocab_size), size, vocab_size)
    try:
        array = np.load(path, mmap_mode="r", allow_pickle=False)
    except ValueError as error:
        raise UserError(f"{path}: damaged or truncated ({error})") from None
    if array.ndim != 1 or array.dtype.kind not in "iu":
        raise UserError(f"{path}: has {array.dtype}{list(array.shape)}, must be a row of integers")
    return Shard(path, array.dtype.str, len(array), array.offset)


def _megatron(path: Path, size: int) -> Shard:
    index = path.with_suffix(".idx")
    with open(index, "rb") as file:
        head = file.read(34)
    if len(head) < 34 or head[:9] != MEGATRON:
        raise UserError(f"{index}: is not an index of Megatron-LM")
    code, sequences = head[17], int.from_bytes(head[18:26], "little")
    if (dtype := MEGATRON_TYPES.get(code)) is None:
        raise UserError(f"{index}: has type {code}, which is not of tokens")
    raw = np.memmap(index, np.uint8, "r")
    if len(raw) < 34 + 4 * sequences:
        raise UserError(f"{index}: is truncated")
    lengths = np.frombuffer(raw[34 : 34 + 4 * sequences], "<i4")
    return _exactly(Shard(path, dtype, int(lengths.sum(dtype=np.int64))), size)


def _raw(path: Path, dtype: str, size: int, vocab_size: int) -> Shard:
    if dtype_for(vocab_size) != dtype:
        raise UserError(
            f"{path}: has tokens of 16 bits, and a vocabulary of {vocab_size:,} does not fit: the"
            " tokenizer or data.vocab_size is of other shards"
        )
    return _exactly(Shard(path, dtype, size // np.dtype(dtype).itemsize), size)


def _exactly(shard: Shard, size: int) -> Shard:
    """The shard, if it has as many bytes as its tokens need."""
    needed = shard.offset + shard.tokens * np.dtype(shard.dtype).itemsize
    if size != needed:
        raise UserError(
            f"{shard.path}: has {size:,} bytes, and {shard.tokens:,} tokens have {needed:,}: it is"
            " truncated, or of another format"
        )
    return shard


def _ends(path: Path) -> str:
    """A hash of the first and last bytes: a whole shard would take longer than to start a run."""
    with open(path, "rb") as file:
        first = file.read(HASHED)
        file.seek(-min(HASHED, path.stat().st_size), 2)
        return hashlib.sha256(first + file.read(HASHED)).hexdigest()
