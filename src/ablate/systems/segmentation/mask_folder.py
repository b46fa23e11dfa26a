"""Your own images and masks of their objects, files of the same name in two folders:

    root/images/NAME.jpg  root/masks/NAME.png      split by a hash of each name
    root/train/images/... root/val/images/...      the given splits: see ablate.data.class_folders

In a mask each color that a viewer shows is an object, but black, which is none. A mask whose
colors are those of smoothed edges, of JPEG or of a photograph is rejected, and so is one whose
display is ambiguous because of transparency or EXIF. Images and masks are scaled to a square.
"""

import json
import logging
from collections.abc import Sequence
from pathlib import Path
from typing import Annotated, Literal

import numpy as np
from numpy.typing import NDArray
from PIL import Image, ImageOps
from torch import Tensor

from ablate.config.rules import PIXELS, Count, Int, ListOf
from ablate.data import image_file
from ablate.data.class_folders import ClassFolders
from ablate.data.image_file import ORIENTATION
from ablate.data.image_folder import ENDINGS
from ablate.errors import UserError, few
from ablate.machine import memory
from ablate.machine.terminal.bar import progress
from ablate.systems.segmentation.segments import NO_LABEL, Objects, Segments

log = logging.getLogger(__name__)
IMAGES, MASKS = "images", "masks"
# Of formats that keep each value as it is.
MASK_ENDINGS = (".png", ".bmp", ".gif", ".tif", ".tiff")
RGB = np.array([2**16, 2**8, 1], np.int32)  # a color as one number
GRAY = int(RGB.sum())  # times a level
VOID = 255  # PASCAL VOC's and Cityscapes' number of no class
BORDER = "[224,224,192]"  # PASCAL VOC's color of it
CLASSES = 128  # theirs are below
Number = Annotated[int, Int(1, VOID)]
Color = Annotated[Sequence[int], ListOf(Int(0, VOID), length=3)]


class MaskFolder(Segments):
    """root: the folder. size: pixels per side of the scaled images. background: the color behind
    transparent pixels, white or black; null rejects an image that has some. min_pixels: objects
    with fewer, once they are scaled, are left out. void: the number (of a gray or a palette) or the
    color [red, green, blue] of pixels without a label: they are not an object, and count neither in
    the loss nor in the measures.
    """

    def __init__(
        self,
        *,
        root: str,
        size: Annotated[int, Int(1, PIXELS)],
        background: Literal["white", "black"] | None,
        min_pixels: Count,
        void: Number | Color | None = None,
        batch_size: Count,
        seed: int,
    ) -> None:
        super().__init__(batch_size=batch_size, seed=seed)
        self.root, self.size = root, size
        self.background = background
        self.min_pixels = min_pixels
        self.void = void if void is None or isinstance(void, int) else list(void)
        self.images = ClassFolders(root, endings=ENDINGS, what="images", only=IMAGES)

    def fingerprint(self) -> str:
        masks = (self._mask(path) for paths in self.images.splits().values() for path in paths)
        return self.images.fingerprint(beside=masks)

    def read(self) -> dict[str, Objects]:
        splits = self.images.splits(whole=self.whole)
        self.images.warn_of_copies(splits)
        count = sum(map(len, splits.values()))
        memory.require(7 * count * self.size**2, f"data.size={self.size}: {count} images")
        self._framed = list[str]()
        self._like_void: dict[str, list[str]] = {str(VOID): [], BORDER: []}
        objects = {split: self._objects(split, paths) for split, paths in splits.items()}
        if 2 * len(self._framed) > count:
            log.warning(
                "ablate: data.root=%s: in %d of the %d masks one object has all four corners (%s);"
                " black is the background, so invert masks whose background is another color",
                *(self.root, len(self._framed), count, few(self._framed, ", ", 3)),
            )
        for void, names in self._like_void.items():
            if names:
                log.warning(
                    "ablate: data.root=%s: %d of the %d masks have the value %s next to others"
                    " (%s), which often means an unlabeled pixel; data.void=%s ignores it",
                    *(self.root, len(names), count, void, few(names, ", ", 3), void),
                )
        return objects

    def read_image(self, file: Path) -> tuple[Tensor, tuple[int, int]]:
        image = image_file.read(file, key="--image", background=self.background or "white")
        return self.normalized(self._scaled(image)), (image.height, image.width)

    def _objects(self, split: str, paths: Sequence[Path]) -> Objects:
        pixels = np.empty((len(paths), self.size, self.size, 3), np.uint8)
        owners = np.empty((len(paths), self.size, self.size), np.int32)
        images: list[int] = []
        numbers: list[int] = []
        for n, path in enumerate(progress(paths, f"reading {split}", "masks")):
            image = image_file.read(path, key="data.root", background=self.background)
            pixels[n] = self._scaled(image)
            owners[n] = self._read_mask(path, image)
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
        folder = self.images.folder_of(image)
        file = folder.with_name(MASKS) / image.relative_to(folder)
        for ending in MASK_ENDINGS:
            if (path := file.with_name(f"{image.stem}{ending}")).is_file():
                return path
        raise UserError(
            f"data.root={self.root}: {image.name} has no mask {file.with_name(image.stem)}.png"
            f" (known endings: {' '.join(MASK_ENDINGS)})"
        )

    def _read_mask(self, path: Path, image: Image.Image) -> NDArray[np.int32]:
        """The number of the object of each pixel of the scaled image; 0: none, NO_LABEL: void.
        path: of the image, which is upright."""
        orientation, stored = image_file.decoded(
            path, lambda file: (file.getexif().get(ORIENTATION, 1), file.size), key="data.root"
        )
        path = self._mask(path)

        def convert(mask: Image.Image) -> NDArray[np.int32]:
            _require_labels_fit(mask)
            if orientation in range(2, 9) and mask.getexif().get(ORIENTATION, 1) == 1:
                # The mask of the stored or of the displayed image: only their sizes can tell.
                if stored == image.size:
                    raise image_file.Unclear(
                        f"is not turned as EXIF turns its image (orientation {orientation}), so"
                        " it may not match; save the image upright"
                    )
                if mask.size == stored:
                    mask.getexif()[ORIENTATION] = orientation
            upright = ImageOps.exif_transpose(mask)
            if upright.size != image.size:
                raise image_file.Unclear(
                    f"has {upright.width} x {upright.height} pixels, and its image"
                    f" {image.width} x {image.height}"
                )
            return self._labels(upright, path.name)

        labels = image_file.decoded(path, convert, key="data.root", what="mask")
        scaled = Image.fromarray(labels).resize((self.size, self.size), Image.Resampling.NEAREST)
        return np.asarray(scaled)

    def _labels(self, mask: Image.Image, name: str) -> NDArray[np.int32]:
        """The number of the object of each pixel; 0 of black, NO_LABEL of void."""
        shown = image_file.on_background(mask, self.background)
        labels: NDArray[np.int32] = np.asarray(shown).astype(np.int32) @ RGB
        if mask.mode == "P":
            numbers = np.asarray(mask).astype(np.int32)
            used = numbers != (self.void if isinstance(self.void, int) else -1)
            _require_one_color_each(numbers[used], labels[used])
        else:
            numbers = np.where(labels % GRAY == 0, labels // GRAY, -1)
        void = np.zeros(labels.shape, bool)
        if self.void is not None:
            by_number = isinstance(self.void, int)
            void = numbers == self.void if by_number else labels == np.array(self.void) @ RGB
        labels[void] = 0
        _require_no_edges(labels)
        corner = labels[0, 0]
        if corner and (labels[[0, -1, -1], [-1, 0, -1]] == corner).all():
            self._framed.append(name)
        *lower, last = np.unique(numbers[labels > 0]).tolist() or [0]
        if last == VOID and lower and lower[0] >= 0 and lower[-1] < CLASSES:
            self._like_void[str(VOID)].append(name)
        elif (labels == np.array(json.loads(BORDER)) @ RGB).any() and len(np.unique(labels)) > 2:
            self._like_void[BORDER].append(name)
        if mask.mode == "P":  # in the order of its numbers; 0 may be an object
            labels = np.where(labels > 0, np.where(numbers == 0, VOID + 1, numbers), 0)
        labels[void] = NO_LABEL
        return labels


def _require_labels_fit(mask: Image.Image) -> None:
    """Raise Unclear for a file that cannot store exact labels, or more than Pillow
    reads."""
    image_file.require_one_page(mask)
    if mask.format in ("JPEG", "MPO"):
        raise image_file.Unclear("is a JPEG inside, which changes values; save it as PNG")
    stored = str(getattr(mask, "tile", ""))  # Pillow reads colors of 16 bits as of 8
    if mask.mode.startswith(("I", "F")) or ";16" in stored:
        raise image_file.Unclear(
            "has pixels of more than 8 bits; convert it to 8 bits, a palette, or colors"
        )


def _require_one_color_each(numbers: NDArray[np.int32], labels: NDArray[np.int32]) -> None:
    """Raise Unclear if a palette shows two of the numbers that are used alike."""
    by_color: dict[int, int] = {}
    for pair in np.unique(numbers.astype(np.int64) << 24 | labels).tolist():
        number, color = divmod(pair, 2**24)
        if (other := by_color.setdefault(color, number)) != number:
            raise image_file.Unclear(
                f"has the numbers {other} and {number}, which its palette shows in the same color,"
                f" #{color:06x}; a viewer's colors are the objects"
            )


def _require_no_edges(labels: NDArray[np.int32]) -> None:
    """Raise Unclear if at least half of the colors are not labels, but between others: those of
    a smoothed edge, of JPEG's noise, of a photograph.

    Such a color fills no block of 3 x 3 pixels, and half of its pixels are neither the darkest nor
    the brightest around, or they lie scattered.
    """
    from scipy.ndimage import maximum_filter, minimum_filter

    names, which, counts = np.unique(labels, return_inverse=True, return_counts=True)
    if len(names) < 3:  # black and one color, or two that fill the image
        return
    which = which.reshape(labels.shape)

    def count(pixels: NDArray[np.bool_]) -> NDArray[np.int64]:
        return np.bincount(which[pixels], minlength=len(names))

    gray = (labels // 2**16 + labels // 2**8 % 2**8 + labels % 2**8).astype(np.int16)
    solid = count(minimum_filter(which, 3) == maximum_filter(which, 3))
    between = count((minimum_filter(gray, 3) < gray) & (gray < maximum_filter(gray, 3)))
    around = np.pad(which, 1, constant_values=-1)
    before = ((0, 0), (0, 1), (0, 2), (1, 0))  # the neighbors that were read already
    height, width = labels.shape
    joined = np.any([around[y:, x:][:height, :width] == which for y, x in before], axis=0)
    pieces = count(~joined)
    scattered = (pieces >= 3) & (counts < 4 * pieces)
    edges = (names > 0) & (solid == 0) & ((2 * between >= counts) | scattered)
    if 2 * edges.sum() >= (names > 0).sum():
        raise image_file.Unclear(
            f"has {(names > 0).sum():,} colors; {edges.sum():,} of them only occur between others,"
            " as smoothed edges and JPEG make them; save it without (nearest neighbor, PNG)"
        )
