"""A captioner of this project that reads images which another model has generated, and the
measures of these images."""

from pathlib import Path
from typing import Any

import torch
from torch import Tensor, nn
from torchmetrics.aggregation import MeanMetric
from torchmetrics.image.fid import FrechetInceptionDistance
from torchmetrics.text.wer import WordErrorRate

from ablate.data.digit_strings import DigitStrings
from ablate.errors import UserError
from ablate.training.load import load

BATCH = 64  # images at once
MEASURES = ("exact_match", "der", "frechet")
JUDGED = (*MEASURES, *(f"{name}_reference" for name in MEASURES))


class Judge:
    """A finished run of model=captioner, for images of `size` (rows and columns of pixels).

    UserError if the folder is not such a run.
    """

    def __init__(self, folder: str, size: tuple[int, int]) -> None:
        run = load(Path(folder).expanduser())
        if run.task.presenter.family != "captioning" or not isinstance(run.data, DigitStrings):
            raise UserError(f"task.judge={folder}: must be a run of model=captioner")
        if run.data.size != size:
            trained, wanted = (f"{rows} x {columns}" for rows, columns in (run.data.size, size))
            raise UserError(f"task.judge={folder}: reads images of {trained} pixels, not {wanted}")
        self.task: Any = run.task
        self.data = run.data
        self.description = {"run": str(run.path), "run_id": run.result.get("run_id")}

    @property
    def width(self) -> int:
        """Features of an image."""
        return self.describe(torch.zeros(1, *self.data.size)).shape[1]

    @torch.no_grad()
    def read(self, pixels: Tensor) -> list[str]:
        """b y x, black 0 to white 1 -> captions."""
        parts = self.data.images(pixels.cpu()).split(BATCH)
        return [text for part in parts for text in self.task.outputs(part)]

    @torch.no_grad()
    def describe(self, pixels: Tensor) -> Tensor:
        """b y x -> b d: the mean of the annotation vectors, which its encoder makes of an image."""
        parts = self.data.images(pixels.cpu()).split(BATCH)
        return torch.cat([self.task.model.encoder(part).mean(dim=(2, 3)) for part in parts])


class Quality(nn.Module):
    """The measures of a set of images (see Diffusion). width: of the judge's features."""

    def __init__(self, width: int) -> None:
        super().__init__()
        self.exact_match, self.der = MeanMetric(), WordErrorRate()
        features = nn.Identity()  # feature vectors, b d, in place of images
        features.num_features = width  # type: ignore[assignment]
        self.frechet = FrechetInceptionDistance(feature=features)

    def read(self, texts: list[str], captions: list[str]) -> None:
        """The captions that the judge reads, and the true ones."""
        same = [text == caption for text, caption in zip(texts, captions, strict=True)]
        self.exact_match.update(torch.tensor(same).float())
        self.der.update(texts, captions)

    def compute(self) -> dict[str, Tensor]:
        """frechet: NaN of fewer than two images, which have no covariance."""
        metric = self.frechet
        few = min(int(metric.real_features_num_samples), int(metric.fake_features_num_samples)) < 2
        distance = torch.tensor(float("nan")) if few else metric.compute()
        values = self.exact_match.compute(), self.der.compute(), distance
        return dict(zip(MEASURES, values, strict=True))
