"""Tensor parallelism: what a part states about how its heads or hidden units are shared out.

Shoeybi et al. 2019, "Megatron-LM", section 3, https://arxiv.org/abs/1909.08053: every process of a
group has some heads of attention and some hidden units of a feed-forward network, and reads the
same input; their outputs are summed.

    splits = {"query": 0, "out": "rows", "norm": "shared", "heads": 0}

A class names its parameters, its modules, and numbers such as that of its heads, each with

    an axis    along which a tensor is cut, or all of a module; a number is divided
    "rows"     a linear map that reads what is split: its weight is cut along its inputs, and the
               outputs of all processes are summed
    "shared"   whole in every process, and read there by some of the heads: the gradients are summed
    None       whole, and computed alike in every process

A module within that states `splits` itself says more than the one around it.
"""

from collections.abc import Mapping
from typing import Any, Literal, NamedTuple

import torch
import torch.distributed as dist
from jaxtyping import Shaped
from torch import Tensor
from torch.autograd import Function

Split = int | Literal["rows", "shared"] | None
Splits = Mapping[str, Split]


class Part(NamedTuple):
    """The part of this process: the number `rank` of `size`."""

    rank: int
    size: int
    group: Any = None  # of torch.distributed

    def enter(self, x: Shaped[Tensor, " *n"]) -> Shaped[Tensor, " *n"]:
        """The same; the gradients of all processes are summed."""
        entered: Tensor = _Enter.apply(x, self.group)
        return entered

    def leave(self, x: Shaped[Tensor, " *n"]) -> Shaped[Tensor, " *n"]:
        """The sum over all processes; each has the same gradient."""
        left: Tensor = _Leave.apply(x, self.group)
        return left

    def cut(self, x: Shaped[Tensor, " ..."], axis: int) -> Shaped[Tensor, " ..."]:
        """This part of a whole tensor."""
        return x.chunk(self.size, axis)[self.rank].clone()

    def joined(self, x: Shaped[Tensor, " ..."], axis: int) -> Shaped[Tensor, " ..."]:
        """The whole tensor, of the parts of all processes."""
        parts = [torch.empty(x.shape, dtype=x.dtype, device=x.device) for _ in range(self.size)]
        dist.all_gather(parts, x.contiguous(), group=self.group)
        return torch.cat(parts, axis)


def summed(x: Shaped[Tensor, "*n"], group: Any) -> Shaped[Tensor, "*n"]:
    total = x.clone(memory_format=torch.contiguous_format)
    dist.all_reduce(total, group=group)
    return total


class _Enter(Function):
    @staticmethod
    def forward(ctx: Any, x: Shaped[Tensor, "*n"], group: Any) -> Shaped[Tensor, "*n"]:
        ctx.group = group
        return x.view_as(x)

    @staticmethod
    def backward(ctx: Any, gradient: Shaped[Tensor, "*n"]) -> tuple[Shaped[Tensor, "*n"], None]:
        return summed(gradient, ctx.group), None


class _Leave(Function):
    @staticmethod
    def forward(ctx: Any, x: Shaped[Tensor, "*n"], group: Any) -> Shaped[Tensor, "*n"]:
        return summed(x, group)

    @staticmethod
    def backward(ctx: Any, gradient: Shaped[Tensor, "*n"]) -> tuple[Shaped[Tensor, "*n"], None]:
        return gradient, None
