"""Any UTF-8 text for language models: the first part is for training, the last for validation.

The split and the random training windows are nanoGPT's (github.com/karpathy/nanoGPT,
data/shakespeare_char/prepare.py and train.py). Validation is one full pass.
"""

import re
from abc import abstractmethod
from typing import Any, ClassVar

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor
from torch.nn.functional import pad
from torch.utils.data import Dataset

from ablate import memory
from ablate.config.rules import Count, Fraction, Vocabulary
from ablate.data import IGNORED, Data, digest, source
from ablate.data.loader import Batch, Order, Request, Share, Windows
from ablate.data.tokenizer import BLANKS, Tokenizer, TokenizerName, tokenizer_maker
from ablate.errors import UserError


class RandomWindows(Dataset[Batch]):
    """Windows of a token sequence; an index is the position of a window's first token."""

    def __init__(self, tokens: Tensor, length: int) -> None:
        self.windows = tokens.unfold(0, length + 1, 1)

    def __len__(self) -> int:
        return len(self.windows)

    def __getitem__(self, request: Request) -> Batch:
        window = self.windows[request.indices].long()
        return {"tokens": window[:, :-1], "targets": window[:, 1:]}


class AllWindows(Dataset[Batch]):
    """Consecutive windows in which every token but the very first is a target exactly once.

    The last window is padded with token 0 and with ignored targets.
    """

    def __init__(self, tokens: Tensor, length: int) -> None:
        missing = -(len(tokens) - 1) % length
        self.tokens = pad(tokens[:-1], (0, missing)).view(-1, length)
        self.targets = pad(tokens[1:], (0, missing), value=IGNORED).view(-1, length)

    def __len__(self) -> int:
        return len(self.tokens)

    def __getitem__(self, request: Request) -> Batch:
        rows = request.indices
        return {"tokens": self.tokens[rows].long(), "targets": self.targets[rows].long()}


class Cut:
    """How a text becomes examples: here, windows whose every token has the next one as its target.

    A task may request others: `Task.configure_data` stores one in `Data.task_settings`. seq_len:
    positions of an example.
    """

    def tokenizer(self, plain: Tokenizer) -> Tokenizer:
        """A tokenizer of the text, extended by any special tokens of the examples."""
        return plain

    def tokens(self, seq_len: int) -> int:
        """The number of positions of an example that hold text."""
        return seq_len

    def least(self, seq_len: int) -> int:
        """The least number of tokens of a split."""
        return seq_len + 1

    def splits(self, tokens: dict[str, Tensor], data: "TextData") -> dict[str, Dataset[Any]]:
        """All windows of the training tokens, and consecutive ones of the validation tokens."""
        return {
            "train": RandomWindows(tokens["train"], data.seq_len),
            "val": AllWindows(tokens["val"], data.seq_len),
        }

    def sizes(self) -> dict[str, Any]:
        """Sizes that a model needs beside the vocabulary and the length."""
        return {}

    def from_text(self, text: str, tokenizer: Tokenizer) -> Batch:
        """A user's text as the model reads it: a batch of size 1."""
        return {"tokens": torch.tensor([tokenizer.encode(text)])}


SEARCHED = 64  # validation windows, for one to draw


class TextData(Data):
    """Base of the texts: a subclass reads the text.

    tokenizer: char, byte or bpe, made from the training split alone, or hf:NAME_OR_PATH.
    vocab_size: of bpe, null for 1024 or as many as the training text gives; must be null for the
    others, whose vocabulary is fixed.
    seq_len: tokens of a window.
    val_fraction: share of the characters, taken from the end, for validation.

    An epoch has as many windows as fit into the training split side by side.
    """

    kind: ClassVar[str] = "text"
    reads_text: ClassVar[bool] = True
    for_training: ClassVar[tuple[str, ...]] = ("tokenizer", "vocab_size")
    tokenizer: Tokenizer
    task_settings: Cut | None

    def __init__(
        self,
        *,
        tokenizer: TokenizerName,
        vocab_size: Vocabulary | None,
        seq_len: Count,
        batch_size: Count,
        val_fraction: Fraction,
        seed: int,
    ) -> None:
        super().__init__(batch_size=batch_size, seed=seed)
        self.make_tokenizer = tokenizer_maker(self.checked("tokenizer", tokenizer))
        self.vocab_size = self.checked("vocab_size", vocab_size)
        if vocab_size is not None and tokenizer != "bpe":
            raise UserError(
                f"data.vocab_size={vocab_size}: data.tokenizer={tokenizer} has a fixed "
                "vocabulary; use data.tokenizer=bpe, or data.vocab_size=null"
            )
        self.seq_len = self.checked("seq_len", seq_len)
        self.val_fraction = self.checked("val_fraction", val_fraction)

    @property
    def cut(self) -> Cut:
        """The cut that the task requested, or next-token prediction."""
        return self.task_settings or Cut()

    @abstractmethod
    def read(self) -> str:
        """The whole text."""

    @abstractmethod
    def content_hash(self) -> str:
        """A hash of the text, independent of its location."""

    def fingerprint(self) -> str:
        return digest(self.content_hash(), "last", self.val_fraction)

    def load(self) -> None:
        text = self.read()
        cut = int(len(text) * (1 - self.val_fraction))
        if not 0 < cut < len(text):
            raise UserError(
                f"data.val_fraction={self.val_fraction}: a text of {len(text)} characters gives "
                f"{cut} to training and {len(text) - cut} to validation"
            )
        training, validation = text[:cut], text[cut:]
        if isinstance(self.measured_as, TextData):
            self.tokenizer = self.measured_as.tokenizer
        else:
            plain = self.make_tokenizer(training, validation, self.vocab_size)
            self.tokenizer = self.cut.tokenizer(plain)
        self.texts = {"train": training, "val": validation}
        self.tokens = {split: self._tokens(split) for split in self.texts}
        self.splits = self.cut.splits(self.tokens, self)
        self.sizes = {"vocab_size": self.tokenizer.vocab_size, "length": self.seq_len}
        self.sizes |= self.cut.sizes()

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

    def sequences(self, name: str) -> list[NDArray[np.int32]]:
        return [self.tokens["train"].numpy()]

    def characters_per_token(self, split: str) -> float:
        """Mean number of characters per predicted token, over one full pass.

        The first token of a split is given, not predicted, and neither are its characters.
        """
        tokens = self.tokens[split]
        first = len(self.tokenizer.decode([int(tokens[0])]))
        return (len(self.texts[split]) - first) / (len(tokens) - 1)

    def example(self, index: int = 0) -> dict[str, Any]:
        """A validation window, with `labels`: its tokens in printable characters."""
        return self._labelled(super().example(index))

    def drawn(self, count: int) -> list[int]:
        """Of the first windows those with the fewest blanks, such as indentation."""

        def blanks(index: int) -> int:
            return sum(not label.strip(BLANKS) for label in self.example(index)["labels"])

        return sorted(super().drawn(SEARCHED), key=blanks)[:count]

    def from_text(self, text: str) -> dict[str, Any]:
        """A user's text as the model reads it, a batch of size 1 with `labels`."""
        return self._labelled(self.cut.from_text(text, self.tokenizer))

    def _labelled(self, batch: dict[str, Any]) -> dict[str, Any]:
        return batch | {"labels": self.tokenizer.labels(batch["tokens"][0].tolist())}

    def _tokens(self, split: str) -> Tensor:
        tokens = torch.from_numpy(self.tokenizer.array(self.texts[split]))
        if len(tokens) < (least := self.cut.least(self.seq_len)):
            raise UserError(
                f"data.seq_len={self.seq_len}: the {split} split has {len(tokens)} tokens and "
                f"needs at least {least} (the text is split by data.val_fraction="
                f"{self.val_fraction})"
            )
        return tokens


class Text(TextData):
    """A file or a download, plain or gzip.

    path: a file, or an http(s) URL that is downloaded once.
    sha256: of the file before decompression; null accepts any.
    """

    def __init__(self, *, path: str, sha256: str | None, **options: Any) -> None:
        super().__init__(**options)
        if sha256 is not None and not re.fullmatch(r"[0-9a-f]{64}", str(sha256)):
            raise UserError(f"data.sha256={sha256}: must be 64 hexadecimal digits or null")
        self.path, self.sha256 = self.checked("path", path), sha256

    def read(self) -> str:
        return source.text(source.read(self.path, self.sha256), self.path)

    def content_hash(self) -> str:
        return source.content_hash(self.path, self.sha256)
