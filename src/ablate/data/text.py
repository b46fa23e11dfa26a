"""Any UTF-8 text for language models: the first part is for training, the last for validation.

The split and the random training windows are nanoGPT's (github.com/karpathy/nanoGPT,
data/shakespeare_char/prepare.py and train.py). Validation is one full pass. A text is read in
pieces, and the tokens of a long one are mapped from disk, so that neither has to fit into memory.
"""

import json
import os
import re
from abc import abstractmethod
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from functools import cached_property, partial
from importlib.metadata import version
from itertools import islice
from operator import gt, lt
from pathlib import Path
from typing import Any, ClassVar, Literal

import numpy as np
import torch
from numpy.typing import NDArray
from torch.utils.data import Dataset

from ablate.config.rules import Count, Fraction, Vocabulary
from ablate.data import Data, digest, source
from ablate.data.document_rows import ConsecutiveRows, DocumentRows, Layout
from ablate.data.documents import (
    TABLES,
    Corpus,
    Piece,
    Place,
    TextSource,
    bytes_in,
    files_in,
    find,
    is_hub,
    kind,
    sha256,
)
from ablate.data.interface import Sizes, TaskSettings
from ablate.data.loader import Batch, Order, Request, Windows
from ablate.data.pieces import Pieces, Unit, Units, between, characters, recut
from ablate.data.preparation import cached, in_memory, trained
from ablate.data.shards import FORMAT, Shards, Stored, TokenIds, windows
from ablate.data.tokenizer import (
    BLANKS,
    LEARNED,
    Tokenizer,
    TokenizerName,
    note,
    ready_made,
    require_trained,
    restored,
)
from ablate.errors import UserError
from ablate.machine import memory


class RandomWindows(Dataset[Batch]):
    """Windows of a token sequence; an index is the position of a window's first token."""

    def __init__(self, tokens: TokenIds, length: int) -> None:
        self.tokens, self.length = tokens, length

    def __len__(self) -> int:
        return len(self.tokens) - self.length

    def __getitem__(self, request: Request) -> Batch:
        window = windows(self.tokens, request.indices, self.length + 1)
        return {"tokens": window[:, :-1], "targets": window[:, 1:]}


@dataclass(frozen=True)
class Cut(TaskSettings):
    """How a text becomes examples: here, windows whose every token has the next one as its target.

    A task may request others: `Task.configure_data` stores one in `Data.task_settings`. seq_len:
    positions of an example.
    """

    def tokenizer(self, plain: Tokenizer) -> Tokenizer:
        """A tokenizer of the text, extended by any special tokens of the examples."""
        return plain

    def tokens(self, seq_len: int) -> int:
        """The number of positions of an example that contain text."""
        return seq_len

    def least(self, seq_len: int) -> int:
        """The least number of tokens of a split."""
        return seq_len + 1

    def examples(self, tokens: TokenIds, data: "TokenData", *, training: bool) -> Dataset[Any]:
        """All windows of the training tokens, or rows of documents in the layout of the data;
        consecutive rows of the validation tokens."""
        if training and data.documents == "ignore":
            return RandomWindows(tokens, data.seq_len)
        restart, first = data.positions == "document", data.firsts(tokens)
        return (DocumentRows if training else ConsecutiveRows)(
            tokens.__getitem__, len(tokens), first, data.seq_len, data.documents, restart=restart
        )

    def sizes(self, vocab_size: int, length: int) -> Sizes:
        return Sizes(vocab_size=vocab_size, length=length)

    def from_text(self, text: str, tokenizer: Tokenizer) -> Batch:
        """A user's text as the model reads it: a batch of size 1."""
        return {"tokens": torch.tensor([tokenizer.encode(text)])}


SEARCHED = 64  # validation windows, for one to draw
KEPT = 2**20  # bytes of a text, from which on its tokens are kept on disk
PER_PROCESS = 2**25  # bytes for which another process tokenizes
SORTED = 200  # lines in order, from which on a text counts as sorted
UNSORTED = 0.02  # steps in the other direction, at most


class Tokenized(Data):
    """Base of the data sets with one tokenizer."""

    tokenizer: Tokenizer

    @property
    def known_tokenizer(self) -> Tokenizer | None:
        """The tokenizer of the run that this one starts from, or that is measured."""
        known = self.measured_as
        return known.tokenizer if isinstance(known, Tokenized) else None

    def fitted(self) -> dict[str, Any]:
        return {"tokenizer": self.tokenizer.state()}

    def use_fitted(self, fitted: dict[str, Any]) -> None:
        self.tokenizer = restored(fitted["tokenizer"])

    def save_as_hf(self, folder: Path) -> None:
        self.tokenizer.save_as_hf(folder)


class TokenData(Tokenized):
    """Base of the data sets of tokens in sequence: a subclass loads `tokens` and ends with
    `_make_splits`.

    An epoch has as many windows as fit into the training split side by side. counts: of
    each split whose text is known, its characters, bytes (as UTF-8) and unknown tokens, and
    whether `decode` restores it.
    """

    kind: ClassVar[str] = "text"
    for_training: ClassVar[tuple[str, ...]] = ("tokenizer", "vocab_size")
    tokens: dict[str, TokenIds]
    counts: Mapping[str, Mapping[str, Any]]
    seq_len: Count
    documents: Layout = "ignore"
    positions: Literal["row", "document"] = "row"
    task_settings: Cut | None

    @property
    def cut(self) -> Cut:
        """The cut that the task requested, or next-token prediction."""
        return self.task_settings or Cut()

    def use_fitted(self, fitted: dict[str, Any]) -> None:
        super().use_fitted(fitted)
        self.tokenizer = self.cut.tokenizer(self.tokenizer)

    def train_order(self) -> Order:
        targets = len(self.tokens["train"]) - 1
        example = self.splits["train"][Request(0, torch.zeros(1).long())]
        memory.require(
            self.batch_size * sum(tensor.nbytes for tensor in example.values()),
            f"data.batch_size={self.batch_size}: a batch",
        )
        batches = max(1, targets // (self.cut.tokens(self.seq_len) * self.batch_size))
        starts = self.length("train")
        return Windows(starts, self.batch_size, batches=batches, seed=self.seed)

    def amount(self) -> str:
        return f"{len(self.tokens['train']):,} training tokens"

    def measured_amount(self, split: str) -> str:
        return f"{len(self.tokens[split]):,} tokens"

    def sequences(self, name: str) -> list[NDArray[np.int32]]:
        tokens = self.tokens["train"]
        if isinstance(tokens, Shards):
            return tokens.arrays()
        return [tokens.numpy().astype(np.int32)]

    def firsts(self, tokens: TokenIds) -> NDArray[np.int64]:
        """The positions in a split of the first token of each document that is known, and 0."""
        known = tokens.firsts() if isinstance(tokens, Shards) else None
        return np.zeros(1, np.int64) if known is None else known

    def per_token(self, split: str) -> dict[str, float]:
        """Mean numbers of characters ("char") and bytes ("byte") per predicted token, over one full
        pass; empty if the text is unknown or the tokens do not cover it, as unknown ones do not.

        The first token of a split, and of each document, is given, not predicted, and neither is
        its text.
        """
        known = self.counts.get(split)
        if known is None or _lost(known):
            return {}
        tokens = self.tokens[split]
        first = self.firsts(tokens)
        found = tokens[torch.from_numpy(first)].unique(return_counts=True)
        counts = dict(zip(*(each.tolist() for each in found), strict=True))
        char = sum(len(self.tokenizer.decode([token])) * n for token, n in counts.items())
        byte = sum(self.tokenizer.bytes_of(token) * n for token, n in counts.items())
        given = {"char": known["characters"] - char, "byte": known["bytes"] - byte}
        return {unit: count / (len(tokens) - len(first)) for unit, count in given.items()}

    def example(self, index: int = 0) -> dict[str, Any]:
        """A validation window, with `labels`: its tokens in printable characters."""
        return self._labeled(super().example(index))

    def choose(self, count: int) -> list[int]:
        """Of the first windows those with the fewest blanks, such as indentation."""

        def blanks(index: int) -> int:
            return sum(not label.strip(BLANKS) for label in self.example(index)["labels"])

        return sorted(super().choose(SEARCHED), key=blanks)[:count]

    def from_text(self, text: str) -> dict[str, Any]:
        """A user's text as the model reads it, a batch of size 1 with `labels`."""
        return self._labeled(self.cut.from_text(text, self.tokenizer))

    def _labeled(self, batch: dict[str, Any]) -> dict[str, Any]:
        return batch | {"labels": self.tokenizer.labels(batch["tokens"][0].tolist())}

    def _make_splits(self, tokenizer: Tokenizer) -> None:
        """Make the examples of the tokens that were read; report unknown ones."""
        self.tokenizer = tokenizer
        for split, tokens in self.tokens.items():
            if len(tokens) < (least := self.cut.least(self.seq_len)):
                by = getattr(self, "val_fraction", None)
                split_by = f" (the text is split by data.val_fraction={by})"
                raise UserError(
                    f"data.seq_len={self.seq_len}: the {split} split has {len(tokens)} tokens and"
                    f" needs at least {least}{split_by * (by is not None)}"
                )
            if _lost(known := self.counts.get(split, {})):
                note(
                    f"{self.where}: the tokens of the {split} split do not cover its text"
                    f" ({known['unknown']:,} of {len(tokens):,} are unknown), so bits per byte and"
                    " per character are left out"
                )
        self.splits = {
            split: self.cut.examples(tokens, self, training=split == "train")
            for split, tokens in self.tokens.items()
        }
        self.sizes = self.cut.sizes(self.tokenizer.vocab_size, self.seq_len)


def _lost(counts: Mapping[str, Any]) -> bool:
    """Whether the tokens do not restore a text."""
    return bool(counts) and bool(counts["unknown"] or not counts["restores"])


@dataclass(frozen=True)
class Divided(TextSource):
    """One text whose parts are the splits."""

    parts: Mapping[str, Pieces]
    notes: Sequence[str] = ()

    def pieces(self, start: Place = (0, 0, 0)) -> Iterator[Piece]:
        first, _, skipped = start
        for number, (split, pieces) in islice(enumerate(self.parts.items()), first, None):
            for at, text in islice(enumerate(recut(pieces())), skipped, None):
                yield Piece(split, text, at == 0, False, (number, 0, at + 1))
            skipped = 0

    def texts(self, split: str) -> Iterator[str]:
        return self.parts[split]()


class TextData(TokenData):
    """Base of the texts: a subclass reads the text.

    vocab_size: must be null for a tokenizer whose vocabulary is fixed.
    val_fraction: share of the characters, or of the units, taken from the end, for validation.
    unit: lines or documents are shuffled first, in one order for every seed, and none is divided.
    """

    dividing: ClassVar[tuple[str, ...]] = (*Data.dividing, "unit")

    def __init__(
        self,
        *,
        tokenizer: TokenizerName,
        vocab_size: Vocabulary | None,
        seq_len: Count,
        batch_size: Count,
        val_fraction: Fraction,
        seed: int,
        unit: Unit | None = None,
    ) -> None:
        super().__init__(batch_size=batch_size, seed=seed)
        self.tokenizer_name = tokenizer
        self.vocab_size = vocab_size
        require_trained(tokenizer, vocab_size)
        self.seq_len = seq_len
        self.val_fraction = val_fraction
        self.split_by = unit

    @abstractmethod
    def pieces(self) -> Iterator[str]:
        """The text in pieces, so that it need not be in memory whole."""

    @abstractmethod
    def content_hash(self) -> str:
        """A hash of the text, independent of its location."""

    def fingerprint(self) -> str:
        units: list[str] = [self.split_by] if self.split_by else []
        if self.split_by == "document":  # earlier versions left the blank lines out
            units.append("blank lines")
        return digest(self.content_hash(), "last", self.val_fraction, *units)

    def load(self) -> None:
        known = self.known_tokenizer or ready_made(self.tokenizer_name)
        made = self.tokenized(known)
        self.tokens = {**made.splits}
        self.counts = made.counts
        if known is None or self.measured_as is None:
            known = self.cut.tokenizer(known or restored(made.state))
        self._make_splits(known)
        for line in made.notes:
            note(f"{self.where}: {line}")

    def tokenized(self, known: Tokenizer | None) -> Stored[Any]:
        """The tokens of the text. known: a tokenizer that is not built from it."""
        text = self.divided()
        return in_memory(text, trained(text, self.tokenizer_name, self.vocab_size, known))

    def divided(self) -> TextSource:
        """The text in training and validation; one that is measured whole is validation."""
        if self.whole:
            return Divided({"val": self.pieces})
        if self.split_by is not None:
            raw = bytearray()
            for piece in characters(self.pieces(), "reading"):
                raw += piece.encode()
            units = Units(raw, self.split_by)
            cut = self._boundary(len(units), f"{self.split_by}s")
            shared = units.shared(cut)
            also = f" ({shared:,} of them also train)" * bool(shared)
            held = f"{len(units):,} {self.split_by}s, shuffled; {len(units) - cut:,} validate{also}"
            return Divided(
                {
                    "train": partial(units.pieces, 0, cut),
                    "val": partial(units.pieces, cut, len(units)),
                },
                [held],
            )
        count = sum(map(len, characters(self.pieces(), "reading")))
        cut = self._boundary(count, "characters")
        in_order = (
            f"its lines are sorted, and the last {self.val_fraction:g} of them validate;"
            " data.unit=line shuffles them first"
        )
        return Divided(
            {
                "train": lambda: between(self.pieces(), 0, cut),
                "val": lambda: between(self.pieces(), cut, count),
            },
            [in_order] * _sorted(self.pieces()),
        )

    def _boundary(self, count: int, what: str) -> int:
        cut = int(count * (1 - self.val_fraction))
        if not 0 < cut < count:
            raise UserError(
                f"data.val_fraction={self.val_fraction}: of {count} {what}, "
                f"{cut} are for training and {count - cut} for validation"
                f"{'; blank lines separate documents' * (what == 'documents')}"
            )
        return cut


def _sorted(pieces: Iterator[str]) -> bool:
    """Whether nearly all lines at the start of a text are in order, ascending or descending, and
    not all equal."""
    lines = source.lines("".join(islice(pieces, 1))[: 2**20])[:-1]
    full = [line.casefold() for line in lines if line.strip()]
    rising, falling = (sum(map(by, full, full[1:])) for by in (lt, gt))
    fewer, more = sorted((rising, falling))
    return len(full) >= SORTED and fewer <= UNSORTED * more and more > 0


def _require_plain(path: str, start: str) -> None:
    """Raise UserError for JSON lines, whose braces and keys would be learned as text."""
    line = start.lstrip().partition("\n")[0]
    try:
        first = json.loads(line)
    except (ValueError, RecursionError):
        first = None
    if isinstance(first, dict) and ("text" in first or ".json" in path.lower()):
        raise UserError(
            f"data.path={path}: contains JSON lines; name it FILE.jsonl, and the value of text in"
            " each is a document"
        )


class Text(TextData):
    """A text, plain or gzip; or documents (ablate.data.documents): those of a folder, a pattern of
    names, several paths, JSON lines, Parquet or a file of zstd.

    sha256: of one text before decompression.
    """

    def __init__(self, *, path: str | list[str], sha256: str | None, **options: Any) -> None:
        super().__init__(**options)
        if sha256 is not None and not re.fullmatch(r"[0-9a-f]{64}", str(sha256)):
            raise UserError(f"data.sha256={sha256}: must be 64 hexadecimal digits or null")
        self.path, self.sha256 = path if isinstance(path, str) else [*path], sha256

    @cached_property
    def files(self) -> list[Path]:
        """The files with documents; none for one text."""
        if isinstance(self.path, str) and not _has_documents(self.path):
            return []
        for key, value in (("unit", self.split_by), ("sha256", self.sha256)):
            if value is not None:
                raise UserError(
                    f"data.{key}={value}: is of one text, and {self.where} has documents; set"
                    f" data.{key}=null"
                )
        paths = [self.path] if isinstance(self.path, str) else self.path
        files = find(_local(path, None) for path in paths)
        if any(map(is_hub, files)):
            raise UserError(f"{self.where}: python -m ablate.prepare reads data sets of the hub")
        return files

    def pieces(self) -> Iterator[str]:
        assert isinstance(self.path, str)
        for number, piece in enumerate(source.text_pieces(self.path, self.sha256)):
            if not number:
                _require_plain(self.path, piece)
            yield piece

    def content_hash(self) -> str:
        if not self.files:
            assert isinstance(self.path, str)
            return source.content_hash(self.path, self.sha256)
        inside = [path for file in self.files for path in files_in(file)]
        return digest("documents", [[kind(path), sha256(path)] for path in inside])

    def divided(self) -> TextSource:
        if not self.files:
            return super().divided()
        return Corpus(
            [] if self.whole else self.files,
            val_share=self.val_fraction,
            val_files=self.files if self.whole else (),
        )

    def tokenized(self, known: Tokenizer | None) -> Stored[Any]:
        files = self.files or [source.local(_local(str(self.path), self.sha256))]
        size = sum(map(bytes_in, files))
        if not self.files and size < KEPT:
            return super().tokenized(known)
        by: list[Any] = [known and known.state()]
        if known is None:
            by = [self.tokenizer_name, self.vocab_size, version("tokenizers"), LEARNED]
        key = digest(FORMAT, self.fingerprint(), self.whole, *by)
        workers = max(1, min(os.cpu_count() or 1, size // PER_PROCESS))
        try:
            made = cached(key, self.divided, self.tokenizer_name, self.vocab_size, known, workers)
        except source.NoCache as error:
            if self.files:
                raise
            note(f"tokens are kept in memory, and the next run makes them again: {error}")
            return super().tokenized(known)
        for split in ("val",) if self.whole else ("train", "val"):
            if split not in made.splits:
                raise UserError(
                    f"data.val_fraction={self.val_fraction}: none of the documents of {self.where}"
                    f" is in the {split} split, by its hash; set another share, or join the files"
                    " into one text"
                )
        return made


def _has_documents(path: str) -> bool:
    """Whether this is a folder, a pattern of names, or a file of documents."""
    if kind(Path(path)) in TABLES or path.lower().endswith(".zst") or is_hub(Path(path)):
        return True
    file = source.local(path)
    pattern = any(sign in path for sign in "*?[") and not source.is_url(path)
    return file.is_dir() or (pattern and not file.exists())


def _local(path: str, sha256: str | None) -> str:
    return str(source.fetch(path, sha256)) if source.is_url(path) else path
