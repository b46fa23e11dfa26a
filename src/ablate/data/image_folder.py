"""Encoded images of any number, which workers decode; those on disk have a folder for each class:
see ablate.data.class_folders."""

from collections.abc import Sequence
from typing import Annotated, Any, Literal

import numpy as np
from numpy.typing import NDArray
from PIL import Image, ImageOps

from ablate.config.rules import PIXELS, Int
from ablate.data import image_file
from ablate.data.augment import Pixels
from ablate.data.batches import Workers
from ablate.data.class_folders import ClassFolders
from ablate.data.images import CHUNK, Images, Source
from ablate.machine import memory

ENDINGS = {".bmp", ".gif", ".jpeg", ".jpg", ".png", ".ppm", ".tif", ".tiff", ".webp"}
# Decoding every image of a large folder only for its mean would take longer than an epoch.
MEASURED = 1000


class Encoded:
    """Encoded images, decoded on access, in color: the largest center square, scaled to `size`."""

    def __init__(
        self, contents: Sequence[Any], labels: Sequence[int], size: int, background: str | None
    ) -> None:
        self.contents, self.size, self.background = contents, size, background
        self.labels: NDArray[np.int64] = np.array(labels, np.int64)

    def pixels(self, numbers: NDArray[np.int64]) -> Pixels:
        size = (self.size, self.size)
        images = (self.read(int(number)) for number in numbers)
        return np.stack(
            [np.asarray(ImageOps.fit(each, size, Image.Resampling.BICUBIC)) for each in images]
        )

    def read(self, number: int) -> Image.Image:
        """An image; `contents` are the paths of files."""
        return image_file.read(self.contents[number], key="data.root", background=self.background)


class EncodedImages(Images):
    """Mean and standard deviation are those of at most 1,000 training images, evenly spaced over
    the split."""

    def __init__(
        self,
        *,
        size: Annotated[int, Int(1, PIXELS)],
        background: Literal["white", "black"] | None = None,
        workers: Workers | None = None,
        **options: Any,
    ) -> None:
        super().__init__(workers=workers, **options)
        self.size = size
        self.background = background

    def measured(self, count: int) -> NDArray[np.int64]:
        return np.unique(np.linspace(0, count - 1, min(count, MEASURED)).round().astype(np.int64))

    def require_room(self, images: int) -> None:
        """Raise UserError if the training images that are decoded together exceed the memory."""
        count = min(CHUNK, MEASURED, images)
        memory.require(3 * count * self.size**2, f"data.size={self.size}: {count} images at once")


class ImageFolder(EncodedImages):
    """Images of files, in a folder for each class."""

    def __init__(self, *, root: str, **options: Any) -> None:
        super().__init__(**options)
        self.files = ClassFolders(root, endings=ENDINGS, what="images")

    def fingerprint(self) -> str:
        return self.files.fingerprint()

    def read(self) -> dict[str, Source]:
        splits = self.files.splits(whole=self.whole)
        self.files.warn_of_copies(splits)
        self.require_room(len(splits.get("train", splits["val"])))
        self.class_names, labels = self.files.labels(splits, self.known_classes)
        return {
            split: Encoded(paths, labels[split], self.size, self.background)
            for split, paths in splits.items()
        }
