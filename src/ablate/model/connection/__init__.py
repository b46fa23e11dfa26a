"""Residual connections: how the output of a sublayer joins the residual stream. One per file.

He et al. 2015, https://arxiv.org/abs/1512.03385. `model.residual=false` has none.
"""

from collections.abc import Callable
from typing import ClassVar

from torch import Tensor, nn

from ablate.config.facts import Conflict


class Connection(nn.Module):
    """One instance for each sublayer, made with the width `dim` of the stream, the number `depth`
    of blocks, and the `index` of the sublayer in its block."""

    # Copies of the residual stream that blocks pass on, side by side: b i (streams d).
    streams: int = 1
    conflicts: ClassVar[tuple[Conflict, ...]] = (
        Conflict(
            lambda c: not c("model.residual") and c.option("model.connection") != "plain",
            "model.connection={model.connection} is a residual connection, and"
            " model.residual=false has none; set model.residual=true, or model.connection=plain",
        ),
    )

    def __init__(self, dim: int, *, depth: int, index: int) -> None:
        super().__init__()
        self.dim, self.depth, self.index = dim, depth, index

    def reset_parameters(self) -> None:
        """Set the parameters, if any, to their initial values."""

    def read(self, x: Tensor) -> Tensor:
        """The stream, b i (streams d) -> what the sublayer reads, b i d."""
        return x

    def write(self, x: Tensor, y: Tensor, embedded: Tensor | None) -> Tensor:
        """The stream, b i (streams d), and the output of the sublayer, b i d -> the new stream.
        embedded: b i d, what the first block read."""
        raise NotImplementedError


MakeConnection = Callable[..., Connection]
