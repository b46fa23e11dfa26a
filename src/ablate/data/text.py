"""Any UTF-8 text for language models: the first part is for training, the last for validation.

The split and the random training windows are nanoGPT's (github.com/karpathy/nanoGPT,
data/shakespeare_char/prepare.py and train.py). Validation is one full pass. A text is read in
pieces, and its tokens are mapped from disk (ablate.data.token_cache), so that neither has to fit
into memory.
"""

import json
import re
from abc import abstractmethod
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from functools import partial
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
from ablate.data import IGNORED, Data, digest, source
from ablate.data.document_rows import ConsecutiveRows, DocumentRows, Layout
from ablate.data.documents import is_saved
from ablate.data.interface import Sizes, TaskSettings
from ablate.data.loader import Batch, Order, Request, Share, Windows
from ablate.data.pieces import Pieces, Unit, Units, between, characters, recut
from ablate.data.shards import Shards, TokenIds, windows
from ablate.data.token_cache import Arrays, Tokens, in_memory, on_disk
from ablate.data.tokenizer import (
    BLANKS,
    LEARNED,
    Tokenizer,
    TokenizerName,
    make_tokenizer,
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


class AllWindows(Dataset[Batch]):
    """Consecutive windows; every token but the very first is a target exactly once.

    The last window is padded with token 0 and with ignored targets.
    """

    def __init__(self, tokens: TokenIds, length: int) -> None:
        self.tokens, self.length = tokens, length

    def __len__(self) -> int:
        return -(-(len(self.tokens) - 1) // self.length)

    def __getitem__(self, request: Request) -> Batch:
        where = request.indices[:, None] * self.length + torch.arange(self.length)
        last = len(self.tokens) - 2
        real, where = where <= last, where.clamp(max=last)
        tokens, targets = self.tokens[where].long(), self.tokens[where + 1].long()
        return {"tokens": tokens.where(real, 0), "targets": targets.where(real, IGNORED)}


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
        """All windows of the training tokens, and consecutive ones of the validation tokens; of
        documents, rows in the layout of the data."""
        first = data.firsts(tokens)
        if first is None or (training and data.documents == "ignore"):
            return (RandomWindows if training else AllWindows)(tokens, data.seq_len)
        restart = data.positions == "document"
        return (DocumentRows if training else ConsecutiveRows)(
            tokens.__getitem__, len(tokens), first, data.seq_len, data.documents, restart=restart
        )

    def sizes(self, vocab_size: int, length: int) -> Sizes:
        return Sizes(vocab_size=vocab_size, length=length)

    def from_text(self, text: str, tokenizer: Tokenizer) -> Batch:
        """A user's text as the model reads it: a batch of size 1."""
        return {"tokens": torch.tensor([tokenizer.encode(text)])}


SEARCHED = 64  # validation windows, for one to draw
PREPARE = "python -m ablate.prepare {} --to DIR (then data=tokens data.root=DIR)"
KEPT = 2**20  # bytes of a file, from which on its tokens are kept on disk
JSON_LINES = (".jsonl", ".ndjson", ".json", ".jsonl.gz", ".ndjson.gz", ".json.gz")
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

    An epoch has as many windows as fit into the training split side by side. characters, bytes: of
    the text of each split, as UTF-8, if it is known. lost: of each split, the number of unknown
    tokens if `decode` does not return the text back, else null.
    """

    kind: ClassVar[str] = "text"
    for_training: ClassVar[tuple[str, ...]] = ("tokenizer", "vocab_size")
    tokens: dict[str, TokenIds]
    characters: dict[str, int]
    bytes: dict[str, int]
    lost: dict[str, int | None]
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

    def train_order(self, share: Share) -> Order:
        targets = len(self.tokens["train"]) - 1
        example = self.splits["train"][Request(0, torch.zeros(1).long())]
        memory.require(
            self.batch_size * sum(tensor.nbytes for tensor in example.values()),
            f"data.batch_size={self.batch_size}: a batch",
        )
        batches = max(1, targets // (self.cut.tokens(self.seq_len) * self.batch_size))
        starts = self.length("train")
        return Windows(starts, self.batch_size, batches=batches, seed=self.seed, share=share)

    def amount(self) -> str:
        return f"{len(self.tokens['train']):,} training tokens"

    def measured_amount(self, split: str) -> str:
        return f"{len(self.tokens[split]):,} tokens"

    def sequences(self, name: str) -> list[NDArray[np.int32]]:
        tokens = self.tokens["train"]
        if isinstance(tokens, Shards):
            return tokens.arrays()
        return [tokens.numpy().astype(np.int32)]

    def firsts(self, tokens: TokenIds) -> NDArray[np.int64] | None:
        """The positions in a split of the first token of each document; None if the documents are
        not known."""
        return tokens.firsts() if isinstance(tokens, Shards) else None

    def per_token(self, split: str) -> dict[str, float]:
        """Mean numbers of characters ("char") and bytes ("byte") per predicted token, over one full
        pass; empty if the text is unknown or the tokens do not cover it, as unknown ones do not.

        The first token of a split, and of each document, is given, not predicted, and neither is
        its text.
        """
        if self.lost.get(split) is not None or split not in self.bytes:
            return {}
        tokens = self.tokens[split]
        first = self.firsts(tokens)
        first = np.zeros(1, np.int64) if first is None else first
        ids, counts = tokens[torch.from_numpy(first)].unique(return_counts=True)
        texts = [self.tokenizer.decode([token]) for token in ids.tolist()]
        given = {
            "char": sum(len(t) * n for t, n in zip(texts, counts.tolist(), strict=True)),
            "byte": sum(len(t.encode()) * n for t, n in zip(texts, counts.tolist(), strict=True)),
        }
        known = {"char": self.characters[split], "byte": self.bytes[split]}
        return {u: (known[u] - given[u]) / (len(tokens) - len(first)) for u in known}

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
            if (unknown := self.lost.get(split)) is not None:
                note(
                    f"{self.where}: the tokens of the {split} split do not cover its text"
                    f" ({unknown:,} of {len(tokens):,} are unknown), so bits per byte and per"
                    " character are left out"
                )
        self.splits = {
            split: self.cut.examples(tokens, self, training=split == "train")
            for split, tokens in self.tokens.items()
        }
        self.sizes = self.cut.sizes(self.tokenizer.vocab_size, self.seq_len)


class TextData(TokenData):
    """Base of the texts: a subclass reads the text.

    tokenizer: char, byte or bpe, made only from the training split, or hf:NAME_OR_PATH.
    vocab_size: of bpe, null for 1024 or as many as the training text has; must be null for the
    others, whose vocabulary is fixed.
    seq_len: tokens of a window.
    val_fraction: share of the characters, or of the units, taken from the end, for validation.
    unit: line or document (between blank lines): these are shuffled first, in one order for every
    seed, and none is divided; null: the text as it is.
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
    def read(self) -> str:
        """The whole text."""

    def pieces(self) -> Iterator[str]:
        """The text in pieces, for one that need not be in memory whole."""
        yield self.read()

    @abstractmethod
    def content_hash(self) -> str:
        """A hash of the text, independent of its location."""

    @property
    def kept_on_disk(self) -> bool:
        """Whether the tokens are worth keeping for other runs."""
        return False

    def fingerprint(self) -> str:
        units = [self.split_by] if self.split_by else []
        return digest(self.content_hash(), "last", self.val_fraction, *units)

    def load(self) -> None:
        known = self.known_tokenizer or ready_made(self.tokenizer_name)
        by: list[Any] = [known and known.state()]
        if known is None:
            by = [self.tokenizer_name, self.vocab_size, version("tokenizers"), LEARNED]
        key = digest(self.fingerprint(), self.whole, *by)
        make = partial(self._tokenized, known)
        found = on_disk(key, make) if self.kept_on_disk else None
        self._take(found or in_memory(*make()), known)

    def _take(self, made: Tokens, known: Tokenizer | None) -> None:
        """Use new or cached tokens, and report surprises such as unknown characters."""
        self.tokens, notes = {**made.splits}, made.notes
        if known is None or self.measured_as is None:
            known = self.cut.tokenizer(known or restored(notes["tokenizer"]))
        self.characters, self.bytes = notes["characters"], notes["bytes"]
        self.lost = notes["lost"]
        self._make_splits(known)
        if (units := notes["units"]) is not None:
            count, held, shared = units
            also = f" ({shared:,} of them also train)" * bool(shared)
            note(f"{self.where}: {count:,} {self.split_by}s, shuffled; {held:,} validate{also}")
        if notes["sorted"] and not self.whole:
            note(
                f"{self.where}: its lines are sorted, and the last {self.val_fraction:g} of them"
                " validate; data.unit=line shuffles them first"
            )

    def _tokenized(
        self, known: Tokenizer | None
    ) -> tuple[Mapping[str, Arrays], dict[str, Any], int]:
        """Read and tokenize the text. known: a tokenizer that is not built from it."""
        notes: dict[str, Any] = {"units": None}
        splits = self._divided(notes)
        if known is None:
            known = make_tokenizer(
                self.tokenizer_name, self.vocab_size, splits["train"], splits["val"]
            )
        notes |= {
            "tokenizer": known.state(),
            "characters": dict.fromkeys(splits, 0),
            "bytes": dict.fromkeys(splits, 0),
            "lost": dict.fromkeys(splits),
            "sorted": self.split_by is None and _sorted(self.pieces()),
        }
        arrays = {
            split: self._encoded(split, known, pieces, notes) for split, pieces in splits.items()
        }
        return arrays, notes, known.vocab_size

    def _encoded(
        self, split: str, tokenizer: Tokenizer, pieces: Pieces, notes: dict[str, Any]
    ) -> Arrays:
        """The tokens of each piece of a split; counts its characters and unknown tokens."""
        ahead: list[str] = []  # pieces whose tokens are still to come

        def noted() -> Iterator[str]:
            for piece in recut(characters(pieces(), f"tokenizing {split}")):
                ahead.append(piece)
                yield piece

        unknown, restores = 0, True
        for tokens in tokenizer.arrays(noted()):
            piece = ahead.pop(0)
            notes["characters"][split] += len(piece)
            notes["bytes"][split] += len(piece.encode())
            unknown += int((tokens == tokenizer.unknown_id).sum())
            restores = restores and tokenizer.restores(piece, tokens)
            yield tokens
        notes["lost"][split] = unknown if unknown or not restores else None

    def _divided(self, notes: dict[str, Any]) -> dict[str, Pieces]:
        """The pieces of training and validation; of a text that is measured whole, validation.
        Notes how many units there are, and validate."""
        if self.whole:
            return {"val": self.pieces}
        if self.split_by is not None:
            raw = bytearray()
            for piece in characters(self.pieces(), "reading"):
                raw += piece.encode()
            units = Units(raw, self.split_by)
            cut = self._boundary(len(units), f"{self.split_by}s")
            notes["units"] = len(units), len(units) - cut, units.shared(cut)
            return {
                "train": partial(units.pieces, 0, cut),
                "val": partial(units.pieces, cut, len(units)),
            }
        count = sum(map(len, characters(self.pieces(), "reading")))
        cut = self._boundary(count, "characters")
        return {
            "train": lambda: between(self.pieces(), 0, cut),
            "val": lambda: between(self.pieces(), cut, count),
        }

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


def _require_one_file(path: str) -> None:
    """Raise UserError for a folder or a pattern of names, with how to read several files."""
    if source.is_url(path) or (file := source.local(path)).is_file():
        return
    join = f"data=text reads one file; {PREPARE.format(path)} reads several"
    if is_saved(file):
        what = "is a folder of save_to_disk of Hugging Face datasets"
        raise UserError(f"data.path={path}: {what}; {PREPARE.format(path)} reads it")
    if file.is_dir():
        raise UserError(
            f"data.path={path}: is a folder, and {join}; data=text_files root=FOLDER reads a folder"
            " for each class"
        )
    if any(sign in path for sign in "*?["):
        raise UserError(f"data.path={path}: is a pattern of names, and {join}")


def _require_plain(path: str, start: str) -> None:
    """Raise UserError for JSON lines, whose braces and keys would be learned as text."""
    line = start.lstrip().partition("\n")[0]
    try:
        first = json.loads(line)
    except (ValueError, RecursionError):
        first = None
    if isinstance(first, dict) and (path.lower().endswith(JSON_LINES) or "text" in first):
        raise UserError(
            f"data.path={path}: contains JSON lines, and data=text reads plain text;"
            f" {PREPARE.format('FILE.jsonl')} reads them, and data=text_files root=FILE.csv reads"
            " texts with labels"
        )


class Text(TextData):
    """A file or a download, plain or gzip.

    path: a file, or an http(s) URL that is downloaded once.
    sha256: of the file before decompression; null accepts any.
    """

    def __init__(self, *, path: str, sha256: str | None, **options: Any) -> None:
        super().__init__(**options)
        if sha256 is not None and not re.fullmatch(r"[0-9a-f]{64}", str(sha256)):
            raise UserError(f"data.sha256={sha256}: must be 64 hexadecimal digits or null")
        self.path, self.sha256 = path, sha256

    def read(self) -> str:
        return "".join(self.pieces())

    def pieces(self) -> Iterator[str]:
        pieces = source.text_pieces(self.path, self.sha256)
        for number, piece in enumerate(pieces):
            if not number:
                _require_plain(self.path, piece)
            yield piece

    @property
    def kept_on_disk(self) -> bool:
        fetched = source.is_url(self.path)
        file = source.fetch(self.path, self.sha256) if fetched else source.local(self.path)
        return file.stat().st_size >= KEPT

    def content_hash(self) -> str:
        _require_one_file(self.path)  # before anything else reads it
        return source.content_hash(self.path, self.sha256)
