"""Images on disk, one folder for each class: see ablate.data.class_folders."""

from pathlib import Path
from typing import Annotated, Any, Literal

import numpy as np
from numpy.typing import NDArray
from PIL import Image, ImageOps

from ablate.config.rules import PIXELS, Int
from ablate.data import image_file
from ablate.data.augment import Pixels
from ablate.data.class_folders import ClassFolders
from ablate.data.images import CHUNK, Images, Source
from ablate.machine import memory

ENDINGS = {".bmp", ".gif", ".jpeg", ".jpg", ".png", ".ppm", ".tif", ".tiff", ".webp"}
# Decoding every image of a large folder only for its mean would take longer than an epoch.
MEASURED = 1000


class Files:
    """Image files, decoded on access, in color, at the given size."""

    def __init__(
        self, paths: list[Path], labels: list[int], size: int, background: str | None
    ) -> None:
        self.paths, self.size, self.background = paths, size, background
        self.labels: NDArray[np.int64] = np.array(labels, np.int64)

    def pixels(self, numbers: NDArray[np.int64]) -> Pixels:
        return np.stack([self._decoded(self.paths[number]) for number in numbers])

    def _decoded(self, path: Path) -> Pixels:
        """The largest center square, scaled to `size`."""
        image = image_file.read(path, key="data.root", background=self.background)
        square = ImageOps.fit(image, (self.size, self.size), Image.Resampling.BICUBIC)
        return np.asarray(square)


class ImageFolder(Images):
    """root: the folder. size: pixels per side of the scaled and cropped images. background:
    the color behind transparent pixels, white or black; null rejects an image that has some.

    Mean and standard deviation are those of at most 1,000 training images, evenly spaced over the
    split.
    """

    def __init__(
        self,
        *,
        root: str,
        size: Annotated[int, Int(1, PIXELS)],
        background: Literal["white", "black"] | None = None,
        **options: Any,
    ) -> None:
        super().__init__(**options)
        self.size = size
        self.background = background
        self.files = ClassFolders(root, endings=ENDINGS, what="images")

    def measured(self, count: int) -> NDArray[np.int64]:
        return np.unique(np.linspace(0, count - 1, min(count, MEASURED)).round().astype(np.int64))

    def fingerprint(self) -> str:
        return self.files.fingerprint()

    def read(self) -> dict[str, Source]:
        splits = self.files.splits(whole=self.whole)
        self.files.warn_of_copies(splits)
        count = min(CHUNK, MEASURED, len(splits.get("train", splits["val"])))
        memory.require(3 * count * self.size**2, f"data.size={self.size}: {count} images at once")
        self.class_names, labels = self.files.labels(splits, self.known_classes)
        return {
            split: Files(paths, labels[split], self.size, self.background)
            for split, paths in splits.items()
        }
