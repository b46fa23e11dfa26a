"""GPT: a decoder-only language model.

Radford et al. 2018, "Improving language understanding by generative pre-training", and 2019,
"Language models are unsupervised multitask learners" (pre-norm, scaled initialization). The output
map is the embedding table when tied: Press and Wolf 2017, https://arxiv.org/abs/1608.05859.
"""

from collections.abc import Callable
from functools import partial
from typing import Unpack

import torch
import torch.nn.functional as F
from jaxtyping import Bool, Float, Int
from torch import Tensor, nn

from ablate.config.conflicts import Conflict
from ablate.config.keys import targets
from ablate.config.rules import Depth, HubName, Positive, Width
from ablate.config.view import CompositionView
from ablate.kernel.interface.documents import Documents
from ablate.model.base import Freeze, LanguageModel, ModelTraits
from ablate.model.connection.scaled import Scaled
from ablate.model.embedding import MakeEmbedding
from ablate.model.embedding.learned import Learned
from ablate.model.ffn import FeedForward
from ablate.model.layers.layer import Cache
from ablate.model.layers.linear import STD, Embedding, Linear, logits
from ablate.model.layers.scale import Scale
from ablate.model.layers.stack import Stack, StackKeys, encodings
from ablate.model.layers.token_before import Bigram, Smear
from ablate.model.mixer.attention import Attention

# Configs for which muP is not defined here: by the optimizer, over the width (model.base_dim), and
# over the depth (model.base_depth), each with the options that are required.
ADAMS = ("torch.optim.Adam", "torch.optim.AdamW", "timm.optim.Lion")
BY_ROLE = ("ablate.optimizer.ByRole", "ablate.optimizer.cautious.Cautious")
Undefined = dict[Callable[[CompositionView], bool], str]


def _other_optimizer(c: CompositionView) -> bool:
    """Whether a rule of the optimizer is not Adam's or Lion's, nor Muon's of matrices."""
    rules = targets(c("optimizer"))
    if rules[""] in BY_ROLE:
        del rules[""]
    if rules.get("matrix") == "torch.optim.Muon":
        del rules["matrix"]
    return not all(rule in ADAMS for rule in rules.values())


OPTIMIZERS: Undefined = {
    _other_optimizer: "Adam, AdamW and Lion, also by role, with Muon for matrices",
    lambda c: c("optimizer._target_") == ADAMS[0] and c("optimizer.weight_decay") != 0: (
        "optimizer.weight_decay=0 with Adam, whose decay is not decoupled; or optimizer=adamw"
    ),
}
OVER_WIDTH: Undefined = {
    lambda c: c.option("model.attention") != "scaled_dot": "model.attention=scaled_dot",
    lambda c: c.option("model.mixer") != "attention": "model.mixer=attention",
    lambda c: c.option("model.ffn") == "moe": "a model.ffn without a router",
    lambda c: c("model.ffn_dim") is not None: "model.ffn_dim=null, which grows with the width",
    lambda c: c("model.init_std") is not None: "model.init_std=null, which falls with the width",
    lambda c: c("model.mixer.output_gate") is not None: "model.mixer.output_gate=null",
    lambda c: c("model.mixer.qk_norm") == "l2": "model.mixer.qk_norm=null, rms, rms_all or layer",
    lambda c: c("model.embedding_scale") == "sqrt": "model.embedding_scale=1.0",
    lambda c: c.option("model.connection") == "hyper": "a model.connection other than hyper",
    lambda c: c.option("pos_enc") in ("relative", "learned_from_sinusoidal"): (
        "positions other than pos_enc=relative and learned_from_sinusoidal"
    ),
    lambda c: (
        c("model.unit_weights")
        or c("model.logit_scale")
        or c.option("model.connection") == "sphere"
        or c.option("model.ffn") == "swiglu_scaled"
    ): "models without parts of nGPT (unit_weights, logit_scale, sphere, swiglu_scaled)",
}
OVER_DEPTH: Undefined = {
    lambda c: c("model.norm") != "pre": "model.norm=pre",
    lambda c: not c("model.residual"): "model.residual=true",
    lambda c: c.option("model.connection") != "plain": "model.connection=plain",
    lambda c: c("model.init_depth_scale") is True: "model.init_depth_scale=false or zero",
}


# As above, of model.unit_weights.
WITH_UNITS: Undefined = {
    lambda c: c.option("model.mixer") != "attention": "model.mixer=attention",
    lambda c: c.option("model.ffn") == "moe": "networks without a router, unlike model.ffn=moe",
    lambda c: c.option("model.embedding") in ("normed", "word2vec"): (
        "model.embedding=learned or onehot"
    ),
    lambda c: c("model.init_std") is not None: "model.init_std=null: all rows have length 1",
    lambda c: c("model.init_depth_scale") is not True: (
        "model.init_depth_scale=true: all rows have length 1"
    ),
    # A mean of unit vectors is shorter.
    lambda c: c("task.ema") is not None: "task.ema=null",
    lambda c: c.declares("optimizer", "averages"): (
        "optimizers that do not average the weights, unlike optimizer={optimizer}"
    ),
}


def _undefined(key: str, what: str, table: Undefined) -> list[Conflict]:
    return [
        Conflict(
            lambda c, undefined=undefined: bool(c(key)) and undefined(c),  # type: ignore[misc]
            f"{key}={{{key}}}: {what} defined here for {defined}",
        )
        for undefined, defined in table.items()
    ]


class GPT(LanguageModel):
    """Tokens in, logits of the next token out; with `classes`, logits of the class of a text from
    the output at its last token (Radford et al. 2018, section 3.2); one class is a score of the
    text.

    base_dim: b, the width that the optimizer was tuned at; it then applies to width d (muP: Yang et
    al. 2022, table 8, https://arxiv.org/abs/2203.03466). Logits are times b / d, scores times the
    root of the ratio of the head widths; the rate of matrices within the blocks and their weight
    decay are those of `ablate.task.optimizing.optimizer_of`; None: the standard parametrization.
    base_heads: heads at width b; None: as many.
    base_depth: the depth that it was tuned at; it then applies to other depths (CompleteP with
    alpha = 1: Dey et al. 2025, https://arxiv.org/abs/2505.01618). Outputs of sublayers are
    times base_depth / depth before they are added; None: times 1.

    unit_weights: the rows of tables and linear maps, and the columns of maps into the residual
    stream, have length 1, at the start and after each step. logit_scale: every logit has a learned
    factor, at first 1 (nGPT: Loshchilov et al. 2024, sections 2.1 and 2.6,
    https://arxiv.org/abs/2410.01131).
    """

    outputs = ("next tokens", "classes", "scores")
    traits = ModelTraits(causal=True, documents=True, returns_states=True, embeds_values=True)
    conflicts = (
        Conflict(
            lambda c: (
                c("model.freeze") == "encoder" and c.predicts_tokens and c("model.tie_embeddings")
            ),
            "model.freeze=encoder leaves nothing to train for task={task}, which predicts tokens,"
            " since with model.tie_embeddings=true the output map is the table of tokens; set"
            " model.tie_embeddings=false",
        ),
        *_undefined("model.base_dim", "muP is", OPTIMIZERS | OVER_WIDTH),
        *_undefined("model.base_depth", "muP is", OPTIMIZERS | OVER_DEPTH),
        *_undefined("model.unit_weights", "unit weights are", WITH_UNITS),
        Conflict(
            lambda c: c("model.base_heads") is not None and c("model.base_dim") is None,
            "model.base_heads={model.base_heads} is of the model of width model.base_dim; set that,"
            " or model.base_heads=null",
        ),
    )
    positions = "layers"
    kinds = ("text", "texts with classes", "recall")
    embeddings = ("embedding.", "value_embeddings.", "bigram.", *encodings("stack"))
    heads = ("head.", "logit_scale.")

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
        base_dim: Width | None = None,
        base_heads: Width | None = None,
        base_depth: Depth | None = None,
        embedding: MakeEmbedding = Learned,
        smear: bool = False,
        bigram: Width | None = None,
        unit_weights: bool = False,
        logit_scale: bool = False,
        **stack: Unpack[StackKeys],
    ):
        super().__init__()
        self.length, self.classes, self.pretrained = length, classes, pretrained
        self.logit_softcap = logit_softcap
        self.embedding = embedding(vocab_size, dim)
        self.smear = Smear(dim) if smear else None
        self.bigram = Bigram(bigram * vocab_size, dim) if bigram else None
        heads, depth = stack["heads"], stack["depth"]
        self.width_ratio, self.depth_ratio = (base_dim or dim) / dim, (base_depth or depth) / depth
        if base_depth is not None:
            stack["connection"] = partial(Scaled, factor=self.depth_ratio)
        of_heads = self.width_ratio * heads / (base_heads or heads)
        self.stack = Stack(dim, length=length, causal=True, query_scale=of_heads**0.5, **stack)
        self.embeds_values = [
            layer
            for layer in self.stack.modules()
            if isinstance(layer, Attention) and layer.value_gate is not None
        ]
        self.value_embeddings = nn.ModuleList(
            Embedding(vocab_size, layer.value.out_features) for layer in self.embeds_values
        )
        tied = tie_embeddings and classes is None
        std = 0.0 if stack.get("init_depth_scale") == "zero" else STD
        outputs = classes or vocab_size
        self.head = None if tied else Linear(dim, outputs, bias=False, std=std)
        self.logit_scale = Scale(outputs, start=dim**-0.5) if logit_scale else None
        self.unit_weights = unit_weights
        self.freeze(freeze)

    def forward(
        self,
        tokens: Int[Tensor, "b i"],
        keep: Bool[Tensor, "b j"] | None = None,
        *,
        documents: Int[Tensor, "b i"] | None = None,
        positions: Int[Tensor, "b i"] | None = None,
        cache: Cache | None = None,
        read: bool = True,
    ) -> Float[Tensor, "b i vocab_size"] | Float[Tensor, "b classes"] | Float[Tensor, "b i dim"]:
        """tokens: with a cache only the new ones; keep: True = real, padding last. documents:
        numbers, never falling in a row, of the documents that no layer crosses. positions: of the
        tokens, for an encoding that is added to them; None: those in the row. read: False: return
        the states that `logits` reads."""
        x, within = self.embedding(tokens), None
        if documents is not None:
            within = Documents.numbered(documents)
        if self.smear is not None:
            x = self.smear(x, documents=within, cache=cache)
        if self.bigram is not None:
            x = x + self.bigram(tokens, documents=within, cache=cache)
        values = {
            layer: table(tokens)
            for layer, table in zip(self.embeds_values, self.value_embeddings, strict=True)
        }
        x = self.stack(
            x,
            keep=keep,
            documents=within,
            positions=positions,
            cache=cache,
            value_embeddings=values,
        )
        if self.classes is not None:
            assert keep is not None
            x = x[torch.arange(x.shape[0]), keep.sum(1) - 1]
        return self.logits(x) if read else x

    def logits(self, states: Float[Tensor, "*n dim"]) -> Float[Tensor, "*n outputs"]:
        """Of the next tokens, or of the classes."""
        table, cap = self.embedding.weight, self.logit_softcap
        scale = self.width_ratio if self.logit_scale is None else self.logit_scale()
        return logits(states, self.head, table, cap, scale=scale)

    def initialize(self, seed: int) -> None:
        super().initialize(seed)
        for weight, dim in self.along_width():
            normalize(weight, dim)

    def after_step(self) -> None:
        for weight, dim in self.along_width():
            if weight.requires_grad:  # model.freeze
                normalize(weight, dim)

    def along_width(self) -> list[tuple[Float[Tensor, "n m"], int]]:
        """The weights of length 1, each with its axis along the width of the residual stream."""
        if not self.unit_weights:
            return []
        apart = {*self.stack.pos_enc.modules(), *self.stack.other_pos_encs.modules()}
        if self.bigram is not None:  # it starts at zero
            apart |= {*self.bigram.modules()}
        modules = [module for module in self.modules() if module not in apart]
        into = {module.out for module in modules if isinstance(module, Attention)}
        into |= {module.down for module in modules if isinstance(module, FeedForward)}
        kinds = nn.Linear, nn.Embedding  # also of trainer.precision=fp8-mixed
        return [(m.weight, 0 if m in into else 1) for m in modules if isinstance(m, kinds)]

    def new_cache(self) -> Cache | None:
        return Cache() if self.stack.cacheable else None


@torch.no_grad()
def normalize(weight: Float[Tensor, "n m"], dim: int) -> None:
    """Scale the vectors along an axis to length 1, in place."""
    weight.copy_(F.normalize(weight, dim=dim))
