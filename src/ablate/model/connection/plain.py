"""x + y: He et al. 2015, https://arxiv.org/abs/1512.03385."""

from torch import Tensor

from ablate.model.connection import Connection


class Plain(Connection):
    def write(self, x: Tensor, y: Tensor, embedded: Tensor | None) -> Tensor:
        return x + y
