"""Residual connections: how the output of a sublayer joins the residual stream. One per file.

He et al. 2015, https://arxiv.org/abs/1512.03385. `model.residual=false` has none.
"""

from collections.abc import Callable
from typing import ClassVar

from jaxtyping import Float
from torch import Tensor, nn

from ablate.config.conflicts import Conflict


class Connection(nn.Module):
    """One instance for each sublayer, made with the width `dim` of the stream, the number `depth`
    of blocks, and the `index` of the sublayer in the stack."""

    # Copies of the residual stream that blocks pass on, side by side: s = streams d.
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

    def read(self, x: Float[Tensor, "b i s"]) -> Float[Tensor, "b i {self.dim}"]:
        """The stream -> the input of the sublayer."""
        return x

    def write(
        self,
        x: Float[Tensor, "b i s"],
        y: Float[Tensor, "b i {self.dim}"],
        embedded: Float[Tensor, "b i {self.dim}"] | None,
    ) -> Float[Tensor, "b i s"]:
        """The stream and the output of the sublayer -> the new stream. embedded: input of the first
        block."""
        return x + self.weighed(y)

    def weighed(self, y: Float[Tensor, "b i {self.dim}"]) -> Float[Tensor, "b i {self.dim}"]:
        """The addend, from the output of the sublayer."""
        return y


MakeConnection = Callable[..., Connection]
