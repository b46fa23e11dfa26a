"""Your own images and masks of their objects, files of the same name in two folders:

    root/images/NAME.jpg  root/masks/NAME.png      split by a hash of each name
    root/train/images/... root/val/images/...      the given splits: see ablate.data.class_folders

In a mask each value but 0, black, is an object: a number, an index of a palette, or a colour. Both
are scaled to a square.
"""

from collections.abc import Sequence
from pathlib import Path
from typing import Annotated, Literal

import numpy as np
from numpy.typing import NDArray
from PIL import Image
from torch import Tensor

from ablate import memory
from ablate.config.rules import PIXELS, Count, Int
from ablate.data import image_file
from ablate.data.class_folders import ClassFolders
from ablate.data.image_folder import ENDINGS
from ablate.data.segments import Objects, Segments
from ablate.errors import UserError

IMAGES, MASKS = "images", "masks"
# Of formats that keep each value as it is.
MASK_ENDINGS = (".png", ".bmp", ".gif", ".tif", ".tiff")
NUMBERS = ("1", "L", "P")  # Pillow's modes of one number a pixel


class MaskFolder(Segments):
    """root: the folder. size: pixels a side of the scaled images. background: the colour behind
    transparent pixels, white or black; null refuses an image that has some. min_pixels: objects
    with fewer, once they are scaled, are left out.
    """

    def __init__(
        self,
        *,
        root: str,
        size: Annotated[int, Int(1, PIXELS)],
        background: Literal["white", "black"] | None,
        min_pixels: Count,
        batch_size: Count,
        seed: int,
    ) -> None:
        super().__init__(batch_size=batch_size, seed=seed)
        self.root, self.size = self.checked("root", root), self.checked("size", size)
        self.background = self.checked("background", background)
        self.min_pixels = self.checked("min_pixels", min_pixels)
        self.images = ClassFolders(root, endings=ENDINGS, what="images", only=IMAGES)

    def fingerprint(self) -> str:
        masks = (self._mask(path) for paths in self.images.splits().values() for path in paths)
        return self.images.fingerprint(beside=masks)

    def read(self) -> dict[str, Objects]:
        splits = self.images.splits()
        count = sum(map(len, splits.values()))
        memory.require(7 * count * self.size**2, f"data.size={self.size}: {count} images")
        return {split: self._objects(split, paths) for split, paths in splits.items()}

    def read_image(self, file: Path) -> tuple[Tensor, tuple[int, int]]:
        image = image_file.read(file, key="--image", background=self.background or "white")
        return self.normalised(self._scaled(image)), (image.height, image.width)

    def _objects(self, split: str, paths: Sequence[Path]) -> Objects:
        pixels = np.empty((len(paths), self.size, self.size, 3), np.uint8)
        owners = np.empty((len(paths), self.size, self.size), np.int32)
        images: list[int] = []
        numbers: list[int] = []
        for n, path in enumerate(paths):
            image = image_file.read(path, key="data.root", background=self.background)
            pixels[n] = self._scaled(image)
            owners[n] = self._read_mask(path, image.size)
            present, sizes = np.unique(owners[n], return_counts=True)
            objects = present[(present > 0) & (sizes >= self.min_pixels)].tolist()
            images += [n] * len(objects)
            numbers += objects
        if not numbers:
            raise UserError(
                f"data.root={self.root}: the masks of the {split} split have no object of"
                f" data.min_pixels={self.min_pixels} pixels"
            )
        unfamiliar = np.zeros(len(numbers), bool)
        return Objects(pixels, owners, np.array(images), np.array(numbers), unfamiliar)

    def _scaled(self, image: Image.Image) -> NDArray[np.uint8]:
        return np.asarray(image.resize((self.size, self.size), Image.Resampling.BICUBIC))

    def _mask(self, image: Path) -> Path:
        folder = image.parent.with_name(MASKS)
        for ending in MASK_ENDINGS:
            if (path := folder / f"{image.stem}{ending}").is_file():
                return path
        raise UserError(
            f"data.root={self.root}: {image.name} has no mask {folder}/{image.stem}.png"
        )

    def _read_mask(self, image: Path, size: tuple[int, int]) -> NDArray[np.int32]:
        """The number of the object of each pixel, 0: none."""
        path = self._mask(image)
        try:
            with Image.open(path) as opened:
                mask = opened if opened.mode in NUMBERS else opened.convert("RGB")
                deep = opened.mode.startswith(("I", "F"))
                mask_size = mask.size
                mask = mask.resize((self.size, self.size), Image.Resampling.NEAREST)
        except Exception as error:  # Pillow's decoders raise anything on a damaged file
            raise UserError(f"data.root: cannot decode the mask {path} ({error})") from None
        if deep:
            raise UserError(
                f"data.root: the mask {path} has pixels of more than 8 bits; convert it to 8"
                " bits, a palette, or colours"
            )
        if mask_size != size:
            raise UserError(
                f"data.root: the mask {path} is {mask_size[0]} pixels wide and {mask_size[1]} high,"
                f" and its image {size[0]} and {size[1]}"
            )
        values = np.asarray(mask).astype(np.int32)
        return values if values.ndim == 2 else values @ np.array([2**16, 2**8, 1], np.int32)
