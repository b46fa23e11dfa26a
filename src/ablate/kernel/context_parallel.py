"""Context parallelism: processes share a sequence, and any kernel computes the queries of each.

A process holds a part of the positions. Keys and values of all of them are gathered before the
attention, and their gradients summed where they came from, so that a kernel computes its queries
as in one process, whatever the score, the mask, the normalizer or the position encoding. The
sequence is cut into 2 N chunks, of which process r of N has the chunks r and 2 N - 1 - r: with a
causal mask all processes then have the same number of pairs of queries and keys. Llama 3:
Grattafiori et al. 2024, section 3.3.2, https://arxiv.org/abs/2407.21783.
"""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, Any

import torch
import torch.distributed as dist
from jaxtyping import Float, Int, Shaped
from torch import Tensor
from torch.autograd import Function
from torch.autograd.function import once_differentiable

from ablate.errors import UserError

if TYPE_CHECKING:
    from ablate.kernel import Attend, Kernel


@dataclass(frozen=True)
class Chunks:
    """The positions of a process among those that share a sequence: two chunks of equal length.

    rank, size: of the process among them. group: of torch.distributed. length: of the sequence.
    again: blocks are computed once more in the backward pass, and keep nothing.
    """

    rank: int
    size: int
    length: int
    group: Any
    again: bool = False

    def __post_init__(self) -> None:
        if self.length % (2 * self.size):
            raise UserError(
                f"trainer.context_parallel={self.size}: a sequence has {self.length} positions,"
                f" and must have a multiple of {2 * self.size}, twice the processes that share it"
            )

    @property
    def chunk(self) -> int:
        return self.length // (2 * self.size)

    @property
    def starts(self) -> tuple[int, int]:
        """The first position of each chunk."""
        return self.rank * self.chunk, (2 * self.size - 1 - self.rank) * self.chunk

    def positions(self, device: torch.device) -> Int[Tensor, " i"]:
        """The positions of this process, in the order in which it holds them."""
        offsets = torch.arange(self.chunk, device=device)
        return torch.cat([start + offsets for start in self.starts])

    def of(self, x: Shaped[Tensor, "b n ..."]) -> Shaped[Tensor, "b i ..."]:
        """The rows of a whole sequence that this process holds."""
        return torch.cat([x[:, start : start + self.chunk] for start in self.starts], dim=1)

    def places(
        self, positions: Int[Tensor, "b m"]
    ) -> tuple[Int[Tensor, "b m"], Shaped[Tensor, "b m"]]:
        """Where this process holds these positions, and whether it does; 0 where it does not."""
        place, here = torch.zeros_like(positions), torch.zeros_like(positions, dtype=torch.bool)
        for number, start in enumerate(self.starts):
            offset = positions - start
            inside = (offset >= 0) & (offset < self.chunk)
            place = torch.where(inside, offset + number * self.chunk, place)
            here = here | inside
        return place, here

    def gather(
        self, k: Float[Tensor, "b g i l"], v: Float[Tensor, "b g i w"]
    ) -> tuple[Float[Tensor, "b g j l"], Float[Tensor, "b g j w"]]:
        """Keys and values of all positions, in their order, from those of this process."""
        if k.shape[1] != v.shape[1] or k.dtype != v.dtype:
            return Gather.apply(k, self), Gather.apply(v, self)
        both: Tensor = Gather.apply(torch.cat([k, v], dim=-1), self)
        return both[..., : k.shape[-1]], both[..., k.shape[-1] :]


class Gather(Function):
    """All gathered; backward, each process gets the sum of the gradients of what it gave."""

    @staticmethod
    def forward(ctx: Any, x: Float[Tensor, "b h i w"], part: Chunks) -> Float[Tensor, "b h j w"]:
        ctx.part = part
        x = x.contiguous()
        every = x.new_empty(part.size * len(x), *x.shape[1:])
        dist.all_gather_into_tensor(every, x, group=part.group)
        first, second = every.unflatten(0, (part.size, len(x))).chunk(2, dim=3)
        return torch.cat([*first.unbind(), *second.flip(0).unbind()], dim=2)

    @staticmethod
    @once_differentiable
    def backward(
        ctx: Any, gradient: Float[Tensor, "b h j w"]
    ) -> tuple[Float[Tensor, "b h i w"], None]:
        part: Chunks = ctx.part
        chunks = gradient.chunk(2 * part.size, dim=2)
        pairs = zip(chunks[: part.size], reversed(chunks[part.size :]), strict=True)
        every = torch.cat([torch.cat(pair, dim=2) for pair in pairs])
        own = every.new_empty(len(gradient), *every.shape[1:])
        dist.reduce_scatter_tensor(own, every, group=part.group)
        return own, None


def of_part(kernel: Kernel, attend: Attend, part: Chunks) -> Float[Tensor, "b h i w"]:
    """What the queries of a process read. `attend` has these, and the keys and values of all."""
    assert attend.keep is None
    chunks = []
    for q, start in zip(attend.q.chunk(2, dim=2), part.starts, strict=True):
        rows = replace(attend, q=q, start=start, lean=not part.again)
        # Kernels that go by ranges skip what a chunk may not attend to themselves.
        chunks.append(kernel(rows if kernel.by_ranges else rows.rows(0, part.chunk)))
    return torch.cat(chunks, dim=2)


def join_group(size: int) -> Any:
    """The group of the processes that share a sequence with this one: as many of consecutive ranks.

    To be called by all processes.
    """
    world = dist.get_world_size()
    ranks = [list(range(first, first + size)) for first in range(0, world, size)]
    own, _ = dist.new_subgroups_by_enumeration(ranks)
    return own
