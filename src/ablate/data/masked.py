"""Masked text for BERT (Devlin et al. 2019, sections 3.1 and A.1).

    [CLS] the stat[MASK]ment is [SEP] executed b[MASK] the [SEP]

https://arxiv.org/abs/1810.04805. A fixed number of text tokens is sampled in every example
(0.15 of them) and predicted; in the input most are replaced by [MASK] (0.8), some by another token
of the text's vocabulary (0.1), and the rest is kept. In training they are sampled again in every
epoch, as in Liu et al. 2019 (https://arxiv.org/abs/1907.11692), in validation only once.

A running text has no sentences, so segments are spans of tokens: the first ends anywhere in the
middle half of the example, and the second is the span that follows, or, for half of the examples, a
span of that length from elsewhere in the split, not touching these two. Without pairs an example is
one span: [CLS] text [SEP].
"""

import re
from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from itertools import groupby
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor
from torch.utils.data import Dataset

from ablate.config.rules import Fraction, Probability
from ablate.data import Batch, Request
from ablate.data.interface import Sizes
from ablate.data.shards import TokenIds
from ablate.data.text import Cut, TokenData
from ablate.data.tokenizer import Tokenizer
from ablate.errors import UserError
from ablate.random.seeding import derive

SPECIALS = ("[CLS]", "[SEP]", "[MASK]")
VALIDATION = derive(0, "masked", "val")  # the same tokens are masked for every seed of a run


class WithSpecials(Tokenizer):
    """A tokenizer with [CLS], [SEP] and [MASK] after its own tokens.

    Their names in a training text are ordinary text (`array`), but in text typed by a user they
    are special tokens (`encode`). text_size: number of tokens of the plain tokenizer.
    """

    def __init__(self, plain: Tokenizer) -> None:
        self.plain, self.text_size = plain, plain.vocab_size
        self.unknown_id = plain.unknown_id
        self.vocab_size = self.text_size + len(SPECIALS)
        self.cls, self.sep, self.mask = range(self.text_size, self.vocab_size)

    def array(self, text: str) -> NDArray[np.int32]:
        return self.plain.array(text)

    def arrays(self, pieces: Iterable[str]) -> Iterator[NDArray[np.int32]]:
        return self.plain.arrays(pieces)

    def restores(self, text: str, tokens: NDArray[np.int32]) -> bool:
        return self.plain.restores(text, tokens)

    def state(self) -> dict[str, Any]:
        """That of the plain tokenizer: who restores it adds the special tokens."""
        return self.plain.state()

    def encode(self, text: str) -> list[int]:
        pieces = re.split(f"({'|'.join(map(re.escape, SPECIALS))})", text)
        return [token for piece in pieces for token in self._encoded(piece)]

    def _encoded(self, piece: str) -> list[int]:
        if piece in SPECIALS:
            return [self.text_size + SPECIALS.index(piece)]
        return self.plain.encode(piece) if piece else []

    def decode(self, tokens: Iterable[int]) -> str:
        runs = groupby(tokens, key=lambda token: token >= self.text_size)
        return "".join(
            "".join(SPECIALS[token - self.text_size] for token in run)
            if special
            else self.plain.decode(run)
            for special, run in runs
        )


@dataclass(frozen=True)
class Masked(Cut):
    """The keys of task=masked_lm that shape its examples.

    next_sentence: two segments, or one. mask_rate: share of the tokens that is predicted.
    mask_share, random_share: shares of these that are replaced by [MASK] and by another token.
    """

    next_sentence: bool
    mask_rate: Fraction
    mask_share: Probability
    random_share: Probability

    def tokenizer(self, plain: Tokenizer) -> Tokenizer:
        return WithSpecials(plain)

    def tokens(self, seq_len: int) -> int:
        return seq_len - (3 if self.next_sentence else 2)

    def least(self, seq_len: int) -> int:
        """The least tokens of a split: a second segment from elsewhere needs room."""
        return 3 * seq_len if self.next_sentence else seq_len

    def predicted(self, seq_len: int) -> int:
        """Predicted tokens per example, the same number in each: shapes are fixed."""
        text = self.tokens(seq_len)
        if not (count := round(self.mask_rate * text)):
            raise UserError(
                f"task.mask_rate={self.mask_rate}: of the {text} tokens that data.seq_len={seq_len}"
                f" leaves for text it masks none; at least {0.5 / text:.2g} masks one"
            )
        return count

    def sizes(self, vocab_size: int, length: int) -> Sizes:
        return Sizes(
            vocab_size=vocab_size,
            length=length,
            segments=2 if self.next_sentence else 1,
            next_sentence=self.next_sentence,
        )

    def examples(self, tokens: TokenIds, data: TokenData, *, training: bool) -> Dataset[Any]:
        """All spans of the training tokens; consecutive spans of the validation tokens, without an
        incomplete last one."""
        assert isinstance(data.tokenizer, WithSpecials)
        return MaskedText(
            tokens,
            step=1 if training else self.tokens(data.seq_len),
            masked=self,
            seq_len=data.seq_len,
            tokenizer=data.tokenizer,
            seed=data.seed if training else None,
        )

    def from_text(self, text: str, tokenizer: Tokenizer) -> Batch:
        """[CLS] text [SEP]; the text may contain [MASK], and [SEP] before a second segment."""
        assert isinstance(tokenizer, WithSpecials)
        tokens = torch.tensor([[tokenizer.cls, *tokenizer.encode(text), tokenizer.sep]])
        masked = (tokens[0] == tokenizer.mask).nonzero().T
        batch = {"tokens": tokens, "positions": masked}
        if not self.next_sentence:
            return batch
        ends = (tokens == tokenizer.sep).long()
        return batch | {"segments": (ends.cumsum(1) - ends).clamp(max=1)}


class MaskedText(Dataset[Batch]):
    """step: tokens from the start of an example to that of the next.

    tokens: b i. positions: b m, those to predict. targets: b m, their original tokens.

    With pairs also segments: b i, 0 or 1, and next: b, 0 if the second segment follows the first,
    1 if it is from elsewhere (as in the published code). An example is sampled for (seed, epoch,
    start), so it is the same in any batch. seed None: the same in every epoch.
    """

    def __init__(
        self,
        text: TokenIds,
        *,
        step: int,
        masked: Masked,
        seq_len: int,
        tokenizer: WithSpecials,
        seed: int | None,
    ) -> None:
        self.text, self.step, self.masked, self.seq_len = text, step, masked, seq_len
        self.tokenizer, self.seed = tokenizer, seed
        self.size, self.predicted = masked.tokens(seq_len), masked.predicted(seq_len)

    def __len__(self) -> int:
        return (len(self.text) - self.size) // self.step + 1

    def __getitem__(self, request: Request) -> Batch:
        which, what, others, pair = self._drawn(request)
        starts, offset = request.indices[:, None] * self.step, torch.arange(self.size)
        first, where = torch.full_like(starts, self.size), starts + offset
        follows: dict[str, Tensor] = {}
        if self.masked.next_sentence:
            first, where, follows = self._pairs(starts, offset, pair)
        text = self.text[where].long()
        chosen = which.topk(self.predicted, dim=1).indices
        targets = text.gather(1, chosen)
        text = text.scatter(1, chosen, self._hidden(targets, what, others))
        positions = 1 + offset + (offset >= first)
        tokens = torch.full((len(text), self.seq_len), self.tokenizer.sep)
        tokens[:, 0] = self.tokenizer.cls
        tokens.scatter_(1, positions, text)
        masked = positions.gather(1, chosen)
        return {"tokens": tokens, "positions": masked, "targets": targets} | follows

    def _drawn(self, request: Request) -> tuple[Tensor, ...]:
        """Numbers in [0, 1), b n each: for the masked positions, kinds of replacement, other tokens
        and pairs."""
        seed = VALIDATION if self.seed is None else derive(self.seed, "masked", request.epoch)
        widths = [self.size, self.predicted, self.predicted, 3]
        return uniform(seed, request.indices, sum(widths)).split(widths, dim=1)

    def _pairs(
        self, starts: Tensor, offset: Tensor, drawn: Tensor
    ) -> tuple[Tensor, Tensor, dict[str, Tensor]]:
        """Length of the first segment, b 1; text positions of both, b n; `segments` and `next`."""
        least, most = self.size // 4, self.size - self.size // 4
        first = least + (drawn[:, :1] * (most - least + 1)).long()
        elsewhere = drawn[:, 1:2] < 0.5
        # Cyclically, from one example's length after the start to as much before it.
        count = len(self.text) - self.size + 1
        step = self.size + (drawn[:, 2:] * (count - 2 * self.size + 1)).long()
        second = torch.where(elsewhere, (starts + step) % count, starts + first)
        where = torch.where(offset < first, starts + offset, second + offset - first)
        segments = (torch.arange(self.seq_len) > first + 1).long()
        return first, where, {"segments": segments, "next": elsewhere[:, 0].long()}

    def _hidden(self, targets: Tensor, what: Tensor, which: Tensor) -> Tensor:
        """The input tokens at the predicted positions: masked, random or unchanged."""
        mask, random = self.masked.mask_share, self.masked.random_share
        others = (which * self.tokenizer.text_size).long()
        hidden = torch.where(what < mask + random, others, targets)
        return hidden.masked_fill(what < mask, self.tokenizer.mask)


def uniform(seed: int, rows: Tensor, count: int) -> Tensor:
    """b -> b count: numbers in [0, 1) that depend on the seed, the row's number and the column.

    The row * count + column + 1-th output of splitmix64, which computes any of them at once: Steele
    et al. 2014, "Fast splittable pseudorandom number generators", figures 16 and 17.
    """
    numbers = rows.numpy()[:, None] * count + np.arange(1, count + 1)
    x = np.uint64(seed) + numbers.astype(np.uint64) * np.uint64(0x9E3779B97F4A7C15)
    x = (x ^ (x >> np.uint64(30))) * np.uint64(0xBF58476D1CE4E5B9)
    x = (x ^ (x >> np.uint64(27))) * np.uint64(0x94D049BB133111EB)
    x ^= x >> np.uint64(31)
    return torch.from_numpy((x >> np.uint64(11)) * 2.0**-53)
