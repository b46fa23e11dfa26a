"""GPT that reads a source before it writes a target: one stack over both, without an encoder.

Dong et al. 2019, section 2.3, https://arxiv.org/abs/1905.03197; Raffel et al. 2020, section 3.2.1
(prefix LM), https://arxiv.org/abs/1910.10683; text to speech so is Bark's way
(https://github.com/suno-ai/bark). Every source has the same number of positions, those behind its
end masked, so that a target begins at the same position in every batch.
"""

from typing import Unpack

import torch
import torch.nn.functional as F
from jaxtyping import Bool, Float, Int
from torch import Tensor, nn

from ablate.config.rules import Positive, Width
from ablate.data.pairs import PAD
from ablate.errors import UserError
from ablate.model.base import ModelTraits, Seq2Seq, State
from ablate.model.embedding import MakeEmbedding
from ablate.model.embedding.learned import Learned
from ablate.model.layers.layer import Cache
from ablate.model.layers.linear import Linear, logits
from ablate.model.layers.stack import Stack, StackKeys, encodings


class GPTState(State):
    """The embedded source and target so far, which of them are not padding, and their cache
    (None: all of them are read again at every step)."""

    def __init__(
        self, read: Float[Tensor, "b i d"], keep: Bool[Tensor, "b j"], cache: Cache | None
    ) -> None:
        self.read, self.keep, self.cache = read, keep, cache

    def select(self, rows: Int[Tensor, " rows"]) -> None:
        self.read, self.keep = self.read[rows], self.keep[rows]
        if self.cache is not None:
            self.cache.select(rows)


class GPTSeq2Seq(Seq2Seq):
    """`stack`: keys of Stack. Each side has its own embedding table."""

    outputs = ("target tokens",)
    traits = ModelTraits(causal=True, pads=True, source_first=True)
    positions = "layers"
    embeddings = ("source_embedding.", "target_embedding.", *encodings("stack"))

    def __init__(
        self,
        *,
        source_vocab: int,
        target_vocab: int,
        source_length: int,
        target_length: int,
        joint: bool,
        dim: Width,
        tie_embeddings: bool,
        logit_softcap: Positive | None = None,
        embedding: MakeEmbedding = Learned,
        **stack: Unpack[StackKeys],
    ):
        super().__init__()
        self.sources, self.logit_softcap = source_length, logit_softcap
        self.source_embedding = embedding(source_vocab, dim, reads=("source",))
        self.target_embedding = embedding(target_vocab, dim, reads=("target_in",))
        self.stack = Stack(
            dim, length=source_length + target_length, causal=True, source=source_length, **stack
        )
        self.head = None if tie_embeddings else Linear(dim, target_vocab, bias=False)

    @property
    def cross(self) -> list[nn.Module]:
        return [module for module in self.stack.modules() if hasattr(module, "recorded")]

    def to_source(
        self, weights: Float[Tensor, "b h i j"], sources: int
    ) -> Float[Tensor, "b h i-{self.sources} {sources}"]:
        return weights[:, :, self.sources :, :sources]

    def forward(
        self, source: Int[Tensor, "b j"], target_in: Int[Tensor, "b i"]
    ) -> Float[Tensor, "b i target_vocab"]:
        read, keep = self._read(source)
        x = torch.cat([read, self.target_embedding(target_in)], dim=1)
        keep = torch.cat([keep, target_in != PAD], dim=1)
        return self._logits(self.stack(x, keep=keep)[:, self.sources :])

    def encode(self, source: Int[Tensor, "b j"]) -> GPTState:
        read, keep = self._read(source)
        if not self.stack.cacheable:
            return GPTState(read, keep, None)
        cache = Cache()
        self.stack(read, keep=keep, cache=cache)
        return GPTState(read[:, :0], keep, cache)

    def step(self, tokens: Int[Tensor, " b"], state: State) -> Float[Tensor, "b target_vocab"]:
        assert isinstance(state, GPTState)
        new = self.target_embedding(tokens[:, None])
        state.keep = F.pad(state.keep, (0, 1), value=True)
        if state.cache is None:
            new = state.read = torch.cat([state.read, new], dim=1)
        return self._logits(self.stack(new, keep=state.keep, cache=state.cache)[:, -1])

    def _read(
        self, source: Int[Tensor, "b j"]
    ) -> tuple[Float[Tensor, "b {self.sources} d"], Bool[Tensor, "b {self.sources}"]]:
        """The embedded source, and which of its positions are not padding."""
        if (beyond := source.shape[1] - self.sources) > 0:
            raise UserError(
                f"a source has {source.shape[1]} tokens, its end counted, and the model was"
                f" trained for {self.sources} at most"
            )
        source = F.pad(source, (0, -beyond), value=PAD)
        return self.source_embedding(source), source != PAD

    def _logits(self, x: Float[Tensor, "*n d"]) -> Float[Tensor, "*n target_vocab"]:
        return logits(x, self.head, self.target_embedding.weight, self.logit_softcap)
