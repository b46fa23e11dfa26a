"""A residual stream on the unit sphere: Norm(x + a (Norm(y) - x)), a learned for each feature.

nGPT: Loshchilov et al. 2024, section 2.2.2, https://arxiv.org/abs/2410.01131. Norm scales a vector
to length 1; |a| is taken as in the authors' code, https://github.com/NVIDIA/ngpt.
"""

from typing import Any

from jaxtyping import Float
from torch import Tensor

from ablate.config.conflicts import Conflict
from ablate.config.rules import Positive
from ablate.model.attention.cosine import scaled
from ablate.model.connection import Connection
from ablate.model.layers.scale import Scale


class Sphere(Connection):
    """a: how far the stream moves towards the output of the sublayer, its eigen learning rate.
    initial: of every a; None: 1 / depth."""

    conflicts = (
        Conflict(
            lambda c: c("model.drop_path") > 0,
            "model.drop_path={model.drop_path} drops outputs of sublayers, which"
            " model.connection=sphere scales to length 1; set model.drop_path=0",
        ),
        Conflict(
            lambda c: c("model.init_depth_scale") == "zero",
            "model.connection=sphere scales outputs of sublayers to length 1, and with"
            " model.init_depth_scale=zero they are zero; set model.init_depth_scale=true",
        ),
        Conflict(
            lambda c: bool(c("model.mixer.exclusive")),
            "model.connection=sphere scales outputs of sublayers to length 1, and with"
            " model.mixer.exclusive=true that of the first position is zero but for rounding; set"
            " model.mixer.exclusive=false",
        ),
        Conflict(
            lambda c: (
                c("model.embedding_scale") != 1 and c.attribute("pos_enc", "acts_in") != "input"
            ),
            "model.embedding_scale={model.embedding_scale} has no effect with"
            " model.connection=sphere, which scales the embeddings to length 1; set"
            " model.embedding_scale=1, or add positions to them, such as pos_enc=learned",
            without_effect=True,
        ),
    )

    def __init__(self, dim: int, *, initial: Positive | None, **position: Any) -> None:
        super().__init__(dim, **position)
        self.rate = Scale(dim, start=dim**-0.5, initial=initial or 1 / self.depth)

    def read(self, x: Float[Tensor, "b i s"]) -> Float[Tensor, "b i {self.dim}"]:
        return unit(x)

    def write(
        self,
        x: Float[Tensor, "b i s"],
        y: Float[Tensor, "b i {self.dim}"],
        embedded: Float[Tensor, "b i {self.dim}"] | None,
    ) -> Float[Tensor, "b i s"]:
        x = unit(x)  # the input of the first block may have any length
        return unit(x + self.rate().abs() * (unit(y) - x))


def unit(x: Float[Tensor, "b i d"]) -> Float[Tensor, "b i d"]:
    """Vectors of length 1; zero stays zero."""
    return scaled(x[:, None])[:, 0].to(x.dtype)
