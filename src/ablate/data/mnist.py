"""MNIST and Fashion-MNIST: 28 by 28 gray images, ten classes, 60,000 and 10,000 for the test.

LeCun et al. 1998, "Gradient-based learning applied to document recognition", section III; Xiao et
al. 2017 (arXiv 1708.07747). Both come as four files in the idx format: two bytes of zero, the type
of the numbers (8: bytes), the number of dimensions, each dimension as four bytes, then the data.
"""

from hashlib import md5
from pathlib import Path
from typing import Any, ClassVar

import numpy as np

from ablate.data import source
from ablate.data.augment import Pixels
from ablate.data.images import Arrays, Source
from ablate.data.torchvision_download import TorchvisionImages, download
from ablate.errors import UserError

FILES = [
    "train-images-idx3-ubyte",
    "train-labels-idx1-ubyte",
    "t10k-images-idx3-ubyte",
    "t10k-labels-idx1-ubyte",
]


class Mnist(TorchvisionImages):
    """root: a folder with the four files, plain or .gz, or torchvision's root; null downloads."""

    side = 28
    title = "MNIST"
    # Of the unpacked files; checked when they are read.
    md5: ClassVar[list[str]] = [
        "6bbc9ace898e44ae57da46a324031adb",
        "a25bea736e30d166cdddb491f175f624",
        "2646ac647ad5339dbf082846283269ea",
        "27ae3e4e09519cfbb04c329615203637",
    ]
    classes: ClassVar[list[str]] = [str(digit) for digit in range(10)]

    def __init__(self, *, root: str | None, **options: Any) -> None:
        super().__init__(root=root, **options)
        self.class_names = list(self.classes)

    def read(self) -> dict[str, Source]:
        paths = self._files()
        images, labels, test_images, test_labels = (
            self._array(path, expected) for path, expected in zip(paths, self.md5, strict=True)
        )
        test = Arrays(test_images[..., None], test_labels)
        return self.divided(Arrays(images[..., None], labels), test)

    def _files(self) -> list[Path]:
        root = source.cache() / "torchvision" if self.root is None else source.local(self.root)
        files = self._files_in(root)
        if not files and self.root is None:
            files = self._files_in(download(self.title))
        if not files:
            raise UserError(
                f"data.root={self.root}: has no {self.title} files ({FILES[0]}.gz and the like); "
                "data.root=null downloads them"
            )
        return files

    def _files_in(self, root: Path) -> list[Path]:
        """The four files, or none: directly in `root`, or in torchvision's folder of them."""
        for folder in (root, root / self.title / "raw"):
            either = [(folder / name, folder / f"{name}.gz") for name in FILES]
            files = [path for pair in either for path in [p for p in pair if p.is_file()][:1]]
            if len(files) == len(FILES):
                return files
        return []

    def _array(self, path: Path, expected: str) -> Pixels:
        raw = source.read(str(path), key="data.root")
        if md5(raw, usedforsecurity=False).hexdigest() != expected:
            raise UserError(f"data.root: {path} is damaged or not the {self.title} file")
        dimensions = raw[3]
        shape = np.frombuffer(raw, ">u4", count=dimensions, offset=4)
        return np.frombuffer(raw, np.uint8, offset=4 + 4 * dimensions).reshape(shape)


class FashionMnist(Mnist):
    """Zalando's images of clothing."""

    title = "FashionMNIST"
    md5: ClassVar[list[str]] = [
        "f4a8712d7a061bf5bd6d2ca38dc4d50a",
        "9018921c3c673c538a1fc5bad174d6f9",
        "8181f5470baa50b63fa0f6fddb340f0a",
        "15d484375f8d13e6eb1aabb0c3f46965",
    ]
    classes: ClassVar[list[str]] = [
        "T-shirt/top",
        "Trouser",
        "Pullover",
        "Dress",
        "Coat",
        "Sandal",
        "Shirt",
        "Sneaker",
        "Bag",
        "Ankle boot",
    ]
