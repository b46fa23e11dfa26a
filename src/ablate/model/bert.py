"""BERT: a bidirectional Transformer encoder (Devlin et al. 2019).

https://arxiv.org/abs/1810.04805. Embeddings of tokens, positions and segments are summed and
normalized; the blocks are those of Vaswani et al. 2017 (post-norm). Masked tokens are predicted
through a dense layer and the embedding table, the next sentence from the pooled first token. Its
published settings are dim 768, depth 12, heads 12, dropout 0.1, norm_eps 1e-12.
"""

from typing import NamedTuple, Unpack

import torch
import torch.nn.functional as F
from jaxtyping import Bool, Float, Int, Shaped
from torch import Tensor, nn

from ablate.config.conflicts import Conflict
from ablate.config.rules import HubName, Width
from ablate.data import Data
from ablate.data.text_files import TextFiles
from ablate.model.base import Freeze, Model, ModelTraits
from ablate.model.embedding import MakeEmbedding
from ablate.model.embedding.learned import Learned
from ablate.model.layers.linear import Bias, Embedding, Linear, width_std
from ablate.model.layers.stack import Stack, StackKeys, encodings
from ablate.random.dropout import Dropout


class Predictions(NamedTuple):
    """Logits. next: follows or not; None without sentence pairs."""

    tokens: Float[Tensor, "b m vocab_size"]
    next: Float[Tensor, "b 2"] | None


class BERT(Model):
    """Tokens in, logits of the masked ones out. `stack`: keys of Stack.

    segments: number of segment types; 1: no segment embedding.
    next_sentence: whether to predict from the pooled state if the second segment follows the first.
    classes: number of classes of a text, predicted from the pooled state instead of masked tokens.
    """

    outputs = ("masked tokens", "classes")
    traits = ModelTraits(causal=False)
    conflicts = (
        Conflict(
            lambda c: (
                c.option("model.mask") == "prefix"
                and c("model.mask.size") > 1
                and (c.attribute("task", "output") == "classes" or c("task.next_sentence"))
            ),
            "model.mask={model.mask} lets the first token, whose state is that of the whole text,"
            " see only {model.mask.size} tokens (model.mask.size); use model.mask=none or causal,"
            " or predict only masked tokens (task.next_sentence=false)",
        ),
        Conflict(
            lambda c: (
                c("model.embedding_scale") != 1
                and c("model.norm") == "post"
                and c.attribute("pos_enc", "acts_in") != "input"
            ),
            "model.embedding_scale={model.embedding_scale} has no effect if model.norm=post"
            " normalizes the embeddings and pos_enc={pos_enc} adds nothing to them before; set"
            " model.embedding_scale=1.0",
        ),
    )
    positions = "layers"
    kinds = ("text", "texts with classes")
    embeddings = ("embedding.", "segment_embedding.", *encodings("stack"))
    heads = ("head.", "pooler.", "next_sentence.", "classifier.")

    def __init__(
        self,
        *,
        vocab_size: int,
        length: int,
        dim: Width,
        tie_embeddings: bool,
        freeze: Freeze,
        pretrained: HubName | None,
        segments: int = 1,
        next_sentence: bool = False,
        classes: int | None = None,
        embedding: MakeEmbedding = Learned,
        **stack: Unpack[StackKeys],
    ):
        super().__init__()
        self.length, self.pretrained = length, pretrained
        self.embedding = embedding(vocab_size, dim)
        self.segment_embedding = Embedding(segments, dim) if segments > 1 else None
        self.stack = Stack(dim, length=length, causal=False, embedding_norm=True, **stack)
        std, bias = stack["init_std"] or width_std(dim), stack["bias"]
        norm: nn.Module = nn.Identity()
        if stack["norm"] != "none":
            norm = stack["norm_type"](dim, bias=bias, eps=stack["norm_eps"])
        self.head: TokenHead | None = None
        if classes is None:
            self.head = TokenHead(
                vocab_size, dim, norm=norm, tied=tie_embeddings, bias=bias, std=std
            )
        self.pooler = self.next_sentence = self.classifier = None
        if next_sentence or classes is not None:
            self.pooler = Pooler(dim, bias=bias, std=std)
        if next_sentence:
            self.next_sentence = Linear(dim, 2, bias=bias, std=std)
        if classes is not None:
            self.dropout = Dropout(stack["dropout"])
            self.classifier = Linear(dim, classes, bias=bias, std=std)
        self.freeze(freeze)

    @classmethod
    def configure_data(cls, data: Data) -> None:
        """Put labeled texts between [CLS] and [SEP]; masked texts have these anyway."""
        if isinstance(data, TextFiles):
            data.specials = True

    def forward(
        self, tokens: Int[Tensor, "b i"], *read: Shaped[Tensor, "b _"]
    ) -> Predictions | Float[Tensor, "b classes"]:
        """`predict`, or `classify` in a model with classes."""
        if self.classifier is None:
            return self.predict(tokens, *read)
        return self.classify(tokens, *read)

    def classify(
        self, tokens: Int[Tensor, "b i"], keep: Bool[Tensor, "b i"]
    ) -> Float[Tensor, "b classes"]:
        """keep: True = not padding."""
        assert self.pooler is not None
        assert self.classifier is not None
        position = 0 if self.stack.look_ahead else None  # the position that `summary` reads
        pooled = self.pooler(self.summary(self.encode(tokens, keep=keep, position=position), keep))
        return self.classifier(self.dropout(pooled))

    def predict(
        self,
        tokens: Int[Tensor, "b i"],
        positions: Int[Tensor, "b m"],
        segments: Int[Tensor, "b i"] | None = None,
        *,
        keep: Bool[Tensor, "b i"] | None = None,
    ) -> Predictions:
        """positions: those to predict; the others as in `encode`."""
        x = self.encode(tokens, segments, keep=keep)
        assert self.head is not None
        hidden = x.gather(1, positions[..., None].expand(-1, -1, x.shape[-1]))
        logits = self.head(hidden, self.embedding.weight)
        if self.pooler is None or self.next_sentence is None:
            return Predictions(logits, None)
        return Predictions(logits, self.next_sentence(self.pooler(self.summary(x, keep))))

    def encode(
        self,
        tokens: Int[Tensor, "b i"],
        segments: Int[Tensor, "b i"] | None = None,
        *,
        keep: Bool[Tensor, "b i"] | None = None,
        position: int | None = None,
    ) -> Float[Tensor, " b #i d"]:
        """The state of every token, or of the one at `position`.

        segments: None: all tokens are in the first. keep: True = not padding.
        """
        x = self.embedding(tokens)
        if self.segment_embedding is not None:
            kinds = torch.zeros_like(tokens) if segments is None else segments
            x = x + self.segment_embedding(kinds)
        return self.stack(x, keep=keep, position=position)

    def summary(
        self, x: Float[Tensor, "b i d"], keep: Bool[Tensor, "b _"] | None = None
    ) -> Float[Tensor, "b d"]:
        """The state that represents the whole text: that of [CLS].

        If the mask does not let [CLS] attend to later tokens, it is that of the last token, as in
        GPT (Radford et al. 2018).
        """
        if self.stack.look_ahead:
            return x[:, 0]
        if keep is None:
            return x[:, -1]
        last = (keep * torch.arange(keep.shape[1], device=keep.device)).argmax(1)
        return x[torch.arange(x.shape[0], device=x.device), last]


class TokenHead(nn.Module):
    """Logits of tokens: norm(gelu(W x + b)) E^T + c; E is the embedding table if `tied`."""

    def __init__(
        self, vocab_size: int, dim: int, *, norm: nn.Module, tied: bool, bias: bool, std: float
    ):
        super().__init__()
        self.dense = Linear(dim, dim, bias=bias, std=std)
        self.norm = norm
        self.bias = Bias(vocab_size) if tied and bias else nn.Identity()
        self.out = None if tied else Linear(dim, vocab_size, bias=bias, std=std)

    def forward(
        self, x: Float[Tensor, "b m d"], table: Float[Tensor, "vocab_size d"]
    ) -> Float[Tensor, "b m vocab_size"]:
        x = self.norm(F.gelu(self.dense(x)))
        if self.out is not None:
            return self.out(x)
        return self.bias(F.linear(x, table))


class Pooler(nn.Module):
    """tanh(W x + b)."""

    def __init__(self, dim: int, *, bias: bool, std: float):
        super().__init__()
        self.dense = Linear(dim, dim, bias=bias, std=std)

    def forward(self, x: Float[Tensor, "b d"]) -> Float[Tensor, "b d"]:
        return self.dense(x).tanh()
