"""GPT: a decoder-only language model.

Radford et al. 2018, "Improving language understanding by generative pre-training", and 2019,
"Language models are unsupervised multitask learners" (pre-norm, scaled initialisation). The output
map is the embedding table when tied: Press and Wolf 2017, https://arxiv.org/abs/1608.05859.
"""

from typing import Annotated, Any

import torch
from jaxtyping import Bool, Float, Int
from torch import Tensor

from ablate.config.facts import Conflict
from ablate.config.rules import HubName, KeysOf, Positive, Width
from ablate.model.base import Freeze, LanguageModel
from ablate.model.embedding import MakeEmbedding
from ablate.model.embedding.learned import Learned
from ablate.model.layers.layer import Cache
from ablate.model.layers.linear import Linear
from ablate.model.layers.output import logits
from ablate.model.layers.stack import Stack


class GPT(LanguageModel):
    """Tokens in, logits of the next token out; with `classes`, logits of the class of a text from
    the output at its last token (Radford et al. 2018, section 3.2); one class is the score of a
    reward model.

    `stack` holds the keys of Stack.
    """

    outputs = ("next tokens", "classes", "scores")
    causal = True
    conflicts = (
        Conflict(
            lambda c: (
                c("model.freeze") == "encoder" and c.predicts_tokens and c("model.tie_embeddings")
            ),
            "model.freeze=encoder leaves nothing to train for task={task}, which predicts tokens,"
            " since with model.tie_embeddings=true the output map is the table of tokens; set"
            " model.tie_embeddings=false",
        ),
    )
    positions = "layers"
    kinds = ("text", "texts with classes", "preferences", "recall")
    embeddings = ("embedding.", "stack.pos_enc.")

    def __init__(
        self,
        *,
        vocab_size: int,
        length: int,
        dim: Width,
        tie_embeddings: bool,
        freeze: Freeze,
        pretrained: HubName | None,
        classes: int | None = None,
        logit_softcap: Positive | None = None,
        embedding: MakeEmbedding = Learned,
        **stack: Annotated[Any, KeysOf("ablate.model.layers.stack.Stack")],
    ):
        super().__init__()
        self.length, self.classes, self.pretrained = length, classes, pretrained
        self.logit_softcap = logit_softcap
        self.embedding = embedding(vocab_size, dim)
        self.stack = Stack(dim, length=length, causal=True, **stack)
        tied = tie_embeddings and classes is None
        self.head = None if tied else Linear(dim, classes or vocab_size, bias=False)
        self.freeze(freeze)

    def forward(
        self,
        tokens: Int[Tensor, "b i"],
        keep: Bool[Tensor, "b j"] | None = None,
        *,
        cache: Cache | None = None,
    ) -> Float[Tensor, "b i vocab_size"] | Float[Tensor, "b classes"]:
        """tokens: with a cache only the new ones; keep: True = real, padding last."""
        x = self.stack(self.embedding(tokens), keep=keep, cache=cache)
        if self.classes is not None:
            assert keep is not None
            x = x[torch.arange(len(x)), keep.sum(1) - 1]
        return logits(x, self.head, self.embedding.weight, self.logit_softcap)

    def new_cache(self) -> Cache | None:
        return Cache() if self.stack.cacheable else None
