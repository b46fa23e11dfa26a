"""Transformer blocks: attention or another mixer, cross-attention and feed-forward, each with norm,
dropout and residual.

Post-norm: Vaswani et al. 2017, https://arxiv.org/abs/1706.03762; pre-norm: Xiong et al. 2020,
https://arxiv.org/abs/2002.04745; sandwich: Ding et al. 2021, CogView, section 2.4,
https://arxiv.org/abs/2105.13290; stochastic depth: Huang et al. 2016,
https://arxiv.org/abs/1603.09382.
"""

from collections.abc import Callable
from functools import partial
from typing import Any

from torch import Tensor, nn

from ablate.kernel import Kernel
from ablate.model.attention import Score
from ablate.model.ffn import MakeFeedForward
from ablate.model.layers.dropout import Dropout, StochasticDepth
from ablate.model.layers.linear import width_std
from ablate.model.layers.multi_head import (
    CrossAttention,
    Memory,
    MultiHeadAttention,
    SelfAttention,
)
from ablate.model.mask import Mask
from ablate.model.mixer import Mixer, Sizes
from ablate.model.norm_type import MakeNorm
from ablate.model.norm_type.batch import BatchNorm
from ablate.model.normalizer import Normalizer
from ablate.pos_enc import PosEnc


class Sublayer(nn.Module):
    """Norm placement, residual, dropout and stochastic depth around any function of b i d.

    pre: x + f(norm x); post: norm(x + f x); sandwich: x + norm(f(norm x)); none: x + f x.
    Without the residual the `x +` is left out. reads: whether f uses x; if not, there is no norm
    before it.
    """

    def __init__(
        self,
        function: nn.Module,
        *,
        norm: str,
        make_norm: Callable[[], nn.Module],
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
        self.drop_path = StochasticDepth(drop_path)

    def forward(
        self, x: Tensor, *, use: int = 0, position: int | None = None, **kwargs: Any
    ) -> Tensor:
        """b i d -> b i d, or b 1 d for `position` alone, which the function receives too.

        use: counts the uses of this sublayer in a pass, which shared layers have several of.
        """
        read = self.norm_before(x)
        if isinstance(self.function, MultiHeadAttention):
            kwargs["use"] = use
        if position is not None:
            x, kwargs["position"] = x[:, position : position + 1], position
        y = self.norm_inside(self.function(read, **kwargs))
        y = self.drop_path(self.dropout(y, use, position or 0), use)
        return self.norm_after(x + y if self.residual else y)


class Block(nn.Module):
    """Attention or another mixer, then cross-attention and feed-forward; each may be None."""

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
        self.batch_norm = any(isinstance(part, BatchNorm) for part in self.modules())

    @property
    def leaves_out(self) -> bool:
        """Whether it can compute one `position`: there is no batch norm, whose statistics need
        the others, and their attention weights are not being recorded."""
        recorded = self.attention is not None and self.attention.function.recorded is not None
        return not (self.batch_norm or recorded)

    def forward(
        self,
        x: Tensor,
        *,
        use: int = 0,
        memory: Memory | None = None,
        position: int | None = None,
        **kwargs: Any,
    ) -> Tensor:
        """b i d -> b i d, or b 1 d for `position` alone; `use` as in Sublayer, the other arguments
        as in Stack."""
        if self.attention is not None:
            x = self.attention(x, use=use, position=position, **kwargs)
        elif self.mixer is not None:
            x = self.mixer(x, use=use, position=position, keep=kwargs["keep"])
        elif position is not None:
            x = x[:, position : position + 1]
        if self.cross_attention is not None:
            x = self.cross_attention(x, use=use, memory=memory)
        return x if self.feed_forward is None else self.feed_forward(x, use=use)


class Sublayers:
    """Makes the sublayers of a model's blocks from the keys of its YAML.

    dim: width of the residual stream; length: positions in training; depth: blocks applied;
    cross_attention: makes the score against a memory of `memory_length` positions, None: no memory;
    init_depth_scale: scale the initial output maps of sublayers by 1 / sqrt(their number).
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
        ffn: MakeFeedForward,
        ffn_dim: int | None,
        norm: str,
        norm_type: MakeNorm,
        norm_eps: float,
        residual: bool,
        dropout: float,
        bias: bool,
        init_std: float | None,
        init_depth_scale: bool = True,
        cross_attention: Callable[..., Score] | None = None,
        memory_length: int = 0,
        grid: tuple[int, int] | None = None,
    ):
        std = init_std or width_std(dim)
        # GPT-2: outputs added to the residual stream are scaled by the number of additions. It is
        # the same without a feed-forward, so that attention starts as it does beside one.
        additions = depth * (2 if cross_attention is None else 3) if init_depth_scale else 1
        linear = {"bias": bias, "std": std, "out_std": std / additions**0.5}
        self.mixer = mixer
        self.sizes = partial(Sizes, dim=dim, heads=heads, length=length, grid=grid, **linear)
        self.placement = norm
        self.make_norm = partial(norm_type, dim, bias=bias, eps=norm_eps)
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
        self.make_feed_forward = partial(ffn, dim, hidden=ffn_dim or 4 * dim, **linear)
        self.wrap = partial(
            Sublayer, norm=norm, make_norm=self.make_norm, residual=residual, dropout=dropout
        )

    def block(
        self, *, score: Callable[..., Score], mask: Mask, pos: PosEnc, layer: int, drop_path: float
    ) -> Block:
        """One block; `layer` is its index among those that are built."""
        wrap = partial(self.wrap, drop_path=drop_path)
        make_cross = self.make_cross_attention
        cross = None if make_cross is None else make_cross(layer=layer)
        attend = partial(self.make_attention, score=score, mask=mask, pos=pos, layer=layer)
        mix = self.mixer.layer(attend, self.sizes(mask=mask))
        attends = isinstance(mix, SelfAttention)
        feed_forward = self.make_feed_forward()
        return Block(
            wrap(mix) if attends else None,
            None if attends or mix is None else wrap(mix),
            None if cross is None else wrap(cross, reads=cross.score.query),
            None if feed_forward is None else wrap(feed_forward),
        )

    def embedding_norm(self) -> nn.Module:
        """The norm of the embeddings (BERT), for placements that normalise the residual stream."""
        return self.make_norm() if self.placement == "post" else nn.Identity()

    def final_norm(self) -> nn.Module:
        """The norm of the output, for placements that never normalise the residual stream."""
        return self.make_norm() if self.placement in ("pre", "sandwich") else nn.Identity()
