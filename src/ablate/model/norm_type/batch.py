"""Batch norm: every feature by its mean and standard deviation over examples and positions.

Ioffe and Szegedy 2015, https://arxiv.org/abs/1502.03167.
"""

from jaxtyping import Float
from torch import Tensor, nn

from ablate.config.conflicts import Conflict
from ablate.model.norm_type import UNUSED

# Kinds of data whose texts have different lengths.
PADDED = ("texts with classes", "preferences between texts")


class BatchNorm(nn.Module):
    """In training every position is normalized by statistics of the whole batch, later positions
    included; in evaluation by running averages. It always has a bias.
    """

    conflicts = (
        UNUSED,
        Conflict(
            lambda c: c("model.norm") != "none" and not c("model.bias"),
            "model.norm_type=batch always has a bias; set model.bias=true or another norm_type",
        ),
        Conflict(
            lambda c: (
                c("model.norm") != "none"
                and (c.trait("model", "pads") or c.attribute("data", "kind") in PADDED)
            ),
            "model.norm_type=batch would include the padding in the batches of model={model} and"
            " data={data} in its statistics; use model.norm_type=layer or rms",
        ),
        Conflict(
            lambda c: c("model.norm") != "none" and c("model.activation_checkpointing"),
            "model.activation_checkpointing={model.activation_checkpointing} computes blocks twice,"
            " and model.norm_type=batch would count every batch twice; use model.norm_type=layer or"
            " rms, or model.activation_checkpointing=false",
        ),
        Conflict(
            lambda c: c("model.freeze") != "none",
            "model.freeze={model.freeze} with model.norm_type=batch: its running statistics would"
            " still change; use layer or rms",
        ),
        Conflict(
            lambda c: (
                c.get("model.norm", None) != "none"
                and c.processes > 1
                and not c.get("trainer.sync_batchnorm", False)
            ),
            "model.norm_type=batch with several processes: each would have separate statistics;"
            " use +trainer.sync_batchnorm=true on GPUs, trainer=cpu or trainer=gpu, or another"
            " norm_type",
        ),
    )
    images = True
    # Whether examples and positions have an effect on each other.
    mixes_examples = True

    def __init__(self, dim: int, *, bias: bool, eps: float) -> None:
        super().__init__()
        # A submodule, because trainer.sync_batchnorm=true replaces it by another one.
        self.norm = nn.BatchNorm1d(dim, eps=eps)

    def forward(self, x: Float[Tensor, "b i d"]) -> Float[Tensor, "b i d"]:
        normalized: Tensor = self.norm(x.flatten(0, 1))
        return normalized.view(x.shape)

    @staticmethod
    def of_images(channels: int) -> nn.Module:
        return nn.BatchNorm2d(channels)
