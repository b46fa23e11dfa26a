"""ResNet for small images: three stages of 3 x 3 convolutions with identity shortcuts.

He et al. 2016, "Deep residual learning", section 4.2, https://arxiv.org/abs/1512.03385: 6 depth + 2
layers. If the width changes, the shortcut is a 1 x 1 convolution (option B there). A gate may
weigh the channels of every block before they are added (model.gate).
"""

from collections.abc import Callable
from functools import partial
from typing import TypedDict, Unpack

from jaxtyping import Float
from torch import Tensor, nn

from ablate.config.conflicts import Conflict
from ablate.config.rules import Depth, Width
from ablate.model.base import Model
from ablate.model.gate import Gate
from ablate.model.layers.linear import KaimingConv, KaimingLinear
from ablate.model.norm_type import MakeNorm

STAGES = 3  # each but the first halves rows and columns and doubles the channels
STRIDE = 2 ** (STAGES - 1)  # pixels from one cell of the last feature map to the next


class ResidualBlock(nn.Module):
    """relu(shortcut(x) + gate(norm conv relu norm conv x)); without the residual no shortcut."""

    def __init__(
        self,
        inputs: int,
        channels: int,
        *,
        stride: int,
        norm: Callable[[int], nn.Module],
        gate: Callable[..., Gate],
        residual: bool,
    ):
        super().__init__()

        def conv(ins: int, size: int, step: int) -> nn.Module:
            # No bias: the norm after it has one.
            return KaimingConv(ins, channels, size, step, padding=size // 2, bias=False)

        self.inner = nn.Sequential(
            conv(inputs, 3, stride),
            norm(channels),
            nn.ReLU(),
            conv(channels, 3, 1),
            norm(channels),
        )
        self.gate = gate(channels)
        self.residual = residual
        changes = residual and (stride != 1 or inputs != channels)
        self.shortcut = (
            nn.Sequential(conv(inputs, 1, stride), norm(channels)) if changes else nn.Identity()
        )

    def forward(self, x: Float[Tensor, "b inputs y x"]) -> Float[Tensor, "b channels v u"]:
        y = self.gate(self.inner(x))
        return (self.shortcut(x) + y if self.residual else y).relu()


class TrunkKeys(TypedDict):
    """The keys of a model's YAML that `trunk` reads."""

    depth: Depth
    norm_type: MakeNorm
    gate: Callable[..., Gate]
    residual: bool


def trunk(
    channels: int, dim: int, **keys: Unpack[TrunkKeys]
) -> tuple[nn.Sequential, nn.Sequential]:
    """The stem and the blocks: b channels y x -> b (dim 2^(STAGES - 1)) y/STRIDE x/STRIDE, rounded
    up. The receptive field of the cell (r, c) lies around the pixel (STRIDE r, STRIDE c).
    """
    norm = keys["norm_type"].func.of_images  # type: ignore[attr-defined]
    stem = nn.Sequential(KaimingConv(channels, dim, 3, padding=1, bias=False), norm(dim), nn.ReLU())
    make = partial(ResidualBlock, norm=norm, gate=keys["gate"], residual=keys["residual"])
    blocks = []
    inputs = dim
    for stage in range(STAGES):
        width = dim * 2**stage
        for number in range(keys["depth"]):
            stride = 2 if stage and not number else 1
            blocks.append(make(inputs, width, stride=stride))
            inputs = width
    return stem, nn.Sequential(*blocks)


NORM_OF_IMAGES = Conflict(
    lambda c: not c.declares("model.norm_type", "images"),
    "model.norm_type={model.norm_type} is not supported by model={model}; use batch or layer",
)


class ResNet(Model):
    """Images in, logits of the classes out. `blocks`: keys of `trunk`."""

    outputs = ("classes",)
    conflicts = (NORM_OF_IMAGES,)
    positions = None
    kinds = ("images",)

    def __init__(
        self,
        *,
        image_size: tuple[int, int],
        channels: int,
        classes: int,
        dim: Width,
        **blocks: Unpack[TrunkKeys],
    ):
        super().__init__()
        self.stem, self.blocks = trunk(channels, dim, **blocks)
        self.head = KaimingLinear(dim * 2 ** (STAGES - 1), classes)

    def forward(self, images: Float[Tensor, "b c y x"]) -> Float[Tensor, "b classes"]:
        return self.head(self.blocks(self.stem(images)).mean((2, 3)))
