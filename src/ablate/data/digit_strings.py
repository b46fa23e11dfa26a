"""Images of several handwritten digits, and the digits from left to right as a caption.

The digits are those of data=digits, placed at random on a black canvas: no two share a column of
pixels, so that their order is clear, and rows are free. A digit's image is used in one split
only, so that validation and test contain no digit images that training has seen. A batch contains

    images     b 1 y x   mean 0 and standard deviation 1 over the training split
    target_in  b i       BOS, a token for each digit; padded with PAD
    targets    b i       the digits, EOS; padded with IGNORED
    index      b         the example's number in its split
"""

from collections.abc import Sequence
from pathlib import Path
from typing import Annotated, Any, ClassVar, NamedTuple

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor
from torch.utils.data import Dataset

from ablate.config.rules import PIXELS, Count, Int
from ablate.data import IGNORED, digest, image_file
from ablate.data.digits import SIDE, Digits
from ablate.data.generated import Generated
from ablate.data.images import Arrays, Source, statistics
from ablate.data.interface import Sizes
from ablate.data.loader import Batch, Request
from ablate.data.pair_tokenizer import PAD, Words
from ablate.data.pairs import Sentences, Targets
from ablate.errors import UserError
from ablate.machine import memory
from ablate.random.seeding import derive

Pixels = NDArray[np.uint8]
Numbers = NDArray[np.int64]


class Box(NamedTuple):
    """The pixels of a digit."""

    rows: range
    columns: range


class Layout(NamedTuple):
    """The digits of all images of a split, concatenated, those of an image from left to right.

    image: the image of each digit. digit: its index in the digits of the split. top, left: the
    first row and column of its box.
    """

    image: Numbers
    digit: Numbers
    top: Numbers
    left: Numbers


class Captioned(Dataset[Batch]):
    """The images of one split with their captions as batches. values: b c y x, of any type; mean,
    std: of each channel, c 1 1."""

    def __init__(self, values: Tensor, captions: Sentences, *, mean: Tensor, std: Tensor) -> None:
        self.values, self.captions = values, captions
        self.mean, self.std = mean.float(), std.float()

    def __len__(self) -> int:
        return len(self.values)

    def __getitem__(self, request: Request) -> Batch:
        numbers = request.indices
        return {
            "images": (self.values[numbers].float() - self.mean) / self.std,
            "target_in": self.captions.rows(numbers, shift=0, fill=PAD),
            "targets": self.captions.rows(numbers, shift=1, fill=IGNORED),
            "index": numbers,
        }


class DigitStrings(Generated, Targets):
    """min_digits, max_digits: the number of digits is sampled uniformly between them.
    mean, std: of the training images, between black 0 and white 1.
    """

    kind: ClassVar[str] = "images with captions"
    unit: ClassVar[str] = "images"
    item: str | None = "digit"
    white: ClassVar[int] = Digits.white
    mean: Tensor
    std: Tensor

    def __init__(
        self,
        *,
        height: Annotated[int, Int(SIDE, PIXELS)],
        width: Annotated[int, Int(SIDE, PIXELS)],
        min_digits: Count,
        max_digits: Count,
        **options: Any,
    ) -> None:
        super().__init__(**options)
        self.size = height, width
        self.least = min_digits
        self.most = max_digits
        if min_digits > max_digits:
            raise UserError(f"data.min_digits={min_digits}: is above data.max_digits={max_digits}")
        if max_digits * SIDE > width:
            raise UserError(
                f"data.max_digits={max_digits}: side by side they need {max_digits * SIDE} pixels,"
                f" and data.width={width}"
            )
        self.digits = Digits(batch_size=1, seed=self.seed)

    def load(self) -> None:
        height, width = self.size
        for split, count in self.counts.items():
            what = f"data.{split}_examples={count}: of {height} x {width} pixels each"
            memory.require(count * height * width, what)
        sources = self.digits.read()
        self.layouts = {split: self._draw(split, len(s.labels)) for split, s in sources.items()}
        pixels = {split: self._paint(split, source) for split, source in sources.items()}
        self.pixels = {split: torch.from_numpy(array) for split, array in pixels.items()}
        self.captions = {split: self._captions(split, s.labels) for split, s in sources.items()}
        self.target_tokenizer = Words.of(map(str, range(10)))
        if isinstance(self.measured_as, DigitStrings):
            self.mean, self.std = self.measured_as.mean, self.measured_as.std
        else:
            training = Arrays(pixels["train"][..., None], np.zeros(len(pixels["train"])))
            both = statistics(training, np.arange(len(training.labels)))
            self.mean, self.std = (value / self.white for value in both)
        self.splits = {split: self._split(split) for split in sources}
        self.sizes = Sizes(
            image_size=self.size,
            channels=1,
            target_vocab=self.target_tokenizer.vocab_size,
            target_length=self.most + 1,
        )

    def fingerprint(self) -> str:
        settings = [*self.size, self.least, self.most, self.counts, self.data_seed]
        return digest(self.digits.fingerprint(), settings)

    def reference(self, split: str, index: int) -> str:
        return self.captions[split][index]

    def boxes(self, split: str, index: int) -> list[Box]:
        """The boxes of the digits of an image, from left to right."""
        layout = self.layouts[split]
        first, last = np.searchsorted(layout.image, [index, index + 1])
        corners = zip(
            layout.top[first:last].tolist(), layout.left[first:last].tolist(), strict=True
        )
        return [Box(range(y, y + SIDE), range(x, x + SIDE)) for y, x in corners]

    def gray(self, image: Tensor) -> Tensor:
        """Undo the normalization: 1 y x -> y x between black 0 and white 1."""
        return self.to_pixels(image[None])[0]

    def to_pixels(self, images: Tensor) -> Tensor:
        """The brightness of images as a model reads or generates them: b c y x -> b y x between
        black 0 and white 1."""
        gray = images[:, 0].cpu().float() * self.std.float() + self.mean.float()
        return gray.clamp(0, 1)

    def images(self, pixels: Tensor) -> Tensor:
        """The other way: b y x between black 0 and white 1 -> b c y x."""
        return (pixels[:, None] - self.mean.float()) / self.std.float()

    def originals(self, split: str, indices: Tensor) -> Tensor:
        """Images of a split as they were made: b -> b y x between black 0 and white 1."""
        return self.pixels[split][indices] / self.white

    @property
    def bounds(self) -> tuple[float, float]:
        """The least and the largest value that an image for the model has."""
        black, white = ((shade - self.mean) / self.std for shade in (0, 1))
        return float(black), float(white)

    def read_image(self, file: Path) -> Tensor:
        """An image file, white on black, as the model reads it: 1 c y x."""
        return self.images(self.read_pixels(file, key="--image"))

    def read_pixels(self, file: Path, *, key: str) -> Tensor:
        """An image file, 1 y x between black 0 and white 1. key: for messages."""
        height, width = self.size
        read = image_file.read(file, key=key, background="black")
        gray = np.asarray(read.convert("L"), np.float32) / 255
        if gray.shape != self.size:
            raise UserError(
                f"{file}: has {gray.shape[1]} x {gray.shape[0]} pixels, and the images of this"
                f" model {width} x {height}"
            )
        return torch.from_numpy(gray)[None]

    def example(self, index: int = 0) -> dict[str, Any]:
        """A validation image, with the tokens of its caption in printable characters."""
        batch = super().example(index)
        return batch | {"target_labels": self.target_tokenizer.labels(batch["targets"][0].tolist())}

    def typical_batch(self) -> Batch:
        """`batch_size` images with captions of the mean length."""
        first = super().typical_batch()
        mean = round(float(self._lengths("train").mean())) + 1
        return first | {"target_in": torch.full((self.batch_size, mean), PAD)}

    def _lengths(self, split: str) -> Numbers:
        return np.bincount(self.layouts[split].image)

    def _draw(self, split: str, digits: int) -> Layout:
        """Draw the digits and their positions: the free columns are distributed at random."""
        rng = np.random.default_rng(derive(self.data_seed, "digit_strings", split))
        height, width = self.size
        count = self.counts[split]
        lengths = rng.integers(self.least, self.most + 1, count)
        image = np.repeat(np.arange(count), lengths)
        position = np.arange(len(image)) - np.repeat(lengths.cumsum() - lengths, lengths)
        before = rng.integers(width - SIDE * lengths[image] + 1)  # free columns to the left
        before = before[np.lexsort((before, image))]
        top = rng.integers(height - SIDE + 1, size=len(image))
        digit = rng.integers(digits, size=len(image))
        return Layout(image, digit, top, before + SIDE * position)

    def _paint(self, split: str, source: Source) -> Pixels:
        """The images, b y x."""
        digits = source.pixels(np.arange(len(source.labels)))[..., 0]
        canvas = np.zeros((self.counts[split], *self.size), np.uint8)
        layout, side = self.layouts[split], np.arange(SIDE)
        image, top, left = (n[:, None, None] for n in (layout.image, layout.top, layout.left))
        canvas[image, top + side[:, None], left + side] = digits[layout.digit]
        return canvas

    def _captions(self, split: str, labels: Numbers) -> Sequence[str]:
        """Such as "3 1 4"."""
        layout = self.layouts[split]
        ends = self._lengths(split).cumsum()[:-1]
        numbers = np.split(labels[layout.digit], ends)
        return [" ".join(map(str, number.tolist())) for number in numbers]

    def _split(self, split: str) -> Captioned:
        encode = self.target_tokenizer.encode
        captions = Sentences([np.array(encode(text), np.int32) for text in self.captions[split]])
        mean, std = self.mean * self.white, self.std * self.white
        return Captioned(self.pixels[split][:, None], captions, mean=mean, std=std)
