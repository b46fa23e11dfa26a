"""Images of digits as an autoencoder has them: the data of a latent diffusion model."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path
from typing import Any, cast

import torch
from torch import Tensor

from ablate.config.conflicts import Conflict
from ablate.config.rules import RunDir
from ablate.config.run_id import weights
from ablate.data import digest
from ablate.data.digit_strings import Captioned, DigitStrings
from ablate.errors import UserError
from ablate.training.load import load

ENCODED = 1000  # images at once


class DigitLatents(DigitStrings):
    """autoencoder: the folder of a finished run of model=autoencoder, whose latents take the place
    of the images, b c y x, with mean 0 and standard deviation 1 in each channel.
    """

    conflicts = (
        Conflict(
            lambda c: "denoised images" not in c.attribute("model", "outputs"),
            "data=digit_latents: model={model} reads images, not latents; use data=digit_strings",
        ),
    )

    latents: Latents

    def __init__(self, *, autoencoder: RunDir, **options: Any) -> None:
        super().__init__(**options)
        self.autoencoder = autoencoder

    def fingerprint(self) -> str:
        return digest(super().fingerprint(), weights(self.autoencoder))

    @property
    def where(self) -> str:
        return f"data.autoencoder={self.autoencoder}"

    def load(self) -> None:
        super().load()
        self.latents = of = Latents(self.autoencoder, self)
        for split, images in self.splits.items():
            assert isinstance(images, Captioned)
            captions = images.captions
            self.splits[split] = Captioned(of.values[split], captions, mean=of.mean, std=of.std)
        height, width = self.size
        size = height // of.reduction, width // of.reduction
        self.sizes = replace(self.sizes, image_size=size, channels=len(of.mean))

    def to_pixels(self, images: Tensor) -> Tensor:
        return self.latents.to_pixels(images)

    def images(self, pixels: Tensor) -> Tensor:
        return self.latents.images(pixels)

    @property
    def bounds(self) -> tuple[float, float]:
        return self.latents.bounds


class Latents:
    """The images of a data set as the autoencoder of a finished run has them.

    mean, std: of each of its channels over the training images, c 1 1; a model's input is
    normalized by them (Rombach et al. 2022, appendix G, rescale by one standard deviation). values:
    of the splits, b c y x.
    """

    mean: Tensor
    std: Tensor
    bounds: tuple[float, float]

    def __init__(self, folder: str, data: DigitLatents) -> None:
        run = load(Path(folder).expanduser())
        if "reconstructions" not in run.model.outputs or not isinstance(run.data, DigitStrings):
            raise UserError(f"data.autoencoder={folder}: must be a run of model=autoencoder")
        if run.data.size != data.size:
            trained, wanted = (
                f"{rows} x {columns}" for rows, columns in (run.data.size, data.size)
            )
            raise UserError(
                f"data.autoencoder={folder}: reads images of {trained} pixels, not {wanted}"
            )
        self.model, self.data = cast(Any, run.model), run.data
        self.reduction: int = self.model.reduction
        self.values = {
            split: self._encode(data.originals(split, torch.arange(len(pixels))))
            for split, pixels in data.pixels.items()
        }
        if isinstance(data.measured_as, DigitLatents):
            self.mean, self.std = data.measured_as.latents.mean, data.measured_as.latents.std
            self.bounds = data.measured_as.latents.bounds
        else:
            train = self.values["train"]
            self.mean = train.mean((0, 2, 3))[:, None, None]
            self.std = train.std((0, 2, 3))[:, None, None]
            scaled = (train - self.mean) / self.std
            self.bounds = float(scaled.min()), float(scaled.max())

    def _encode(self, pixels: Tensor) -> Tensor:
        parts = pixels.split(ENCODED)
        return torch.cat([self.model.encode(self.data.images(part)) for part in parts])

    def images(self, pixels: Tensor) -> Tensor:
        return (self._encode(pixels) - self.mean) / self.std

    def to_pixels(self, images: Tensor) -> Tensor:
        latents = images.cpu().float() * self.std + self.mean
        return self.data.to_pixels(self.model.decode(latents))
