"""A captioner of this project that reads images which another model has generated."""

from pathlib import Path
from typing import Any

import torch
from torch import Tensor

from ablate.data.digit_strings import DigitStrings
from ablate.errors import UserError
from ablate.training.load import load

BATCH = 64  # images at once


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
