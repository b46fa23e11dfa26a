"""Autoencoding: images from their latents."""

import math
from pathlib import Path
from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor
from torchmetrics.aggregation import MeanMetric

from ablate.config.rules import NotNegative
from ablate.data import Batch
from ablate.data.digit_strings import DigitStrings
from ablate.figures.save import save
from ablate.systems.diffusion.autoencoder import Autoencoder
from ablate.systems.diffusion.figures import draw_images
from ablate.task import Task
from ablate.task.presenter import Presenter

SHOWN = 6  # validation images in the figure


class ImagePresenter(Presenter):
    """Reconstructed images."""

    loss_unit = "squared error"

    def artifacts(self, folder: Path) -> list[Path]:
        """Validation images, with the reconstruction below each."""
        count = min(SHOWN, self.data.length("val"))
        known = self.data.originals("val", torch.arange(count))
        pixels = math.prod(self.data.size)
        numbers = pixels // self.model.reduction**2 * self.model.latent
        figure = draw_images(
            [list(known), list(self.reconstructed(known))],
            "Validation images and their reconstructions by the autoencoder:"
            f" {numbers} latent values for {pixels} pixels",
            labels=["image", "from its latent"],
        )
        return [save(figure, folder / "figures" / "reconstructions.png")]

    @torch.no_grad()
    def reconstructed(self, pixels: Tensor) -> Tensor:
        """b y x, black 0 to white 1 -> the same from their latents."""
        return self.data.to_pixels(self.model(self.data.images(pixels).to(self.task.device))[0])


class Autoencoding(Task):
    """The squared error of the images, plus `kl` times the divergence of their latents from a
    standard normal (Kingma and Welling 2014, appendix B), in nats for each number of the image.

    psnr: peak signal-to-noise ratio of the displayed images, 10 log10(1 / squared error) decibels,
    black 0 and white 1.
    """

    kinds = ("images with captions",)
    output = "reconstructions"
    metric, mode, unit = "val/loss", "min", "images"
    presenter = ImagePresenter
    data: DigitStrings
    model: Autoencoder

    def __init__(self, *args: Any, kl: NotNegative, **kwargs: Any):
        super().__init__(*args, **kwargs)
        self.kl = kl
        self.mean_loss, self.seen_error = MeanMetric(), MeanMetric()

    def inputs(self, batch: Batch) -> tuple[Tensor, ...]:
        return (batch["images"],)

    def units(self, batch: Batch) -> int:
        return len(batch["images"])

    def losses(self, batch: Batch) -> dict[str, Tensor]:
        reconstructed, mean, log_variance = self.model(batch["images"])
        apart = divergence(mean, log_variance).sum() / reconstructed.numel()
        return {"error": F.mse_loss(reconstructed, batch["images"]), "kl": self.kl * apart}

    def evaluate(self, batch: Batch) -> None:
        images, (reconstructed, _, _) = batch["images"], self.model(batch["images"])
        self.mean_loss.update(F.mse_loss(reconstructed, images).float(), len(images))
        seen = F.mse_loss(self.data.to_pixels(reconstructed), self.data.to_pixels(images))
        self.seen_error.update(seen.to(self.device), len(images))

    def measures(self, split: str) -> dict[str, Tensor]:
        psnr = -10 * self.seen_error.compute().log10()
        return {"loss": self.mean_loss.compute(), "psnr": psnr}


def divergence(mean: Tensor, log_variance: Tensor) -> Tensor:
    """KL(N(mean, variance) | N(0, 1)), of each number."""
    return 0.5 * (mean.square() + log_variance.exp() - 1 - log_variance)
