"""Any pictures on disk, one folder for each class.

    root/train/CLASS/*.jpg  root/val/CLASS/*.jpg  root/test/CLASS/*.jpg     the given splits
    root/CLASS/*.jpg                                split by a hash of each file's relative path

With train/ but without val/, a hash of the paths holds the validation split out of train/; without
test/ there is no test split.
"""

from hashlib import sha256
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray
from PIL import Image, ImageOps

from ablate.data import digest
from ablate.data.augment import Pixels
from ablate.data.images import Images, Source
from ablate.data.options import checked
from ablate.data.split import BOUNDS, VALIDATION, hold_out, three_way
from ablate.errors import UserError

ENDINGS = {".bmp", ".gif", ".jpeg", ".jpg", ".png", ".ppm", ".tif", ".tiff", ".webp"}
# Decoding every picture of a large folder only for its mean would take longer than an epoch.
MEASURED = 1000


class Files:
    """Pictures that are decoded when they are asked for, in colour, at the size wanted."""

    def __init__(self, paths: list[Path], labels: list[int], size: int) -> None:
        self.paths, self.size = paths, size
        self.labels: NDArray[np.int64] = np.array(labels, np.int64)

    def pixels(self, numbers: NDArray[np.int64]) -> Pixels:
        return np.stack([self._decoded(self.paths[number]) for number in numbers])

    def subset(self, numbers: list[int]) -> "Files":
        return Files(
            [self.paths[n] for n in numbers], [int(self.labels[n]) for n in numbers], self.size
        )

    def _decoded(self, path: Path) -> Pixels:
        """The largest square in the middle, scaled to `size`."""
        try:
            with Image.open(path) as image:
                upright = ImageOps.exif_transpose(image).convert("RGB")
        except (OSError, SyntaxError, ValueError, Image.DecompressionBombError) as error:
            reason = str(error).splitlines()[0] if str(error) else type(error).__name__
            raise UserError(f"data.root: cannot decode the image {path} ({reason})") from None
        square = ImageOps.fit(upright, (self.size, self.size), Image.Resampling.BICUBIC)
        return np.asarray(square)


class ImageFolder(Images):
    """root: the folder. size: pixels a side that every picture is scaled and cropped to.

    Mean and deviation come from at most 1,000 training pictures, evenly spaced over the split.
    Files with endings other than those of pictures are not looked at.
    """

    def __init__(self, *, root: str, size: int, **options: Any) -> None:
        super().__init__(**options)
        self.size = checked("size", size)
        if not isinstance(root, str) or not root:
            raise UserError(f"data.root={root}: must be a folder of images")
        self.root = root

    def measured(self, count: int) -> NDArray[np.int64]:
        return np.unique(np.linspace(0, count - 1, min(count, MEASURED)).round().astype(np.int64))

    def fingerprint(self) -> str:
        """Over every path and every byte, so as slow as the disk."""
        content = sha256()
        for split, files in self._found().items():
            for path in files:
                content.update(f"{split}/{path.relative_to(self.folder).as_posix()}\0".encode())
                content.update(sha256(path.read_bytes()).digest())
        return digest(content.hexdigest(), BOUNDS, VALIDATION)

    @property
    def folder(self) -> Path:
        return Path(self.root).expanduser()

    def read(self) -> dict[str, Source]:
        found = self._found()
        first = "train" if "train" in found else ""
        self.class_names = sorted({path.parent.name for path in found[first]})
        sources = {split: self._files(split, paths) for split, paths in found.items()}
        sources = self._split(sources)
        for split, source in sources.items():
            if not len(source.labels):
                raise UserError(f"data.root={self.root}: the {split} split would be empty")
        return dict(sources)

    def _split(self, given: dict[str, Files]) -> dict[str, Files]:
        if "train" not in given:
            everything = given[""]
            return {
                split: everything.subset(numbers)
                for split, numbers in three_way(self._keys(everything)).items()
            }
        if "val" in given:
            return given
        train, val = hold_out(self._keys(given["train"]))
        return given | {"train": given["train"].subset(train), "val": given["train"].subset(val)}

    def _keys(self, files: Files) -> list[bytes]:
        return [path.relative_to(self.folder).as_posix().encode() for path in files.paths]

    def _found(self) -> dict[str, list[Path]]:
        """Picture files of each given split, in order; of the split "" where none is given."""
        if not self.folder.is_dir():
            raise UserError(f"data.root={self.root}: no such folder")
        given = [split for split in BOUNDS if (self.folder / split).is_dir()]
        if given and "train" not in given:
            raise UserError(f"data.root={self.root}: has {' and '.join(given)} but no train folder")
        found = {split: _pictures(self.folder / split) for split in given or [""]}
        for split, paths in found.items():
            if not paths:
                raise UserError(
                    f"data.root={self.root}: no pictures in {Path(split) / 'CLASS'}; "
                    f"known endings: {' '.join(sorted(ENDINGS))}"
                )
        return found

    def _files(self, split: str, paths: list[Path]) -> Files:
        for path in paths:
            if path.parent.name not in self.class_names:
                raise UserError(
                    f"data.root={self.root}: class {path.parent.name} of {split} is not in train"
                )
        labels = [self.class_names.index(path.parent.name) for path in paths]
        return Files(paths, labels, self.size)


def _pictures(folder: Path) -> list[Path]:
    return sorted(path for path in folder.glob("*/*") if path.suffix.lower() in ENDINGS)
