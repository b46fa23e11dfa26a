"""Blocks: attention or another mixer, cross-attention and feed-forward, each in norm, dropout and
residual.

Post-norm: Vaswani et al. 2017, https://arxiv.org/abs/1706.03762; pre-norm: Xiong et al. 2020,
https://arxiv.org/abs/2002.04745; sandwich: Ding et al. 2021, CogView, section 2.4,
https://arxiv.org/abs/2105.13290; stochastic depth: Huang et al. 2016,
https://arxiv.org/abs/1603.09382; shared layers: Dehghani et al. 2018, Universal Transformer,
https://arxiv.org/abs/1807.03819.
"""

from collections.abc import Callable
from functools import partial
from typing import Any

from torch import Tensor, nn
from torchvision.ops import StochasticDepth

from ablate.kernel import Kernel
from ablate.model.attention import Score
from ablate.model.dropout import Dropout
from ablate.model.feed_forward import FeedForward
from ablate.model.linear import width_std
from ablate.model.mask import Mask
from ablate.model.mixer import Mixer, Sizes
from ablate.model.multi_head import (
    CrossAttention,
    KeyValueCache,
    Memory,
    SelfAttention,
)
from ablate.model.norm import NORMS
from ablate.model.normalizer import Normalizer
from ablate.pos_enc import PosEnc

MakeNorm = Callable[[], nn.Module]


class Sublayer(nn.Module):
    """Norm placement, residual, dropout and stochastic depth around any function of b i d.

    pre: x + f(norm x); post: norm(x + f x); sandwich: x + norm(f(norm x)); none: x + f x.
    Without the residual the `x +` is left out. reads: whether f looks at x, or no norm stands
    before it, where it would have nothing to do.
    """

    def __init__(
        self,
        function: nn.Module,
        *,
        norm: str,
        make_norm: MakeNorm,
        residual: bool,
        dropout: float,
        drop_path: float,
        reads: bool = True,
    ):
        super().__init__()
        self.function = function
        self.residual = residual
        before = reads and norm in ("pre", "sandwich")
        self.norm_before = make_norm() if before else nn.Identity()
        self.norm_inside = make_norm() if norm == "sandwich" else nn.Identity()
        self.norm_after = make_norm() if norm == "post" else nn.Identity()
        self.dropout = Dropout(dropout)
        self.drop_path = StochasticDepth(drop_path, "row") if drop_path else nn.Identity()

    def forward(self, x: Tensor, **kwargs: Any) -> Tensor:
        y = self.norm_inside(self.function(self.norm_before(x), **kwargs))
        y = self.drop_path(self.dropout(y))
        return self.norm_after(x + y if self.residual else y)


class Block(nn.Module):
    """Attention or what stands in its place, then cross-attention and feed-forward; each may be
    None."""

    def __init__(
        self,
        attention: Sublayer | None,
        mixer: Sublayer | None,
        cross_attention: Sublayer | None,
        feed_forward: Sublayer | None,
    ):
        super().__init__()
        self.attention = attention
        self.mixer = mixer
        self.cross_attention = cross_attention
        self.feed_forward = feed_forward

    def forward(self, x: Tensor, *, memory: Memory | None = None, **kwargs: Any) -> Tensor:
        if self.attention is not None:
            x = self.attention(x, **kwargs)
        if self.mixer is not None:
            x = self.mixer(x, keep=kwargs["keep"])
        if self.cross_attention is not None:
            x = self.cross_attention(x, memory=memory)
        return x if self.feed_forward is None else self.feed_forward(x)


class Sublayers:
    """Makes the sublayers of a model's blocks: the keys of its YAML that shape them, in one place.

    dim: width of the stream; length: positions in training; depth: blocks that are applied;
    cross_attention: makes the score against a memory of `memory_length` positions, None: no memory.
    """

    def __init__(
        self,
        dim: int,
        *,
        depth: int,
        heads: int,
        length: int,
        mixer: Mixer,
        normalizer: Normalizer,
        kernel: Kernel,
        ffn: str,
        ffn_dim: int | None,
        norm: str,
        norm_type: str,
        norm_eps: float,
        residual: bool,
        dropout: float,
        bias: bool,
        init_std: float | None,
        cross_attention: Callable[..., Score] | None = None,
        memory_length: int = 0,
        grid: tuple[int, int] | None = None,
    ):
        std = init_std or width_std(dim)
        # GPT-2: what is added to the residual stream is scaled by the number of additions. Without
        # a feed-forward they count as many, so that the attentions start as they do beside one.
        additions = depth * (2 if cross_attention is None else 3)
        linear = {"bias": bias, "std": std, "out_std": std / additions**0.5}
        self.mixer = mixer
        self.sizes = partial(Sizes, dim=dim, heads=heads, length=length, grid=grid, **linear)
        self.placement = norm
        self.make_norm: Callable[[], nn.Module] = partial(NORMS[norm_type], dim, bias, norm_eps)
        attention = {
            "heads": heads, "normalizer": normalizer, "kernel": kernel, "dropout": dropout, **linear
        }  # fmt: skip
        self.make_attention = partial(SelfAttention, dim, length=length, **attention)
        self.make_cross_attention = (
            None
            if cross_attention is None
            else partial(
                CrossAttention, dim, score=cross_attention, length=memory_length, **attention
            )
        )
        self.make_feed_forward = (
            None
            if ffn == "none"
            else partial(FeedForward, dim, hidden=ffn_dim or 4 * dim, kind=ffn, **linear)
        )
        self.wrap = partial(
            Sublayer, norm=norm, make_norm=self.make_norm, residual=residual, dropout=dropout
        )

    def block(
        self, *, score: Callable[..., Score], mask: Mask, pos: PosEnc, layer: int, drop_path: float
    ) -> Block:
        """One block; `layer` is its place among those that are built."""
        wrap = partial(self.wrap, drop_path=drop_path)
        make_cross, feed_forward = self.make_cross_attention, self.make_feed_forward
        cross = None if make_cross is None else make_cross(layer=layer)
        attend = partial(self.make_attention, score=score, mask=mask, pos=pos, layer=layer)
        mix = self.mixer.layer(attend, self.sizes(mask=mask))
        attends = isinstance(mix, SelfAttention)
        return Block(
            wrap(mix) if attends else None,
            None if attends or mix is None else wrap(mix),
            None if cross is None else wrap(cross, reads=cross.score.query),
            None if feed_forward is None else wrap(feed_forward()),
        )

    def final_norm(self) -> nn.Module:
        """Where the stream itself is never normalised, the output has to be."""
        return self.make_norm() if self.placement in ("pre", "sandwich") else nn.Identity()


class Stack(nn.Module):
    """Positions, `depth` blocks and the final norm: what every Transformer here is made of.

    The keys of a model's YAML arrive here by name, those of `Sublayers` as `sublayers`; `length`,
    `grid`, `extra` and `causal` say what the model reads (see PosEnc).
    """

    def __init__(
        self,
        dim: int,
        *,
        depth: int,
        heads: int,
        attention: Callable[..., Score],
        mask: Callable[..., Mask],
        pos_enc: Callable[..., PosEnc],
        length: int,
        causal: bool,
        dropout: float,
        drop_path: float,
        share_layers: bool,
        grid: tuple[int, int] | None = None,
        extra: int = 0,
        **sublayers: Any,
    ):
        super().__init__()
        self.depth = depth
        built = 1 if share_layers else depth
        self.mask = mask(causal=causal)
        self.pos_enc = pos_enc(
            dim=dim,
            heads=heads,
            head_dim=dim // heads,
            length=length,
            depth=built,
            grid=grid,
            extra=extra,
            causal=not self.mask.look_ahead,
        )
        self.dropout = Dropout(dropout)
        make = Sublayers(
            dim,
            depth=depth,
            heads=heads,
            length=length,
            dropout=dropout,
            grid=grid,
            **sublayers,
        )
        self.blocks = nn.ModuleList(
            make.block(
                score=attention,
                mask=self.mask,
                pos=self.pos_enc,
                layer=layer,
                # The last block is dropped at the full rate, the first never; a shared one evenly.
                drop_path=drop_path * (layer / (depth - 1) if built > 1 else 1),
            )
            for layer in range(built)
        )
        self.final_norm = make.final_norm()

    def forward(
        self,
        x: Tensor,
        *,
        keep: Tensor | None = None,
        cache: KeyValueCache | None = None,
        memory: Memory | None = None,
    ) -> Tensor:
        """x: b i d (with a cache: the tokens after those it has seen); keep: b j, True = real."""
        x = self.dropout(self.pos_enc.embed(x, cache.length() if cache else 0))
        for step in range(self.depth):
            block = self.blocks[step % len(self.blocks)]
            x = block(x, pos=self.pos_enc, keep=keep, cache=cache, place=step, memory=memory)
        return self.final_norm(x)

    @property
    def cacheable(self) -> bool:
        """Whether what attention has made of the tokens so far stays when others follow them."""
        return not self.mask.look_ahead and all(
            isinstance(block, Block) and block.attention is not None for block in self.blocks
        )

    @property
    def cross(self) -> list[CrossAttention]:
        """The layers that read a memory, from the first to the last; none without one."""
        return [module for module in self.modules() if isinstance(module, CrossAttention)]

    def remember(self, encoded: Tensor, keep: Tensor) -> Memory:
        """b j d, and b j, True = real -> what `forward` reads; each layer looks at it once."""
        return Memory([layer.read(encoded) for layer in self.cross], keep)


def kernels(model: nn.Module) -> dict[str, str]:
    """Name of each attention layer -> what computes it."""
    return {
        name: module.kernel.describe()
        for name, module in model.named_modules()
        if isinstance(getattr(module, "kernel", None), Kernel)
    }
