"""Labeled images: augmented in training, and normalized by the statistics of the training split
or, for a model with pretrained weights, by those that the weights expect."""

from abc import abstractmethod
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any, ClassVar, Protocol

import numpy as np
import torch
from einops import rearrange
from numpy.typing import NDArray
from torch.utils.data import Dataset

from ablate.config.rules import Count
from ablate.config.rules import Share as Probability
from ablate.data import Data
from ablate.data.augment import Augment, Pixels
from ablate.data.batches import Workers
from ablate.data.interface import Sizes
from ablate.data.loader import Batch, Order, Repeated, Request, Shuffled
from ablate.data.split import chosen
from ablate.errors import UserError
from ablate.machine.terminal.bar import progress

Normalization = tuple[
    Sequence[float], Sequence[float]
]  # mean and standard deviation of each channel
CHUNK = 512  # images processed at a time, which bounds the memory


class Source(Protocol):
    """The images of one split. labels: b, class numbers."""

    labels: NDArray[np.int64]

    def pixels(self, numbers: NDArray[np.int64]) -> Pixels:
        """The images with these numbers, b y x c."""


class Arrays:
    """Images in memory, b y x c."""

    def __init__(self, images: Pixels, labels: NDArray[Any]) -> None:
        assert images.ndim == 4
        assert len(images) == len(labels)
        self.images, self.labels = images, labels.astype(np.int64)

    def pixels(self, numbers: NDArray[np.int64]) -> Pixels:
        chosen: Pixels = self.images[numbers]
        return chosen

    def subset(self, numbers: list[int]) -> "Arrays":
        return Arrays(self.images[numbers], self.labels[numbers])


class Some:
    """The images of a source that have these numbers."""

    def __init__(self, source: Source, numbers: NDArray[np.int64]) -> None:
        self.source, self.numbers, self.labels = source, numbers, source.labels[numbers]

    def pixels(self, numbers: NDArray[np.int64]) -> Pixels:
        return self.source.pixels(self.numbers[numbers])


class Normalized(Dataset[Batch]):
    """images: b c y x with mean 0 and standard deviation 1 per channel over the training split.
    targets: b. An index beyond the images is another copy, with its own augmentation.

    mean, std: of each channel, in the units of the pixels.
    """

    def __init__(
        self, source: Source, *, mean: torch.Tensor, std: torch.Tensor, augment: Augment | None
    ) -> None:
        self.source, self.augment = source, augment
        self.mean, self.std = (rearrange(t.float(), "c -> c 1 1") for t in (mean, std))
        self.targets = torch.from_numpy(source.labels)

    def __len__(self) -> int:
        return len(self.targets)

    def __getitem__(self, request: Request) -> Batch:
        copies, numbers = np.divmod(request.indices.numpy(), len(self))
        pixels = self.source.pixels(numbers)
        examples = [
            (int(number), int(copy))[: 1 + bool(copy)]
            for number, copy in zip(numbers, copies, strict=True)
        ]
        if self.augment is not None:
            pixels = np.stack(
                [
                    self.augment(image, epoch=request.epoch, example=example)
                    for image, example in zip(pixels, examples, strict=True)
                ]
            )
        images = rearrange(torch.from_numpy(pixels), "b y x c -> b c y x").float()
        images = ((images - self.mean) / self.std).contiguous()
        if self.augment is not None:
            for image, example in zip(images, examples, strict=True):
                self.augment.erase(image, epoch=request.epoch, example=example)
        return {"images": images, "targets": self.targets[numbers]}


class Images(Data):
    """Base of the image sets: a subclass reads the splits and names the classes.

    train_examples: a smaller number is a subset of a larger. flip, randaugment, erasing: see
    ablate.data.augment. repeats: Hoffer et al. 2019, 1901.09335. workers: affects only the speed.
    """

    kind: ClassVar[str] = "images"
    reads: ClassVar[tuple[str, ...]] = ("images",)
    unit: ClassVar[str] = "images"
    for_training: ClassVar[tuple[str, ...]] = (
        "train_examples", "flip", "randaugment", "erasing", "repeats",
    )  # fmt: skip
    white: ClassVar[int] = 255
    mean: torch.Tensor
    std: torch.Tensor
    class_names: list[str]
    # Mean and standard deviation that a model's pretrained weights expect, between black 0 and
    # white 1, of three channels; None: those of the data. Set by `make_data`.
    normalization: Callable[[], Normalization | None] = staticmethod(lambda: None)

    def __init__(
        self,
        *,
        batch_size: Count,
        seed: int,
        train_examples: Count | None = None,
        flip: bool = False,
        randaugment: str | None = None,
        erasing: Probability = 0.0,
        repeats: Count = 1,
        workers: Workers | None = 0,
    ) -> None:
        super().__init__(batch_size=batch_size, seed=seed, workers=workers)
        if batch_size % repeats:
            raise UserError(
                f"data.repeats={repeats}: data.batch_size={batch_size} must be a multiple of it"
            )
        self.erasing, self.repeats = erasing, repeats
        self.train_examples = train_examples
        self.flip, self.randaugment = flip, randaugment

    @abstractmethod
    def read(self) -> dict[str, Source]:
        """The splits; sets `class_names`."""

    def load(self) -> None:
        sources = self.read()
        if self.train_examples is not None and not self.whole:
            train = sources["train"]
            numbers = chosen(len(train.labels), self.train_examples, "images")
            sources["train"] = Some(train, numbers)
        height, width, channels = (
            sources.get("train", sources["val"]).pixels(np.arange(1)).shape[1:]
        )
        if isinstance(self.measured_as, Images):
            mean, std = (t * self.white for t in (self.measured_as.mean, self.measured_as.std))
        elif (given := self.normalization()) is not None:
            mean, std = (self.white * _of_channels(values, channels) for values in given)
        else:
            mean, std = statistics(sources["train"], self.measured(len(sources["train"].labels)))
        augment = None
        if self.flip or self.randaugment or self.erasing:
            color = (255 * mean / self.white).tolist()
            augment = Augment(
                seed=self.seed,
                flip=self.flip,
                randaugment=self.randaugment,
                erasing=self.erasing,
                mean=color,
                width=width,
            )
        self.splits = {
            split: Normalized(
                source, mean=mean, std=std, augment=augment if split == "train" else None
            )
            for split, source in sources.items()
        }
        # In units of black 0 and white 1, as they are usually quoted.
        self.mean, self.std = mean / self.white, std / self.white
        self.sizes = Sizes(
            image_size=(height, width), channels=channels, classes=len(self.class_names)
        )
        if len(self.class_names) < 2:
            raise UserError(f"data: class_names has the names {self.class_names}, and needs two")
        for split, source in sources.items():
            if wrong := set(source.labels.tolist()) - set(range(len(self.class_names))):
                raise UserError(
                    f"data: a label of the {split} split is {min(wrong)}, and class_names has"
                    f" {len(self.class_names)} names, so 0 to {len(self.class_names) - 1}"
                )

    def train_order(self) -> Order:
        if self.repeats == 1:
            return super().train_order()
        count, distinct = self.length("train"), self.batch_size // self.repeats
        if count < distinct:
            raise UserError(
                f"data.batch_size={self.batch_size} data.repeats={self.repeats}: a batch has"
                f" {distinct} images, and the training split only {count}"
            )
        order = Shuffled(count, distinct, seed=self.seed)
        return Repeated(order, self.repeats, count)

    def fitted(self) -> dict[str, Any]:
        return {"mean": self.mean, "std": self.std, "class_names": self.class_names}

    def use_fitted(self, fitted: dict[str, Any]) -> None:
        self.mean, self.std = fitted["mean"], fitted["std"]
        self.class_names = fitted["class_names"]

    def save_as_hf(self, folder: Path) -> None:
        from transformers import ViTImageProcessor

        assert self.sizes.image_size is not None
        height, width = self.sizes.image_size
        ViTImageProcessor(
            size={"height": height, "width": width},
            rescale_factor=1 / self.white,
            image_mean=self.mean.tolist(),
            image_std=self.std.tolist(),
        ).save_pretrained(folder)

    def measured(self, count: int) -> NDArray[np.int64]:
        """The training images from which mean and standard deviation are computed: all of them."""
        return np.arange(count)


def _of_channels(values: Sequence[float], channels: int) -> torch.Tensor:
    """Of each channel; for grays, whose weights are the sum over the colors', their mean."""
    of_colors = torch.tensor(values, dtype=torch.float64)
    return of_colors if len(values) == channels else of_colors.mean().expand(channels)


def statistics(source: Source, numbers: NDArray[np.int64]) -> tuple[torch.Tensor, torch.Tensor]:
    """Mean and standard deviation of each channel, exact: from counts of the 256 pixel values."""
    channels = source.pixels(numbers[:1]).shape[-1]
    counts = np.zeros((channels, 256))
    starts = range(0, len(numbers), CHUNK)
    for start in progress(starts, "mean and standard deviation of the images", "batches"):
        pixels = source.pixels(numbers[start : start + CHUNK])
        for channel in range(channels):
            counts[channel] += np.bincount(pixels[..., channel].ravel(), minlength=256)
    values, weights = np.arange(256), counts / counts.sum(1, keepdims=True)
    mean = weights @ values
    variance = weights @ values**2 - mean**2
    # A constant channel is not scaled, instead of being divided by zero.
    std = np.sqrt(np.where(variance < 1e-9, 1.0, variance))
    return torch.from_numpy(mean), torch.from_numpy(std)
