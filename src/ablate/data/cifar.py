"""CIFAR-10 and CIFAR-100: 32 by 32 color photographs, 50,000 and 10,000 for the test.

Krizhevsky 2009, "Learning multiple layers of features from tiny images", chapter 3.
"""

from pathlib import Path
from typing import ClassVar

import numpy as np

from ablate.data import source
from ablate.data.images import Arrays, Source
from ablate.data.torchvision_download import TorchvisionImages, download
from ablate.errors import UserError


class Cifar10(TorchvisionImages):
    """root: the folder that contains the unpacked archive's folder; null downloads."""

    side = 32
    title = "CIFAR10"
    folder: ClassVar[str] = "cifar-10-batches-py"
    md5 = "c58f30108f718f92721af3b95e74349a"  # of the archive; torchvision checks each file

    def read(self) -> dict[str, Source]:
        root = download(self.title) if self.root is None else source.local(self.root)
        return self.divided(self._part(root, train=True), self._part(root, train=False))

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
