"""x + y: He et al. 2015, https://arxiv.org/abs/1512.03385."""

from jaxtyping import Float
from torch import Tensor

from ablate.model.connection import Connection


class Plain(Connection):
    def write(
        self,
        x: Float[Tensor, "b i s"],
        y: Float[Tensor, "b i {self.dim}"],
        embedded: Float[Tensor, "b i {self.dim}"] | None,
    ) -> Float[Tensor, "b i s"]:
        return x + y
