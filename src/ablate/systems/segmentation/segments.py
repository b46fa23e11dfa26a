"""Base of the images whose objects have masks. An example is one object of an image. A batch
contains

images      b c y x   mean 0 and standard deviation 1 of each channel over the training split
masks       b y x     True at the visible pixels of the object
points      b p 2     a click on the object, then padding: see ablate.systems.segmentation.prompts
labels      b p
unfamiliar  b         whether training has no objects of its class
index       b         the example's number in its split
void        b y x     True at pixels without a label, if a split has some
"""

from abc import abstractmethod
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any, ClassVar, NamedTuple

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor
from torch.utils.data import Dataset

from ablate.data import Data
from ablate.data.images import Arrays, statistics
from ablate.data.interface import Sizes, TaskSettings
from ablate.data.loader import Batch, Request
from ablate.systems.segmentation.prompts import FIRST, PADDING, centers, first_click

NO_OBJECT, NO_LABEL = -1, -2  # owners of a pixel of no object, and of one without a label
CHUNK = 256  # masks at a time, which bounds the memory


class Objects(NamedTuple):
    """The objects of a split. pixels: n y x c. owners: n y x, the number of the object at each
    pixel; the background has another, such as NO_OBJECT, a pixel without a label NO_LABEL. image,
    number, unfamiliar: of each example.
    """

    pixels: NDArray[np.uint8]
    owners: NDArray[Any]
    image: NDArray[np.int64]
    number: NDArray[np.int64]
    unfamiliar: NDArray[np.bool_]


class Segmented(Dataset[Batch]):
    """points: of every prompt; those after the first click are padding."""

    def __init__(self, objects: Objects, *, mean: Tensor, std: Tensor, points: int) -> None:
        self.pixels = torch.from_numpy(objects.pixels).movedim(-1, 1)
        self.owners = torch.from_numpy(objects.owners)
        self.image, self.number = map(torch.from_numpy, (objects.image, objects.number))
        self.unfamiliar = torch.from_numpy(objects.unfamiliar)
        self.mean, self.std = (value.float()[:, None, None] for value in (mean, std))
        every = torch.arange(len(self)).split(CHUNK)
        self.points, self.labels = first_click(torch.cat([centers(self.masks(n)) for n in every]))
        self.padding = points - FIRST
        self.has_void = bool((self.owners == NO_LABEL).any())

    def __len__(self) -> int:
        return len(self.image)

    def masks(self, numbers: Tensor) -> Tensor:
        return self.owners[self.image[numbers]] == self.number[numbers, None, None]

    def __getitem__(self, request: Request) -> Batch:
        numbers = request.indices
        padding = self.points.new_zeros(len(numbers), self.padding, 2)
        owners = self.owners[self.image[numbers]]
        void = {"void": owners == NO_LABEL} if self.has_void else {}
        return void | {
            "images": (self.pixels[self.image[numbers]].float() - self.mean) / self.std,
            "masks": owners == self.number[numbers, None, None],
            "points": torch.cat([self.points[numbers], padding], dim=1),
            "labels": torch.cat([self.labels[numbers], padding[..., 0] + PADDING], dim=1),
            "unfamiliar": self.unfamiliar[numbers],
            "index": numbers,
        }


@dataclass(frozen=True, kw_only=True)
class PromptedSizes(Sizes):
    """prompt_length: the points of a prompt."""

    prompt_length: int


@dataclass(frozen=True)
class Clicks(TaskSettings):
    """count: clicks on an example."""

    count: int = 1


class Segments(Data):
    """A subclass reads the objects of every split.

    mean, std: of the training images, between black 0 and white 1.
    """

    kind: ClassVar[str] = "images with masks"
    unit: ClassVar[str] = "objects"
    white: ClassVar[int] = 255
    sizes_class: ClassVar[type[Sizes]] = PromptedSizes
    task_settings: Clicks | None
    mean: Tensor
    std: Tensor

    @abstractmethod
    def read(self) -> Mapping[str, Objects]:
        """The splits; each has an object."""

    @abstractmethod
    def read_image(self, file: Path) -> tuple[Tensor, tuple[int, int]]:
        """An image file as the model reads it, 1 c y x, and its own height and width."""

    @property
    def unfamiliar(self) -> bool:
        """Whether some examples are of classes that training has none of, without reading them; a
        subclass that has such examples overrides it."""
        return False

    def load(self) -> None:
        objects = self.read()
        pixels = objects.get("train", objects["val"]).pixels
        if isinstance(self.measured_as, Segments):
            self.mean, self.std = self.measured_as.mean, self.measured_as.std
        else:
            both = statistics(Arrays(pixels, np.zeros(len(pixels))), np.arange(len(pixels)))
            self.mean, self.std = (value / self.white for value in both)
        mean, std = (value * self.white for value in (self.mean, self.std))
        points = FIRST - 1 + (self.task_settings or Clicks()).count
        self.splits = {
            split: Segmented(objects_of_split, mean=mean, std=std, points=points)
            for split, objects_of_split in objects.items()
        }
        rows, columns, channels = pixels.shape[1:]
        self.sizes = PromptedSizes(
            image_size=(rows, columns), channels=channels, prompt_length=points
        )

    def example(self, index: int = 0) -> dict[str, Any]:
        """A validation example with only its first prompt."""
        batch = super().example(index)
        return batch | {name: batch[name][:, :FIRST] for name in ("points", "labels")}

    def fitted(self) -> dict[str, Any]:
        return {"mean": self.mean, "std": self.std}

    def use_fitted(self, fitted: dict[str, Any]) -> None:
        self.mean, self.std = fitted["mean"], fitted["std"]

    def visible(self, image: Tensor) -> Tensor:
        """Undo the normalization: c y x -> y x 3 between black 0 and white 1."""
        mean, std = (value.float()[:, None, None] for value in (self.mean, self.std))
        return (image * std + mean).clamp(0, 1).expand(3, -1, -1).movedim(0, -1)

    def normalized(self, pixels: NDArray[np.uint8]) -> Tensor:
        """y x c -> 1 c y x."""
        image = torch.tensor(pixels).movedim(-1, 0)[None].float() / self.white
        return (image - self.mean.float()[:, None, None]) / self.std.float()[:, None, None]
