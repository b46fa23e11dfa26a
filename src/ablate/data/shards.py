"""Token shards: files of token ids, with an index of documents, described by manifest.json.

    train-00000.bin   token ids, little-endian uint16, or uint32 if the vocabulary needs it
    train-00000.npy   the positions in that file at which documents begin, int64
    manifest.json     the tokenizer, and of each split its files with their sizes and SHA-256

`python -m ablate.prepare` writes them (ablate.data.preparation). They are mapped into memory, so
that a run reads only the windows it draws. ablate.data.foreign reads shards of other programs.
"""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Generic, NamedTuple, TypeVar

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from ablate.data import digest
from ablate.data.tokenizer import KINDS
from ablate.errors import UserError
from ablate.run_files import read_json
from ablate.run_files.shape import schema_error

MANIFEST = "manifest.json"
FORMAT = {"format": "ablate-tokens", "version": 1}
SHARD = {
    **{"file": str, "tokens": int, "sha256": str},
    **{"index": str, "documents": int, "index_sha256": str},
}
SPLIT = {"characters": int, "bytes": int, "unknown": int, "restores": bool, "shards": [SHARD]}
SCHEMA = {
    "dtype": frozenset({"<u2", "<u4"}),
    "vocab_size": int,
    "tokenizer": {"name": str, "state": {"kind": frozenset(KINDS)}},
    "splits": {str: SPLIT},
}


class Shard(NamedTuple):
    """offset: bytes before the first token. documents: the file with the positions in this one at
    which they begin."""

    path: Path
    dtype: str
    tokens: int
    offset: int = 0
    documents: Path | None = None


class Shards:
    """The token ids of several files as one sequence.

    vocab_size: other ids are rejected when they are read; None: any may be read.
    """

    def __init__(self, files: Sequence[Shard], vocab_size: int | None = None) -> None:
        self.files, self.vocab_size = files, vocab_size
        self.parts = [
            np.memmap(file.path, file.dtype, "r", file.offset, (file.tokens,))
            for file in files
            if file.tokens
        ]
        self.ends = np.cumsum([len(part) for part in self.parts])

    def __reduce__(self) -> Any:  # numpy would copy the content of the files
        return Shards, (self.files, self.vocab_size)

    def __len__(self) -> int:
        return int(self.ends[-1]) if self.parts else 0

    def __getitem__(self, where: Tensor) -> Tensor:
        """The tokens at these positions, of any shape."""
        positions = where.numpy()
        owners = self.ends.searchsorted(positions, side="right")
        read = np.empty(positions.shape, np.int64)
        for owner in np.unique(owners):
            here = owners == owner
            part = self.parts[owner]
            read[here] = part[positions[here] - (self.ends[owner] - len(part))]
        return self._known(read)

    def windows(self, starts: Tensor, length: int) -> Tensor:
        """b -> b length: the tokens from each start on."""
        read = np.empty((len(starts), length), np.int64)
        owners = self.ends.searchsorted(starts.numpy(), side="right")
        for row, owner, start in zip(read, owners, starts.tolist(), strict=True):
            filled = 0
            while filled < length:
                part = self.parts[owner]
                at = start + filled - (int(self.ends[owner]) - len(part))
                found = part[at : at + length - filled]
                row[filled : filled + len(found)] = found
                filled += len(found)
                owner += 1
        return self._known(read)

    def between(self, start: int, stop: int) -> "Shards":
        """The tokens from number `start` up to `stop`."""
        files = []
        for file, end in zip((f for f in self.files if f.tokens), self.ends.tolist(), strict=True):
            begin = end - file.tokens
            first, last = max(start, begin), min(stop, end)
            if first < last:
                skipped = (first - begin) * np.dtype(file.dtype).itemsize
                files.append(file._replace(tokens=last - first, offset=file.offset + skipped))
        return Shards(files, self.vocab_size)

    def firsts(self) -> NDArray[np.int64] | None:
        """The positions of the first token of each document, and of the sequence; None if a file
        has no index."""
        found, start = [np.zeros(1, np.int64)], 0
        for file in self.files:
            if file.documents is None:
                return None
            skipped = file.offset // np.dtype(file.dtype).itemsize
            try:
                own = np.load(file.documents, mmap_mode="r") - skipped
            except (ValueError, EOFError) as error:
                raise UserError(
                    f"{file.documents}: damaged or truncated ({error}); copy it again"
                ) from None
            found.append(own[(own >= 0) & (own < file.tokens)] + start)
            start += file.tokens
        return np.unique(np.concatenate(found))

    def arrays(self) -> list[NDArray[np.int32]]:
        return [part.astype(np.int32) for part in self.parts]

    def _known(self, read: NDArray[np.int64]) -> Tensor:
        if self.vocab_size is not None and read.size:
            for token in (read.min(), read.max()):
                if not 0 <= token < self.vocab_size:
                    raise UserError(
                        f"data.root: the shards contain token {token}, and their vocabulary has"
                        f" {self.vocab_size} tokens: they are damaged, or the tokenizer or"
                        " data.vocab_size is of other shards"
                    )
        return torch.from_numpy(read)


TokenIds = Tensor | Shards


def windows(tokens: TokenIds, starts: Tensor, length: int) -> Tensor:
    """b -> b length: the token ids from each start on."""
    if isinstance(tokens, Shards):
        return tokens.windows(starts, length)
    return tokens.unfold(0, length, 1)[starts].long()


Ids = TypeVar("Ids", Tensor, Shards)


@dataclass
class Stored(Generic[Ids]):
    """Prepared tokens. checksum: of the content of files, wherever they are. name, state: of their
    tokenizer, if the files tell. counts: of each split whose text is known, as `SPLIT`. notes: as
    in `TextSource`."""

    splits: dict[str, Ids]
    checksum: str = ""
    name: str | None = None
    state: Mapping[str, Any] = field(default_factory=dict)
    counts: Mapping[str, Mapping[str, Any]] = field(default_factory=dict)
    notes: Sequence[str] = ()


def dtype_for(vocab_size: int) -> str:
    return "<u2" if vocab_size <= 2**16 else "<u4"


def read_manifest(folder: Path) -> dict[str, Any]:
    """The content of manifest.json. UserError if it is of another format."""
    file = folder / MANIFEST
    content = read_json(file)
    if not isinstance(content, dict) or content.get("format") != FORMAT["format"]:
        raise UserError(f"{file}: was not written by python -m ablate.prepare")
    if content.get("version") != FORMAT["version"]:
        raise UserError(f"{file}: version {content.get('version')} is of another release of ablate")
    if wrong := schema_error(content, SCHEMA):
        raise UserError(f"{file}: {wrong}")
    return content


def stored(folder: Path) -> Stored[Shards]:
    """The tokens of a folder with a manifest. UserError for a file that is missing or truncated."""
    manifest = read_manifest(folder)
    dtype, splits = manifest["dtype"], manifest["splits"]
    width = np.dtype(dtype).itemsize
    made: dict[str, Shards] = {}
    for split, content in splits.items():
        files = []
        for one in content["shards"]:
            path, index = (folder / Path(one[key]).name for key in ("file", "index"))
            _require_size(path, one["tokens"] * width)
            _require_size(index, None)
            files.append(Shard(path, dtype, one["tokens"], documents=index))
        made[split] = Shards(files, manifest["vocab_size"])
    hashes = {
        split: [[one["sha256"], one["index_sha256"]] for one in of["shards"]]
        for split, of in splits.items()
    }
    return Stored(
        made,
        digest(dtype, manifest["tokenizer"]["state"], hashes),
        manifest["tokenizer"]["name"],
        manifest["tokenizer"]["state"],
        counts=splits,
        notes=manifest.get("notes", ()),
    )


def _require_size(path: Path, size: int | None) -> None:
    try:
        there = path.stat().st_size
    except OSError as error:
        raise UserError(
            f"{path}: cannot be read ({error.strerror}), and {MANIFEST} lists it; copy the folder"
            " again"
        ) from None
    if size is not None and there != size:
        raise UserError(
            f"{path}: has {there:,} bytes, but {MANIFEST} lists {size:,}: it is truncated or"
            " changed; copy it again"
        )
