"""Handwritten digits of 8 by 8 pixels in 17 shades: the 1,797 that come with scikit-learn.

The test part of "Optical Recognition of Handwritten Digits" (Alpaydin and Kaynak 1998), UCI
Machine Learning Repository, https://doi.org/10.24432/C50P49. No two of the images are equal.
"""

import gzip
import importlib.util
import io
from hashlib import sha256
from pathlib import Path
from typing import Annotated, Any, ClassVar

import numpy as np
from einops import rearrange

from ablate.config.rules import Int
from ablate.data import digest
from ablate.data.images import Arrays, Images, Source
from ablate.data.split import BOUNDS, three_way

SIDE = 8  # pixels of a digit


class Digits(Images):
    """The split of each image is chosen by a hash of its pixels.

    shift: pixels that the images of validation and test are moved down and to the right, filled
    with black. As a condition of `evaluate` it measures a model on moved images.
    """

    side: ClassVar[int] = SIDE
    white: ClassVar[int] = 16

    def __init__(self, *, shift: Annotated[int, Int(0, 7)] = 0, **options: Any) -> None:
        super().__init__(**options)
        self.shift = shift

    def read(self) -> dict[str, Source]:
        table = np.loadtxt(io.BytesIO(content()), np.uint8, delimiter=",")  # an image, its digit
        images, labels = rearrange(table[:, :-1], "b (y x) -> b y x 1", y=self.side), table[:, -1]
        everything = Arrays(images, labels)
        self.class_names = [str(digit) for digit in range(10)]
        split = three_way([image.tobytes() for image in images])
        moved = np.zeros_like(images)
        rest = self.side - self.shift
        moved[:, self.shift :, self.shift :] = images[:, :rest, :rest]
        measured = Arrays(moved, labels)
        return {
            name: (everything if name == "train" else measured).subset(numbers)
            for name, numbers in split.items()
        }

    def fingerprint(self) -> str:
        shifts = [self.shift] if self.shift else []
        return digest(sha256(content()).hexdigest(), BOUNDS, *shifts)


def content() -> bytes:
    """Scikit-learn's table, found without importing scikit-learn, which takes a second."""
    spec = importlib.util.find_spec("sklearn")
    assert spec is not None
    assert spec.origin is not None
    file = Path(spec.origin).parent / "datasets" / "data" / "digits.csv.gz"
    return gzip.decompress(file.read_bytes())
