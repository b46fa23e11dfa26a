"""Labeled texts: a folder of files for each class, a table, or paragraphs of Python's help.

Files are UTF-8 with the ending .txt or .gz; see ablate.data.class_folders for the folders. A table
is a CSV file (.csv, or .tsv with tabs; .gz too), whose first row names its columns: `text` and
`label`; it is split by a hash of the texts, so that equal texts are in one split, with the same
shares of every class. Texts that are in two splits of a folder, and classes whose names differ only
in how they are written, are counted in a message. Without a root the texts are the paragraphs of
ablate.data.chapters, and the class is the chapter. A model trained on data=pydoc has read those
paragraphs, those of validation and test too, though never with their class.
"""

import logging
from collections import Counter
from collections.abc import Iterator
from functools import partial
from hashlib import sha256
from typing import Any, ClassVar
from urllib.parse import urlsplit

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor
from torch.utils.data import Dataset

from ablate.config.rules import Count, Vocabulary
from ablate.data import digest, padded, source
from ablate.data.chapters import paragraphs
from ablate.data.class_folders import ClassFolders, class_numbers, warn_of_spellings
from ablate.data.interface import Sizes
from ablate.data.loader import Batch, Request
from ablate.data.masked import WithSpecials
from ablate.data.split import (
    BOUNDS,
    chosen,
    stratified,
    text_key,
    three_way,
    warn_of_shared,
)
from ablate.data.table import read_texts
from ablate.data.text import Tokenized
from ablate.data.tokenizer import Tokenizer, TokenizerName, make_tokenizer
from ablate.errors import UserError
from ablate.machine.terminal.bar import progress

log = logging.getLogger(__name__)

ENDINGS = {".txt", ".gz"}
TABLES = (".csv", ".tsv")
Texts = dict[str, tuple[list[str], list[int]]]  # of each split: the texts, and their classes


class Labeled(Dataset[Batch]):
    """tokens: b i, padded with 0 to the longest of the batch. keep: b i, True = real."""

    def __init__(self, texts: list[Tensor], targets: list[int]) -> None:
        self.lengths = torch.tensor([len(text) for text in texts])
        self.starts = self.lengths.cumsum(0) - self.lengths
        self.tokens, self.targets = torch.cat(texts), torch.tensor(targets)

    def __len__(self) -> int:
        return len(self.targets)

    @property
    def longest(self) -> Tensor:
        """The number of the longest text, b = 1."""
        return self.lengths.argmax(keepdim=True)

    def __getitem__(self, request: Request) -> Batch:
        lengths = self.lengths[request.indices]
        keep = torch.arange(int(lengths.max())) < lengths[:, None]
        return {
            "tokens": padded(self.tokens, self.starts[request.indices], lengths, 0),
            "keep": keep,
            "targets": self.targets[request.indices],
        }


class TextFiles(Tokenized):
    """seq_len: the most tokens of a text; longer ones are truncated, with a warning.
    train_examples: a smaller number is a subset of a larger; the tokenizer is trained on all texts.
    """

    kind: ClassVar[str] = "texts with classes"
    reads: ClassVar[tuple[str, ...]] = ("tokens", "keep")
    unit: ClassVar[str] = "texts"
    for_training: ClassVar[tuple[str, ...]] = ("tokenizer", "vocab_size", "train_examples")
    class_names: list[str]

    def __init__(
        self,
        *,
        root: str | None,
        tokenizer: TokenizerName,
        vocab_size: Vocabulary | None,
        seq_len: Count,
        batch_size: Count,
        seed: int,
        train_examples: Count | None = None,
    ) -> None:
        super().__init__(batch_size=batch_size, seed=seed)
        self.table = root if root and _is_table(root) else None
        folder = root if self.table is None else None
        self.files = ClassFolders(folder, endings=ENDINGS, what="texts") if folder else None
        self.tokenizer_name = tokenizer
        self.vocab_size = vocab_size
        self.seq_len = seq_len
        self.train_examples = train_examples
        self.specials = False  # BERT requires [CLS] and [SEP]

    def fingerprint(self) -> str:
        if self.files is not None:
            return self.files.fingerprint()
        if self.table is not None:
            content = sha256(source.read(self.table, key="data.root")).hexdigest()
            return digest(content, BOUNDS, "by class and text_key")
        texts, chapters = paragraphs()
        return digest(sha256("\0".join(texts + chapters).encode()).hexdigest(), BOUNDS)

    def load(self) -> None:
        texts = self._by_hash() if self.files is None else self._files(self.files)
        self.tokenizer = self._tokenizer(texts)
        if not self.whole:
            read, targets = texts["train"]
            used = chosen(len(targets), self.train_examples, "texts").tolist()
            texts["train"] = [read[n] for n in used], [targets[n] for n in used]
        self.splits = {split: self._labeled(split, *texts[split]) for split in texts}
        segments = None
        if self.specials:  # a model that was trained on pairs has a table of segments
            segments = self.measured_as.sizes.segments if self.measured_as else None
            segments = segments or 1
        self.sizes = Sizes(
            vocab_size=self.tokenizer.vocab_size,
            length=self.seq_len,
            classes=len(self.class_names),
            segments=segments,
        )

    def sequences(self, name: str) -> list[NDArray[np.int32]]:
        train = self.splits["train"]
        assert isinstance(train, Labeled)
        texts: list[NDArray[np.int32]] = [
            text.numpy() for text in train.tokens.split(train.lengths.tolist())
        ]
        return texts

    def example(self, index: int = 0) -> dict[str, Any]:
        """A validation text, with `labels`: its tokens in printable characters."""
        batch = super().example(index)
        return batch | {"labels": self.tokenizer.labels(batch["tokens"][0].tolist())}

    def _tokenizer(self, texts: Texts) -> Tokenizer:
        """The tokenizer of `measured_as`, or one built from the texts."""
        if (known := self.known_tokenizer) is not None:
            return known

        def lines(*splits: str) -> Iterator[str]:
            return (f"{text}\n" for split in splits for text in texts[split][0])

        training, others = partial(lines, "train"), partial(lines, *(texts.keys() - {"train"}))
        return self._extended(
            make_tokenizer(self.tokenizer_name, self.vocab_size, training, others)
        )

    def _extended(self, plain: Tokenizer) -> Tokenizer:
        return WithSpecials(plain) if self.specials else plain

    def fitted(self) -> dict[str, Any]:
        return super().fitted() | {"class_names": self.class_names}

    def use_fitted(self, fitted: dict[str, Any]) -> None:
        super().use_fitted(fitted)
        self.tokenizer = self._extended(self.tokenizer)
        self.class_names = fitted["class_names"]

    def _by_hash(self) -> Texts:
        """Of a table or the chapters."""
        texts, names = paragraphs() if self.table is None else _rows(self.table)
        self.class_names = list(self.known_classes) or sorted(set(names))
        every = {"the table": names}
        labels = class_numbers(self.class_names, every, f"data.root={self.table}")["the table"]
        if self.whole:
            splits = {"val": list(range(len(texts)))}
        elif self.table is None:
            splits = three_way([text.encode() for text in texts])
        else:
            warn_of_spellings(Counter(names), f"data.root={self.table}")
            splits = stratified([text_key(text) for text in texts], names)
        for split, numbers in splits.items():
            if not numbers:
                raise UserError(
                    f"data.root={self.table}: the {split} split of {len(texts)} texts would be"
                    " empty; add texts, or provide splits (DIR/train/CLASS/*.txt)"
                )
        return {
            split: ([texts[n] for n in numbers], [labels[n] for n in numbers])
            for split, numbers in splits.items()
        }

    def _files(self, files: ClassFolders) -> Texts:
        splits = files.splits(whole=self.whole)
        self.class_names, labels = files.labels(splits, self.known_classes)
        texts = {
            split: [_text(str(path)) for path in progress(paths, f"reading {split}", "texts")]
            for split, paths in splits.items()
        }
        warn_of_shared(texts, "texts")
        return {split: (of_split, labels[split]) for split, of_split in texts.items()}

    def _labeled(self, split: str, texts: list[str], targets: list[int]) -> Labeled:
        arrays = [self.tokenizer.array(text) for text in texts]
        room = self.seq_len - (2 if self.specials else 0)
        if room < 1:
            raise UserError(
                f"data.seq_len={self.seq_len}: [CLS] and [SEP] leave no token of a text; at least 3"
            )
        if cut := sum(len(array) > room for array in arrays):
            log.warning(
                "ablate: %d of the %d texts of %s are longer than the %d tokens data.seq_len=%d"
                " leaves them, and are read up to there",
                *(cut, len(arrays), split, room, self.seq_len),
            )
        if not all(len(array) for array in arrays):
            raise UserError(f"data.root: a text of the {split} split is empty")
        return Labeled(
            [torch.from_numpy(self._with_special_tokens(a[:room])) for a in arrays], targets
        )

    def _with_special_tokens(self, tokens: NDArray[np.int32]) -> NDArray[np.int32]:
        """The tokens between [CLS] and [SEP], if the tokenizer has these."""
        if not isinstance(self.tokenizer, WithSpecials):
            return tokens
        return np.array([self.tokenizer.cls, *tokens, self.tokenizer.sep], np.int32)


def _rows(path: str) -> tuple[list[str], list[str]]:
    """The texts of a table, and the name of the class of each."""
    texts, names = [], []
    for line, (text, name) in read_texts(path, ("text", "label"), key="data.root"):
        if not text or not name.strip():
            raise UserError(f"data.root={path}: line {line} has no {'label' if text else 'text'}")
        texts.append(text)
        names.append(name.strip())
    if not names:
        raise UserError(f"data.root={path}: has no rows")
    return texts, names


def _text(path: str) -> str:
    return source.text(source.read(path, key="data.root"), path, key="data.root")


def _is_table(root: str) -> bool:
    """Whether it has the name of a table, and is not a folder."""
    name = urlsplit(root).path if "://" in root else root
    return name.lower().removesuffix(".gz").endswith(TABLES) and not source.local(root).is_dir()
