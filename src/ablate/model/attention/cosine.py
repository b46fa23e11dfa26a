"""Cosine, or content-based: score(q, k) = t * q . k / (|q| |k|), with t learned per head.

Graves et al. 2014, "Neural Turing machines", section 3.3.1, equations 5 and 6,
https://arxiv.org/abs/1410.5401: t is its key strength beta, which a controller emits at every step;
here it is a parameter, as in Liu et al. 2022, "Swin transformer V2", section 3.2,
https://arxiv.org/abs/2111.09883, whose tau is 1 / t. As in the Swin code, t = exp(log_t) starts at
10 and is clamped to 100. This is the query-key (QK) normalization of Henry et al. 2020,
https://arxiv.org/abs/2010.04245, with t for its learned scale g.
"""

import math
from typing import Any, ClassVar

import torch
from jaxtyping import Float
from torch import Tensor, nn
from torch.autograd import Function

from ablate.config.conflicts import Conflict
from ablate.model.attention import Lowered, Score

START = 10.0
LARGEST = 100.0


class OfDirections(Score):
    """The base of scores of normalized queries and keys of equal width, which a subclass lowers. A
    zero vector scores 0 with every other."""

    needs: ClassVar[frozenset[str]] = frozenset({"dot_product"})
    conflicts: ClassVar[tuple[Conflict, ...]] = (
        Conflict(
            lambda c: c("model.mixer.qk_norm") == "l2",
            "model.mixer.qk_norm=l2 has no effect with model.attention={model.attention}, which"
            " normalizes queries and keys; use model.mixer.qk_norm=rms, or"
            " model.attention=scaled_dot",
        ),
    )

    def forward(
        self, q: Float[Tensor, "b h i k"], k: Float[Tensor, "b h j k"]
    ) -> Float[Tensor, "b h i j"]:
        unit, other, factor = self.lower(q, k)
        return factor * unit.to(q.dtype) @ other.to(k.dtype).mT

    def lower(self, q: Float[Tensor, "b h i k"], k: Float[Tensor, "b g j k"]) -> Lowered:
        raise NotImplementedError


class Cosine(OfDirections):
    """Cosine similarity times a learned factor per head."""

    equal_widths = "cosine"

    def __init__(self, **sizes: Any) -> None:
        super().__init__(**sizes)
        self.log_t = nn.Parameter(torch.empty(self.heads))
        self.reset_parameters()

    def reset_parameters(self) -> None:
        nn.init.constant_(self.log_t, math.log(START))

    def lower(self, q: Float[Tensor, "b h i k"], k: Float[Tensor, "b g j k"]) -> Lowered:
        return scaled(q, self.sharpness()), scaled(k), 1.0

    def sharpness(self) -> Float[Tensor, "h 1 1"]:
        """The factor t."""
        return self.log_t.clamp(max=math.log(LARGEST)).exp()[:, None, None]


def scaled(
    x: Float[Tensor, "b h i k"], length: Float[Tensor, "#h 1 1"] | None = None
) -> Float[Tensor, "b h i k"]:
    """The vectors scaled to the norm `length` (None: 1), in float32 or wider; zero vectors stay
    zero, and so does their gradient.
    """
    result: Tensor = Scaled.apply(x, x.new_ones(1, 1, 1) if length is None else length)[0]
    return result


class Scaled(Function):
    """y = length x / |x|, and 1 / |x|, in float32 or wider: squares overflow or underflow in half
    precision. A separate Function because autograd makes more tensors as large as x, whose memory
    costs more than their arithmetic (docs/results/benchmarks.md).
    """

    generate_vmap_rule = True

    @staticmethod
    def forward(
        x: Float[Tensor, "b h i k"], length: Float[Tensor, "#h 1 1"]
    ) -> tuple[Float[Tensor, "b h i k"], Float[Tensor, "b h i 1"]]:
        wide = x.to(torch.promote_types(x.dtype, torch.float32))
        now = torch.linalg.vector_norm(wide, dim=-1, keepdim=True)
        inverse = now.masked_fill(now == 0, torch.inf).reciprocal()
        by = inverse * length
        return (wide * by if x.dtype == wide.dtype else wide.mul_(by)), inverse

    @staticmethod
    def setup_context(ctx: Any, inputs: tuple[Any, ...], output: tuple[Any, ...]) -> None:
        (x, length), (y, inverse) = inputs, output
        ctx.mark_non_differentiable(inverse)
        ctx.save_for_backward(y, inverse, length)
        ctx.dtype = x.dtype

    @staticmethod
    def backward(
        ctx: Any, gradient: Float[Tensor, "b h i k"], _: Float[Tensor, "b h i 1"]
    ) -> tuple[Float[Tensor, "b h i k"], Float[Tensor, "#h 1 1"]]:
        """With y = l u: dx = l / |x| (g - u (u . g)), dl = u . g."""
        y, inverse, length = ctx.saved_tensors
        buffer = gradient * y
        along = buffer.sum(-1, keepdim=True) / length  # u . g
        buffer.copy_(y).mul_(along / -length).add_(gradient).mul_(inverse * length)
        return buffer.to(ctx.dtype), along.sum_to_size(length.shape)
