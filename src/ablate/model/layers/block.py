"""Transformer blocks: attention or another mixer, cross-attention and feed-forward, each with norm,
dropout and residual.

Post-norm: Vaswani et al. 2017, https://arxiv.org/abs/1706.03762; pre-norm: Xiong et al. 2020,
https://arxiv.org/abs/2002.04745; sandwich: Ding et al. 2021, CogView, section 2.4,
https://arxiv.org/abs/2105.13290; output: OLMo 2, section 3.3.1, https://arxiv.org/abs/2501.00656;
stochastic depth: Huang et al. 2016, https://arxiv.org/abs/1603.09382.
"""

from collections.abc import Callable
from dataclasses import replace
from functools import partial
from typing import Literal, NotRequired, TypedDict, Unpack

from jaxtyping import Float
from torch import Tensor, nn

from ablate.config.rules import Positive, Share, Width
from ablate.kernel import Kernel
from ablate.model.attention import Score
from ablate.model.connection import Connection, MakeConnection
from ablate.model.connection.plain import Plain
from ablate.model.ffn import MakeFeedForward
from ablate.model.layers.layer import Context, Layer, LayerSpec, LayerTraits
from ablate.model.layers.linear import width_std
from ablate.model.layers.modulation import MakeModulation, Modulation
from ablate.model.layers.multi_head import CrossAttention
from ablate.model.mask import Mask
from ablate.model.mixer import MakeMixer
from ablate.model.norm_type import MakeNorm
from ablate.model.normalizer import Normalizer
from ablate.pos_enc import PosEnc
from ablate.random.dropout import Dropout, StochasticDepth


class Sublayer(nn.Module):
    """Norm placement, residual, dropout and stochastic depth around any layer.

    pre: x + f(norm x); post: norm(x + f x); sandwich: x + norm(f(norm x)); output: x + norm(f x);
    none: x + f x. connection: how f's output is added; None: without the residual, the `x +` is
    left out. A layer that does not read its input has no norm before it. modulation: acts on the
    input of f, after its norm, and on its output.
    """

    def __init__(
        self,
        function: Layer,
        *,
        norm: str,
        make_norm: Callable[[], nn.Module],
        connection: Connection | None,
        dropout: float,
        drop_path: float,
        modulation: Modulation | None = None,
    ):
        super().__init__()
        self.function = function
        self.modulation = modulation
        self.connection = connection
        before = function.reads_input and norm in ("pre", "sandwich")
        self.norm_before = make_norm() if before else nn.Identity()
        self.norm_inside = make_norm() if norm in ("sandwich", "output") else nn.Identity()
        self.norm_after = make_norm() if norm == "post" else nn.Identity()
        self.dropout = Dropout(dropout)
        self.drop_path = StochasticDepth(drop_path)

    @property
    def streams(self) -> int:
        return 1 if self.connection is None else self.connection.streams

    def forward(self, x: Float[Tensor, "b i s"], context: Context) -> Float[Tensor, " b #i s"]:
        """All positions, or only `context.position`; s: the width of the connection's streams
        together."""
        residual = x if self.connection is None else self.connection.read(x)
        read, gate = self.norm_before(residual), None
        if self.modulation is not None:
            read, gate = self.modulation(read, context.condition)
        y = self.norm_inside(self.function(read, context))
        y = y if gate is None else gate * y
        start, embedded = context.start, context.embedded
        if (first := context.position) is not None:
            one = context.selected()
            start, embedded = one.start, one.embedded
            x = x[:, first : first + 1]
        y = self.drop_path(self.dropout(y, context.use, start), context.use)
        if self.connection is not None:
            y = self.connection.write(x, y, embedded)
        return self.norm_after(y)


class Parallel(Layer):
    """A mixer and a feed-forward network that read the same input, x -> f(x) + g(x).

    GPT-J (Wang and Komatsuzaki 2021); PaLM: Chowdhery et al. 2022, section 2,
    https://arxiv.org/abs/2204.02311.
    """

    def __init__(self, mixer: Layer, feed_forward: Layer):
        super().__init__()
        self.mixer, self.feed_forward = mixer, feed_forward
        self.traits = LayerTraits(caches=mixer.traits.caches)

    @property
    def selects(self) -> bool:
        return self.mixer.selects

    def forward(self, x: Float[Tensor, "b i d"], context: Context) -> Float[Tensor, " b #i d"]:
        y = self.mixer(x, context)
        if (first := context.position) is not None:
            x, context = x[:, first : first + 1], context.selected()
        return y + self.feed_forward(x, context)


class Block(nn.ModuleDict):
    """Named sublayers, applied one after another: `attention` or another `mixer`, then
    `cross_attention` and `feed_forward`, as far as the model has them."""

    def __init__(self, sublayers: dict[str, Sublayer]):
        super().__init__(sublayers)
        mixing = [name for name, sublayer in sublayers.items() if sublayer.function.traits.mixes]
        self.last_mixing = mixing[-1] if mixing else None
        self.mixes_examples = any(getattr(m, "mixes_examples", False) for m in self.modules())

    @property
    def layers(self) -> list[Layer]:
        return [sublayer.function for sublayer in self.values()]  # type: ignore[misc]

    @property
    def selects(self) -> bool:
        """Whether it can now compute a single position; batch norm requires the others."""
        return not self.mixes_examples and all(layer.selects for layer in self.layers)

    def forward(self, x: Float[Tensor, "b i s"], context: Context) -> Float[Tensor, " b #i s"]:
        """All positions, or only `context.position`."""
        if context.position is None:
            for sublayer in self.values():
                x = sublayer(x, context)
            return x
        # The last layer that mixes positions selects the one, and the layers after it get no other.
        every_position, one_position = replace(context, position=None), context.selected()
        after = self.last_mixing is None
        if after:
            x = x[:, context.position : context.position + 1]
        for name, sublayer in self.items():
            selects = name == self.last_mixing
            x = sublayer(x, context if selects else one_position if after else every_position)
            after = after or selects
        return x


class BlockKeys(TypedDict):
    """The keys of a model's YAML that a block reads: lines of conf/_block.yaml, and groups.

    init_depth_scale: scale the initial output maps of sublayers by 1 / sqrt(their number); "zero":
    they start at zero, and every sublayer as the identity (Zhang et al. 2019, "Fixup",
    https://arxiv.org/abs/1901.09321; modded-nanogpt, nanochat).
    parallel: the mixer and the feed-forward network are one sublayer.
    """

    mixer: MakeMixer
    heads: Width
    normalizer: Normalizer
    kernel: Kernel
    ffn: MakeFeedForward
    ffn_dim: Width | None
    norm: Literal["pre", "post", "sandwich", "output", "none"]
    norm_type: MakeNorm
    norm_eps: Positive
    residual: bool
    connection: NotRequired[MakeConnection]
    parallel: NotRequired[bool]
    dropout: Share
    bias: bool
    init_std: Positive | None
    init_depth_scale: NotRequired[bool | Literal["zero"]]


def make_block(
    dim: int,
    *,
    depth: int,
    length: int,
    grid: tuple[int, int] | None,
    mask: Mask,
    pos: PosEnc,
    layer: int,
    drop_path: float,
    before: int,
    attention: Callable[..., Score],
    cross_attention: Callable[..., Score] | None = None,
    memory_length: int = 0,
    modulation: MakeModulation | None = None,
    query_scale: float = 1.0,
    **keys: Unpack[BlockKeys],
) -> Block:
    """Make a block.

    depth: blocks applied; before: the number of sublayers in the blocks before this one;
    cross_attention: makes the score against a memory of `memory_length` positions, None: no memory;
    modulation: makes that of each sublayer; the others are fields of LayerSpec.
    """
    parallel, bias = keys.get("parallel", False), keys["bias"]
    std = keys["init_std"] or width_std(dim)
    # GPT-2: outputs added to the residual stream are scaled by the number of additions. It is
    # the same without a feed-forward, so that attention starts as it does with one.
    sublayers = (1 if parallel else 2) + (cross_attention is not None)
    additions = depth * sublayers if keys.get("init_depth_scale", True) else 1
    out_std = 0.0 if keys.get("init_depth_scale") == "zero" else std / additions**0.5
    place = LayerSpec(
        dim=dim,
        heads=keys["heads"],
        length=length,
        grid=grid,
        bias=bias,
        std=std,
        out_std=out_std,
        dropout=keys["dropout"],
        score=attention,
        normalizer=keys["normalizer"],
        kernel=keys["kernel"],
        mask=mask,
        pos=pos,
        layer=layer,
        query_scale=query_scale,
    )
    mix, cross = keys["mixer"](place), None
    if cross_attention is not None:
        shared = {} if mix is None else mix.attention_keys
        place = replace(place, score=cross_attention, length=memory_length)
        cross = CrossAttention(place, **shared)
    name = "attention" if mix is not None and mix.traits.attends else "mixer"
    hidden = keys["ffn_dim"] or 4 * dim
    feed = keys["ffn"](dim, hidden=hidden, bias=bias, std=std, out_std=out_std)
    if parallel and mix is not None and feed is not None:
        mix, feed = Parallel(mix, feed), None
    layers: dict[str, Layer | None] = {name: mix, "cross_attention": cross, "feed_forward": feed}
    connection = keys.get("connection", Plain) if keys["residual"] else None
    wrap = partial(
        Sublayer,
        norm=keys["norm"],
        make_norm=partial(keys["norm_type"], dim, bias=bias, eps=keys["norm_eps"]),
        dropout=keys["dropout"],
        drop_path=drop_path,
    )
    present = {name: layer for name, layer in layers.items() if layer is not None}
    by_name = {
        name: wrap(
            layer,
            connection=connection(dim, depth=depth, index=index) if connection else None,
            modulation=modulation(dim) if modulation else None,
        )
        for index, (name, layer) in enumerate(present.items(), before)
    }
    return Block(by_name)
