"""CIFAR-10 and CIFAR-100: 32 by 32 color photographs, 50,000 and 10,000 for the test.

Krizhevsky 2009, "Learning multiple layers of features from tiny images", chapter 3.
"""

from pathlib import Path
from typing import Any, ClassVar

import numpy as np

from ablate.data import digest, source
from ablate.data.images import Arrays, Images, Source
from ablate.data.split import VALIDATION, hold_out
from ablate.data.torchvision_download import download
from ablate.errors import UserError


class Cifar10(Images):
    """root: the folder that contains the unpacked archive's folder; null downloads.

    The official test split is the test split; the validation split is held out of the training
    split by a hash of each image's number.
    """

    side: ClassVar[int] = 32  # pixels
    title: ClassVar[str] = "CIFAR10"
    folder: ClassVar[str] = "cifar-10-batches-py"
    # Of the archive; identifies the data set. torchvision checks each file it reads.
    md5: ClassVar[str] = "c58f30108f718f92721af3b95e74349a"

    def __init__(self, *, root: str | None, **options: Any) -> None:
        super().__init__(**options)
        self.root = root

    def fingerprint(self) -> str:
        return digest(self.title, self.md5, "hold_out", VALIDATION)

    def read(self) -> dict[str, Source]:
        root = download(self.title) if self.root is None else source.local(self.root)
        everything, test = self._part(root, train=True), self._part(root, train=False)
        train, val = hold_out([f"{self.title}/{n}".encode() for n in range(len(everything.labels))])
        return {"train": everything.subset(train), "val": everything.subset(val), "test": test}

    def _part(self, root: Path, *, train: bool) -> Arrays:
        import torchvision

        try:
            part = getattr(torchvision.datasets, self.title)(root, train=train)
        except (RuntimeError, OSError):
            raise UserError(
                f"data.root={self.root}: {root / self.folder} is missing or damaged; "
                f"it must contain the unpacked {self.title} archive; data.root=null downloads it"
            ) from None
        self.class_names = list(part.classes)
        return Arrays(part.data, np.array(part.targets))


class Cifar100(Cifar10):
    """The hundred fine classes."""

    title = "CIFAR100"
    folder = "cifar-100-python"
    md5 = "eb9058c3a382ffc7106e4002c42a8d85"
