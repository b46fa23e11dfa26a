"""ViT: an image as a sequence of patches (Dosovitskiy et al. 2020).

https://arxiv.org/abs/2010.11929. The patches are read row by row; a class token is prepended, or
the outputs are averaged (`pool`). Patches overlap when the stride is less than their side.
"""

from collections.abc import Mapping, Sequence
from typing import Any, Literal, Unpack

import torch
from einops import rearrange
from jaxtyping import Float
from torch import Tensor, nn

from ablate.config.conflicts import Conflict
from ablate.config.rules import HUGGING_FACE, Width
from ablate.errors import UserError
from ablate.figures.patches import patch_drawer, unnormalized
from ablate.model.base import Freeze, Model, ModelTraits
from ablate.model.layers.linear import Linear
from ablate.model.layers.stack import Stack, StackKeys, encodings

# Conflicts of a model of patches.
WHOLE_PATCHES = (
    Conflict(
        lambda c: c("model.patch") > c.side,
        "model.patch={model.patch} is larger than the images, which have {:side} pixels per side",
    ),
    Conflict(
        lambda c: c("model.patch") <= c.side and (c.side - c("model.patch")) % c.stride != 0,
        "model.patch={model.patch} with model.stride={:stride} leaves pixels out at the border"
        " of images of {:side} pixels per side",
    ),
)


class PatchEmbedding(nn.Conv2d):
    """Every patch through one linear map, row by row."""

    def forward(self, images: Float[Tensor, "b c y x"]) -> Float[Tensor, "b i d"]:
        return rearrange(super().forward(images), "b d y x -> b (y x) d")


class ClassToken(nn.Module):
    """A learned first token whose output describes the image; N(0, 1e-6) as in timm."""

    def __init__(self, dim: int):
        super().__init__()
        self.weight = nn.Parameter(torch.empty(dim))
        self.reset_parameters()

    def reset_parameters(self) -> None:
        nn.init.normal_(self.weight, std=1e-6)

    def forward(self, x: Float[Tensor, "b i d"]) -> Float[Tensor, "b i+1 d"]:
        return torch.cat([self.weight.expand(x.shape[0], 1, -1), x], dim=1)


class ViT(Model):
    """Images in, logits of the classes out. `stack`: keys of Stack."""

    outputs = ("classes",)
    traits = ModelTraits(causal=False, has_grid=True)
    conflicts = (
        *WHOLE_PATCHES,
        Conflict(
            lambda c: c.stride > c("model.patch"),
            "model.stride={model.stride} is larger than model.patch={model.patch} and skips pixels",
        ),
        Conflict(
            lambda c: c("model.pool") == "class" and c.option("model.mask") in ("causal", "prefix"),
            "model.mask={model.mask} with model.pool=class: the classification token is first"
            " and would not see the image; set model.pool=mean",
        ),
    )
    positions = "layers"
    kinds = ("images",)
    embeddings = ("patches.", "class_token.", *encodings("stack"))

    def __init__(
        self,
        *,
        image_size: tuple[int, int],
        channels: int,
        classes: int,
        dim: Width,
        patch: Width,
        stride: Width | None,
        pool: Literal["class", "mean"],
        pretrained: str | None,
        freeze: Freeze,
        **stack: Unpack[StackKeys],
    ):
        super().__init__()
        self.pool = pool
        grid = patch_grid(image_size, patch, stride or patch)
        extra = 1 if pool == "class" else 0
        self.patches = PatchEmbedding(channels, dim, patch, stride or patch)
        self.class_token = ClassToken(dim) if extra else None
        length = extra + grid[0] * grid[1]
        self.stack = Stack(dim, length=length, causal=False, grid=grid, extra=extra, **stack)
        self.head = Linear(dim, classes)
        self.pretrained = pretrained
        self.freeze(freeze)

    @classmethod
    def normalization(
        cls, keys: Mapping[str, Any]
    ) -> tuple[Sequence[float], Sequence[float]] | None:
        if not (name := keys.get("pretrained")):
            return None
        if name.startswith(HUGGING_FACE):
            try:
                from transformers import ImageProcessingMixin

                stated, _ = ImageProcessingMixin.get_image_processor_dict(
                    name.removeprefix(HUGGING_FACE)
                )
            except (ImportError, OSError, ValueError):  # it does not describe its images
                return None
            return stated["image_mean"], stated["image_std"]
        from ablate.model.timm import normalization  # which takes a second to import

        return normalization(name)

    def forward(self, images: Float[Tensor, "b c y x"]) -> Float[Tensor, "b classes"]:
        x = self.patches(images)
        if self.class_token is not None:
            return self.head(self.stack(self.class_token(x), position=0)[:, 0])
        return self.head(self.stack(x).mean(dim=1))

    def drawer(self, data: Any, example: dict[str, Any], maps: Sequence[Any]) -> Any:
        image = unnormalized(data, example["images"][0])
        return patch_drawer(image, maps, self.patches, class_token=self.class_token is not None)


def patch_grid(image_size: tuple[int, int], patch: int, stride: int) -> tuple[int, int]:
    """Rows and columns of patches; UserError if pixels would be left out at the border."""
    for side in image_size:
        if patch > side or (side - patch) % stride:
            raise UserError(
                f"model.patch={patch} with stride {stride} does not cover an image of "
                f"{image_size[0]} x {image_size[1]} pixels: (side - patch) must be a multiple of "
                f"the stride"
            )
    rows, columns = ((side - patch) // stride + 1 for side in image_size)
    return rows, columns
