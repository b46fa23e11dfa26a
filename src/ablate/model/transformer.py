"""Transformer: an encoder reads the source, a decoder with cross-attention writes the target.

Vaswani et al. 2017, "Attention is all you need", section 3, https://arxiv.org/abs/1706.03762. There
both sides and the output projection share one table (section 3.4): tie_embeddings and
share_embeddings.
The factor sqrt(d) on the embeddings (section 3.4) is model.embedding_scale=sqrt.
"""

from collections.abc import Callable, Mapping, Sequence
from functools import partial
from typing import Any, TypedDict, Unpack

import torch
from jaxtyping import Float, Int
from torch import Tensor, nn

from ablate.config.conflicts import Conflict
from ablate.config.rules import Depth, Positive, Width
from ablate.data.pairs import PAD
from ablate.errors import UserError
from ablate.model.attention import Score
from ablate.model.base import ModelTraits, Seq2Seq, State
from ablate.model.embedding import MakeEmbedding
from ablate.model.embedding.learned import Learned
from ablate.model.layers.layer import Cache, Memory
from ablate.model.layers.linear import Linear, logits
from ablate.model.layers.stack import SharedKeys, Stack, encodings
from ablate.model.mask import Mask
from ablate.model.mask.none import NoMask

# The message of the check of a composition, and of the constructor.
ONE_VOCABULARY = (
    "model.share_embeddings=true needs one vocabulary for both sides, and {data} has two; set"
    " model.share_embeddings=false"
)


class SideKeys(TypedDict):
    """The keys of model.encoder and model.decoder."""

    depth: Depth


class TransformerState(State):
    """The encoded sources, the target tokens written so far, and their cache."""

    def __init__(self, memory: Memory) -> None:
        self.memory = memory
        self.cache = Cache()
        self.written = torch.empty_like(memory.keep[:, :0], dtype=torch.long)

    def select(self, rows: Int[Tensor, " rows"]) -> None:
        self.memory.select(rows)
        self.cache.select(rows)
        self.written = self.written[rows]


class Transformer(Seq2Seq):
    """`encoder` and `decoder`: keys of Stack of one side; `stack`: of both.

    `attention` makes the score of both self-attentions, and of cross-attention unless
    `cross_attention` does; `mask` is that of the decoder, the encoder attends to every token.
    layers: as in Stack, for each side.
    """

    outputs = ("target tokens",)
    traits = ModelTraits(causal=True, attends=True, pads=True)
    conflicts = (
        Conflict(
            lambda c: c.trait("model.mixer", "causal") is True,
            "the encoder of model={model} reads in both directions, and model.mixer={model.mixer}"
            " only earlier positions; use model.mixer=attention, or model=gpt_seq2seq",
        ),
        Conflict(
            lambda c: not c("model.residual") and not c.declares("model.cross_attention", "query"),
            "model.cross_attention={model.cross_attention} does not read the query, so that with"
            " model.residual=false nothing of the target would reach the output; set"
            " model.residual=true",
        ),
        Conflict(
            lambda c: (
                c.get("model.cross_attention", None) is None
                and not c("model.residual")
                and not c.declares("model.attention", "query")
            ),
            "model.attention={model.attention}, also the score of cross-attention, does not read"
            " the query, so with model.residual=false the output would not depend on the target;"
            " set model.residual=true, or model.cross_attention=scaled_dot",
        ),
        Conflict(
            lambda c: c("model.share_embeddings") and not c("data.joint"),
            "model.share_embeddings=true needs one vocabulary for both sides; set data.joint=true",
        ),
        Conflict(
            lambda c: (
                c("model.share_embeddings") and not c.joint and c.get("data.joint", None) is None
            ),
            ONE_VOCABULARY.format(data="data={data}"),
        ),
    )
    positions = "layers"
    embeddings = (
        "source_embedding.",
        "target_embedding.",
        *encodings("encoder"),
        *encodings("decoder"),
    )

    def __init__(
        self,
        *,
        source_vocab: int,
        target_vocab: int,
        source_length: int,
        target_length: int,
        joint: bool,
        dim: Width,
        encoder: SideKeys,
        decoder: SideKeys,
        attention: Callable[..., Score],
        mask: Callable[..., Mask],
        tie_embeddings: bool,
        share_embeddings: bool,
        logit_softcap: Positive | None = None,
        cross_attention: Callable[..., Score] | None = None,
        layers: Sequence[Mapping[str, Any]] = (),
        embedding: MakeEmbedding = Learned,
        **stack: Unpack[SharedKeys],
    ):
        super().__init__()
        if share_embeddings and not joint:
            raise UserError(ONE_VOCABULARY.format(data="this data"))
        self.logit_softcap = logit_softcap
        both = ("source", "target_in") if share_embeddings else ("target_in",)
        self.target_embedding = embedding(target_vocab, dim, reads=both)
        self.source_embedding = (
            None if share_embeddings else embedding(source_vocab, dim, reads=("source",))
        )
        both_sides = [
            {key: value for key, value in keys.items() if key not in ("mask", "cross_attention")}
            for keys in layers
        ]
        of_decoder = [
            {
                **keys,
                "cross_attention": cross_score({"attention": attention, **keys}, cross_attention),
            }
            for keys in layers
        ]
        self.encoder = Stack(
            dim,
            length=source_length,
            attention=attention,
            mask=NoMask,
            causal=False,
            layers=both_sides,
            **encoder,
            **stack,
        )
        self.decoder = Stack(
            dim,
            length=target_length,
            attention=attention,
            mask=mask,
            causal=True,
            cross_attention=cross_score({"attention": attention}, cross_attention),
            layers=of_decoder,
            memory_length=source_length,
            **decoder,
            **stack,
        )
        self.head = None if tie_embeddings else Linear(dim, target_vocab, bias=False)

    @property
    def cross(self) -> list[nn.Module]:
        return [*self.decoder.cross]

    def forward(
        self, source: Int[Tensor, "b j"], target_in: Int[Tensor, "b i"]
    ) -> Float[Tensor, "b i target_vocab"]:
        return self._decode(target_in, self._read(source))

    def encode(self, source: Int[Tensor, "b j"]) -> TransformerState:
        return TransformerState(self._read(source))

    def step(self, tokens: Int[Tensor, " b"], state: State) -> Float[Tensor, "b target_vocab"]:
        """Without a cache (see Stack.cacheable) all tokens written so far are read again."""
        assert isinstance(state, TransformerState)
        new = tokens[:, None]
        if not self.decoder.cacheable:
            state.written = torch.cat([state.written, new], dim=1)
            return self._decode(state.written, state.memory)[:, -1]
        return self._decode(new, state.memory, cache=state.cache)[:, -1]

    def _read(self, source: Int[Tensor, "b j"]) -> Memory:
        """The memory that the decoder reads."""
        table = self.target_embedding if self.source_embedding is None else self.source_embedding
        keep = source != PAD
        return self.decoder.remember(self.encoder(table(source), keep=keep), keep)

    def _decode(
        self, target_in: Int[Tensor, "b i"], memory: Memory, cache: Cache | None = None
    ) -> Float[Tensor, "b i target_vocab"]:
        """target_in: with a cache only the new tokens."""
        # Padding comes last: if nothing looks ahead, no token attends to it.
        real = None if cache is not None else target_in != PAD
        keep = real if self.decoder.look_ahead else None
        table = self.target_embedding
        x = self.decoder(table(target_in), keep=keep, counted=real, cache=cache, memory=memory)
        return logits(x, self.head, table.weight, self.logit_softcap)


def cross_score(
    keys: Mapping[str, Any], cross_attention: Callable[..., Score] | None
) -> Callable[..., Score]:
    """The factory of the score of a layer's cross-attention: the layer's own, the model's, or that
    of its self-attention."""
    chosen = keys.get("cross_attention") or cross_attention
    if chosen is None:
        return keys["attention"]
    return partial(chosen, slot="model.cross_attention")
