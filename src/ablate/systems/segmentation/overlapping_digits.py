"""Images of handwritten digits that overlap, and the visible pixels of one of them.

The digits are those of data=digits, enlarged, each with its own brightness, at random positions of
a black canvas; a later one hides earlier ones. The pixels of a digit are those whose ink is at
least a quarter of the darkest. A digit's image is used in one split only. Training has no digits of
the `unfamiliar` classes, and every second image of validation and test has only these: they measure
a model on objects that it has never seen.
"""

from pathlib import Path
from typing import Annotated, Any

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor
from torch.nn.functional import interpolate

from ablate.config.conflicts import Conflict
from ablate.config.rules import PIXELS, Count, Int, ListOf, Real
from ablate.data import digest, image_file
from ablate.data.digits import SIDE, Digits
from ablate.data.generated import Generated
from ablate.data.images import Source
from ablate.errors import UserError
from ablate.machine import memory
from ablate.random.seeding import derive
from ablate.systems.segmentation.segments import NO_OBJECT, Objects, Segments

INK = 1 / 4  # share of the darkest ink from which a pixel belongs to a digit
VISIBLE = 1 / 4  # least share of a digit that is visible when it is an example
Scale = Annotated[int, Int(1, PIXELS // SIDE)]


class OverlappingDigits(Generated, Segments):
    """size: pixels along a side. scale: how many times the digits are enlarged. min_digits,
    max_digits: in an image, sampled uniformly. dimmest: the brightness of a digit is sampled
    between it and 1. unfamiliar: the digits that training has none of.
    """

    conflicts = (
        Conflict(
            lambda c: c("data.scale") * SIDE > c("data.size"),
            "data.size={data.size} is too small for digits of 8 data.scale pixels, and"
            " data.scale={data.scale}",
        ),
    )

    def __init__(
        self,
        *,
        size: Annotated[int, Int(SIDE, PIXELS)],
        scale: Scale,
        min_digits: Count,
        max_digits: Annotated[int, Int(1, 100)],
        dimmest: Annotated[float, Real(0.05, 1)],
        unfamiliar: Annotated[list[int], ListOf(Int(0, 9), least=0)],
        **options: Any,
    ) -> None:
        super().__init__(**options)
        self.size, self.scale = size, scale
        self.side = scale * SIDE
        if self.side > size:
            raise UserError(
                f"data.size={size}: is too small for digits of {self.side} pixels"
                f" (data.scale={scale})"
            )
        self.least = min_digits
        self.most = max_digits
        if min_digits > max_digits:
            raise UserError(f"data.min_digits={min_digits}: is above data.max_digits={max_digits}")
        self.dimmest = dimmest
        self.unfamiliar_digits = sorted(set(unfamiliar))
        if len(self.unfamiliar_digits) == 10:
            raise UserError("data.unfamiliar: leaves no digit to train on")
        self.digits = Digits(batch_size=1, seed=self.seed)

    @property
    def unfamiliar(self) -> bool:
        return bool(self.unfamiliar_digits) and max(self.counts["val"], self.counts["test"]) > 1

    def read(self) -> dict[str, Objects]:
        for split, count in self.counts.items():
            what = f"data.{split}_examples={count}: of {self.size} x {self.size} pixels each"
            memory.require(3 * count * self.size**2, what)
        return {split: self._draw(split, digits) for split, digits in self.digits.read().items()}

    def fingerprint(self) -> str:
        drawn = [self.size, self.scale, self.least, self.most, self.dimmest]
        chosen = [self.unfamiliar_digits, self.counts, self.data_seed]
        return digest(self.digits.fingerprint(), drawn, chosen)

    def read_image(self, file: Path) -> tuple[Tensor, tuple[int, int]]:
        read = image_file.read(file, key="--image", background="black")
        gray = np.asarray(read.convert("L").resize((self.size, self.size)))
        return self.normalized(gray[..., None]), (read.height, read.width)

    def _draw(self, split: str, source: Source) -> Objects:
        rng = np.random.default_rng(derive(self.data_seed, "overlapping_digits", split))
        count, side = self.counts[split], self.side
        shades = self._enlarged(source)
        strange = np.isin(source.labels, self.unfamiliar_digits)
        unfamiliar = np.zeros(count, bool)
        if self.unfamiliar_digits and split != "train":
            unfamiliar[1::2] = True
        canvas = np.zeros((count, self.size, self.size), np.uint8)
        owners = np.full((count, self.size, self.size), NO_OBJECT, np.int8)
        total_ink = np.zeros((count, self.most))
        lengths = rng.integers(self.least, self.most + 1, count)
        for number in range(self.most):  # from the back to the front
            top, left = rng.integers(self.size - side + 1, size=(2, count))
            bright = rng.uniform(self.dimmest, 1, count)
            digit = rng.choice(np.flatnonzero(~strange), count)
            if unfamiliar.any():
                digit[unfamiliar] = rng.choice(np.flatnonzero(strange), unfamiliar.sum())
            ink = (shades[digit] >= INK) & (lengths > number)[:, None, None]
            image, y, x = np.nonzero(ink)
            shade = (shades[digit] * bright[:, None, None] * self.white).round().astype(np.uint8)
            canvas[image, top[image] + y, left[image] + x] = shade[image, y, x]
            owners[image, top[image] + y, left[image] + x] = number
            total_ink[:, number] = ink.sum((1, 2))
        visible = np.stack([(owners == number).sum((1, 2)) for number in range(self.most)], axis=1)
        eligible = (visible >= VISIBLE * total_ink) & (total_ink > 0)
        chosen = (rng.random(eligible.shape) * eligible).argmax(1)
        return Objects(canvas[..., None], owners, np.arange(count), chosen, unfamiliar)

    def _enlarged(self, source: Source) -> NDArray[np.float32]:
        """The ink of the digits between 0 and 1: b y x."""
        small = source.pixels(np.arange(len(source.labels)))[..., 0].astype(np.float32)
        ink = torch.from_numpy(small / Digits.white)[:, None]
        large = interpolate(ink, scale_factor=float(self.scale), mode="bilinear")
        return large[:, 0].numpy()
