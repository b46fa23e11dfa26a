"""Tokenize documents into shards (ablate.data.shards), by several processes, in a fixed order.

A shard ends after the batch of pieces with which it has enough tokens, and is recorded with the
place of the next piece (`.shard-00000.json`) when it is on the disk. So a call that was killed is
continued by the next one, and the bytes do not depend on the number of processes.
"""

import errno
import hashlib
import os
from collections.abc import Callable, Iterable, Iterator, Mapping
from contextlib import contextmanager, suppress
from dataclasses import asdict, dataclass, field
from functools import cached_property, partial
from importlib.metadata import version
from pathlib import Path
from typing import Any, BinaryIO

import numpy as np
import torch
from filelock import FileLock, Timeout
from numpy.typing import NDArray
from torch.utils.data import Dataset

from ablate.config.parts import require_allowed
from ablate.config.rules import Vocabulary
from ablate.data import source
from ablate.data.documents import BETWEEN, Corpus, Piece, TextSource, bytes_in, is_hub
from ablate.data.loader import Loader
from ablate.data.shards import (
    FORMAT,
    MANIFEST,
    Shards,
    Stored,
    dtype_for,
    read_manifest,
    stored,
)
from ablate.data.tokenizer import (
    LEARNED,
    Tokenizer,
    TokenizerName,
    make_tokenizer,
    note,
    require_trained,
    restored,
)
from ablate.errors import FULL, LOST_WORKER, RunFailed, UserError, unwrap
from ablate.machine.terminal.bar import bar
from ablate.run_files import named, read_json, read_mapping, write_json

PLAN, TOKENIZER, LOCK = ".plan.json", ".tokenizer.json", ".lock"
SHARD = 2**27  # tokens of a shard, training and validation together
BATCH = 2**18  # characters that a process tokenizes at a time
TRAINED = ("char", "bpe")  # tokenizers, on the training documents


@dataclass
class Counts:
    """restores: whether `decode` returned the text, of the longest piece of each batch."""

    tokens: int = 0
    documents: int = 0
    characters: int = 0
    bytes: int = 0
    unknown: int = 0
    restores: bool = True

    def add(self, other: "Counts") -> None:
        self.restores &= other.restores
        for name in ("tokens", "documents", "characters", "bytes", "unknown"):
            setattr(self, name, getattr(self, name) + getattr(other, name))


@dataclass
class Part:
    """The tokens of one split of a batch. starts: of documents, among its tokens."""

    arrays: list[NDArray[Any]] = field(default_factory=list)
    starts: list[int] = field(default_factory=list)
    counts: Counts = field(default_factory=Counts)


@dataclass
class Encoded:
    parts: dict[str, Part]
    after: Any


class Encoder(Dataset[Encoded]):
    """Tokenizes a batch of pieces."""

    def __init__(self, tokenizer: Tokenizer, dtype: str) -> None:
        self.tokenizer, self.dtype = tokenizer, dtype

    @cached_property
    def between(self) -> NDArray[np.int32]:
        if self.tokenizer.end_id is not None:
            return np.array([self.tokenizer.end_id], np.int32)
        return self.tokenizer.array(BETWEEN)

    def __getitem__(self, pieces: list[Piece]) -> Encoded:
        unknown, parts = self.tokenizer.unknown_id, dict[str, Part]()
        tried = max(range(len(pieces)), key=lambda n: len(pieces[n].text))
        arrays = self.tokenizer.arrays(piece.text for piece in pieces)
        for number, (piece, tokens) in enumerate(zip(pieces, arrays, strict=True)):
            part = parts.setdefault(piece.split, Part())
            counts = part.counts
            if piece.first:
                part.starts.append(counts.tokens)
            counts.documents += piece.first
            counts.characters += len(piece.text)
            counts.bytes += len(piece.text.encode())
            if unknown is not None:
                counts.unknown += int((tokens == unknown).sum())
            if number == tried:
                counts.restores = self.tokenizer.restores(piece.text, tokens)
            if piece.last:
                tokens = np.concatenate([tokens, self.between])
                if self.tokenizer.end_id is None:
                    counts.characters += len(BETWEEN)
                    counts.bytes += len(BETWEEN)
            part.arrays.append(tokens.astype(self.dtype))
            counts.tokens += len(tokens)
        return Encoded(parts, pieces[-1].after)


def prepare(
    corpus: Corpus,
    folder: Path,
    *,
    tokenizer: TokenizerName,
    vocab_size: Vocabulary | None = None,
    workers: int = 1,
    shard: int = SHARD,
) -> dict[str, Any]:
    """Write the shards of a corpus, or the rest of them, and return the manifest.

    tokenizer, vocab_size: as data.tokenizer and data.vocab_size of data=text; char and bpe are
    trained on the training documents. workers: processes that tokenize. shard: tokens after which a
    shard ends. UserError for a folder with other shards.
    """
    require_allowed(prepare, {"tokenizer": tokenizer, "vocab_size": vocab_size}, "data")
    require_trained(tokenizer, vocab_size)
    if tokenizer in TRAINED and (hub := [*filter(is_hub, corpus.files)]):
        raise UserError(
            f"{hub[0]}: is streamed once, and --tokenizer {tokenizer} would read it twice; use"
            " hf:NAME_OR_PATH, tiktoken:NAME or byte"
        )
    with _writing(folder):
        plan = _plan(corpus, tokenizer, vocab_size, shard)
        if (folder / MANIFEST).exists():
            finished = read_manifest(folder)
            _require_same(plan, finished.get("made_from"), folder)
            return finished
        if next(corpus.texts("train"), None) is None:
            raise UserError(f"{folder}: no training document in {len(corpus.files)} files")
        made = partial(trained, corpus, tokenizer, vocab_size)
        return _write(corpus, folder, plan, tokenizer, made, workers, shard)


def cached(
    key: str,
    text: Callable[[], TextSource],
    name: TokenizerName,
    vocab_size: int | None,
    known: Tokenizer | None,
    workers: int,
) -> Stored[Shards]:
    """The tokens with a key, from tokens/ of the folder of downloads; the first run that needs them
    writes them there, and others that start meanwhile wait.

    known: the tokenizer, if it is not trained on the text. The folder may be deleted while no run
    uses it. NoCache if it cannot be written.
    """
    folder = source.cache() / "tokens" / key
    with suppress(UserError):  # not there, or damaged
        return stored(folder)
    try:
        with _writing(folder, wait=True):
            with suppress(UserError):
                return stored(folder)
            note(f"tokenizing for all runs with this text and tokenizer, into {folder}")
            (folder / MANIFEST).unlink(missing_ok=True)
            made = partial(trained, content := text(), name, vocab_size, known)
            _write(content, folder, {"key": key}, name, made, workers, SHARD)
    except OSError as error:
        raise source.NoCache(
            f"{error.filename or folder}: {error.strerror}; ABLATE_CACHE names another folder"
        ) from None
    return stored(folder)


def in_memory(text: TextSource, tokenizer: Tokenizer) -> Stored[torch.Tensor]:
    """The tokens of a text, without the places of documents."""
    # torch has few functions of uint32.
    encoder = Encoder(tokenizer, dtype_for(tokenizer.vocab_size).replace("<u4", "<i4"))
    parts: dict[str, Part] = {}
    for piece in text.pieces():
        for split, part in encoder[[piece]].parts.items():
            whole = parts.setdefault(split, Part())
            whole.arrays += part.arrays
            whole.counts.add(part.counts)
    return Stored(
        {split: torch.from_numpy(np.concatenate(part.arrays)) for split, part in parts.items()},
        state=tokenizer.state(),
        counts={split: asdict(part.counts) for split, part in parts.items()},
        notes=text.notes,
    )


def trained(
    text: TextSource, name: TokenizerName, vocab_size: int | None, known: Tokenizer | None = None
) -> Tokenizer:
    """The tokenizer of this name for a text, or a known one."""
    train, val = (partial(text.texts, split) for split in ("train", "val"))
    return known or make_tokenizer(name, vocab_size, train, val)


def _write(
    text: TextSource,
    folder: Path,
    plan: dict[str, Any],
    name: TokenizerName,
    tokenizer: Callable[[], Tokenizer],
    workers: int,
    shard: int,
) -> dict[str, Any]:
    """Write the shards, or the rest of them, and the manifest. plan: of the bytes of the shards."""
    begun, records = read_json(folder / PLAN), list(_records(folder))
    if records:
        _require_same(plan, begun, folder)
    elif begun != plan:  # of a call that made no shard
        for stale in (folder / TOKENIZER, *folder.glob("*-00000.*")):
            stale.unlink(missing_ok=True)
        write_json(folder / PLAN, plan)
    if state := read_mapping(folder / TOKENIZER):
        made = restored(state)
    else:
        write_json(folder / TOKENIZER, (made := tokenizer()).state())
    if workers > 1:  # they are the parallelism
        os.environ.setdefault("TOKENIZERS_PARALLELISM", "false")
    with _lost_workers():
        for record in _shards(text, folder, made, workers, shard, records):
            records.append(record)
            write_json(_record(folder, len(records) - 1), record)
    manifest: dict[str, Any] = FORMAT | {
        "dtype": dtype_for(made.vocab_size),
        "vocab_size": made.vocab_size,
        "end": made.end_id,
        "tokenizer": {"name": name, "state": made.state()},
        "splits": _totals(records),
        "made_from": plan,
        "notes": [*text.notes],
    }
    write_json(folder / MANIFEST, manifest)
    for file in (PLAN, TOKENIZER, *(_record(folder, n).name for n in range(len(records)))):
        (folder / file).unlink(missing_ok=True)
    return manifest


def _plan(
    corpus: Corpus, tokenizer: TokenizerName, vocab_size: int | None, shard: int
) -> dict[str, Any]:
    """The options and files that determine the bytes of the shards, as JSON values."""

    def file(path: Path) -> list[Any]:
        if is_hub(path):
            return [str(path)]
        # JSON has no name that is not UTF-8.
        name = os.fsencode(path.absolute()).decode(errors="backslashreplace")
        try:
            return [name, bytes_in(path), path.stat().st_mtime_ns]
        except OSError as error:
            raise UserError(f"{path}: cannot be read ({error.strerror})") from None

    return asdict(corpus) | {
        "files": [*map(file, corpus.files)],
        "val_files": [*map(file, corpus.val_files)],
        "tokenizer": tokenizer,
        "vocab_size": vocab_size,
        "learned": [LEARNED, version("tokenizers")] if tokenizer in TRAINED else None,
        "shard": shard,
    }


def _require_same(plan: Mapping[str, Any], other: Any, folder: Path) -> None:
    other = other if isinstance(other, dict) else {}
    for key, value in plan.items():
        if (there := other.get(key)) != value:
            shown = "" if isinstance(value, list) else f": {there} there, {value} here"
            name = "versions of tokenizers" if key == "learned" else key.replace("_", " ")
            raise UserError(
                f"{folder}: contains shards of other {name}{shown}; choose another --to, or remove"
                " that folder"
            )


@contextmanager
def _writing(folder: Path, *, wait: bool = False) -> Iterator[None]:
    """Lock a folder for the block. UserError if it has other files, another process uses it, or the
    disk is full. wait: until no other process uses it; a full disk is an OSError."""
    try:
        folder.mkdir(parents=True, exist_ok=True)
        ours = (MANIFEST, PLAN, LOCK)
        if any(folder.iterdir()) and not any((folder / name).exists() for name in ours):
            raise UserError(f"{folder}: contains other files; choose another --to")
        lock = FileLock(folder / LOCK)
        try:
            lock.acquire(timeout=1)
        except Timeout:
            if not wait:
                raise UserError(f"{folder}: another process prepares it") from None
            note("another run tokenizes the same text; waiting for it")
            lock.acquire()
        try:
            yield
        finally:
            lock.release()
    except OSError as error:
        if wait or error.errno not in FULL or error.errno == errno.EROFS:
            raise
        raise UserError(
            f"{error.filename or folder}: {error.strerror}; the finished shards are kept, and the"
            " same command continues"
        ) from None


@contextmanager
def _lost_workers() -> Iterator[None]:
    try:
        yield
    except (RunFailed, RuntimeError) as error:
        if str(unwrap(error)) != LOST_WORKER:
            raise
        raise RunFailed(
            "a process that tokenizes was killed (out of memory, or manually); the same command"
            " continues, with --workers N fewer of them"
        ) from None


def _record(folder: Path, number: int) -> Path:
    return folder / f".shard-{number:05}.json"


def _records(folder: Path) -> Iterator[dict[str, Any]]:
    number = 0
    while record := read_mapping(_record(folder, number)):
        yield record
        number += 1


def _shards(
    text: TextSource,
    folder: Path,
    tokenizer: Tokenizer,
    workers: int,
    shard: int,
    records: list[dict[str, Any]],
) -> Iterator[dict[str, Any]]:
    """Write the shards that have no record, and yield their records."""
    dtype = dtype_for(tokenizer.vocab_size)
    done = sum(of["tokens"] for record in records for of in record["splits"].values())
    place = tuple(records[-1]["after"]) if records else (0, 0, 0)
    batches = _batches(text.pieces(place))
    encoded: Iterable[Any] = Loader(
        Encoder(tokenizer, dtype),
        batches,
        workers=0 if workers == 1 else workers,
    )
    writer = None
    number = len(records)
    with bar("tokenizing", unit=" tokens", unit_scale=True, initial=done) as shown:
        for batch in encoded:
            writer = writer or _Writer(folder, number, dtype)
            writer.write(batch)
            shown.update(sum(part.counts.tokens for part in batch.parts.values()))
            if writer.tokens >= shard:
                yield writer.close(batch.after)
                writer, number = None, number + 1
        if writer is not None:
            yield writer.close(batch.after)


def _batches(pieces: Iterable[Piece]) -> Iterator[list[Piece]]:
    batch, size = [], 0
    for piece in pieces:
        batch.append(piece)
        size += len(piece.text)
        if size >= BATCH:
            yield batch
            batch, size = [], 0
    if batch:
        yield batch


class _Writer:
    """The files of one shard, of each split that it has."""

    def __init__(self, folder: Path, number: int, dtype: str) -> None:
        self.folder, self.number, self.dtype = folder, number, dtype
        self.files: dict[str, BinaryIO] = {}
        self.hashes: dict[str, Any] = {}
        self.starts: dict[str, list[NDArray[np.int64]]] = {}
        self.counts: dict[str, Counts] = {}

    @property
    def tokens(self) -> int:
        return sum(counts.tokens for counts in self.counts.values())

    def write(self, batch: Encoded) -> None:
        for split, part in batch.parts.items():
            path = self._path(split, ".bin")
            with named(path):
                if split not in self.files:
                    path.unlink(missing_ok=True)  # runs may have mapped a damaged one
                    self.files[split] = open(path, "wb")  # noqa: SIM115  # closed by `close`
                    self.hashes[split], self.starts[split] = hashlib.sha256(), []
                    self.counts[split] = Counts()
                content = np.concatenate(part.arrays).tobytes()
                self.files[split].write(content)
            self.hashes[split].update(content)
            starts = np.array(part.starts, np.int64) + self.counts[split].tokens
            self.starts[split].append(starts)
            self.counts[split].add(part.counts)

    def close(self, after: Any) -> dict[str, Any]:
        """Put the files on the disk, and return the record of the shard."""
        splits = {}
        for split, file in self.files.items():
            index = self._path(split, ".npy")
            with named(Path(file.name)), file:
                file.flush()
                os.fsync(file.fileno())
            with named(index), open(index, "wb") as out:
                np.save(out, np.concatenate(self.starts[split]))
                out.flush()
                os.fsync(out.fileno())
            splits[split] = {
                "file": Path(file.name).name,
                "index": index.name,
                "sha256": self.hashes[split].hexdigest(),
                "index_sha256": hashlib.sha256(index.read_bytes()).hexdigest(),
                **asdict(self.counts[split]),
            }
        return {"splits": splits, "after": after}

    def _path(self, split: str, ending: str) -> Path:
        return self.folder / f"{split}-{self.number:05}{ending}"


def _totals(records: list[dict[str, Any]]) -> dict[str, Any]:
    """Of each split its shards, with the sums of their counts."""
    totals: dict[str, Any] = {}
    for record in records:
        for split, one in record["splits"].items():
            shard = dict(one)
            counts = Counts(**{name: shard[name] for name in asdict(Counts())})
            total = totals.setdefault(split, {"counts": Counts(), "shards": []})
            total["counts"].add(counts)
            for name in ("characters", "bytes", "unknown", "restores"):
                del shard[name]
            total["shards"].append(shard)
    return {
        split: asdict(total["counts"]) | {"shards": total["shards"]}
        for split, total in sorted(totals.items())
    }
