"""Random augmentation of training images, seeded only by (seed, epoch, example, copy).

The same example in the same epoch looks the same with any batch size, any number of processes or
workers, and after a resume.
"""

import random
import re
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

import numpy as np
import torch
from jaxtyping import Float
from numpy.typing import NDArray
from PIL import Image
from torch import Tensor

from ablate.errors import UserError
from ablate.random.seeding import derive

Pixels = NDArray[np.uint8]

# RandAugment translates and shears by a share of the width: smaller images lose their content.
SMALLEST = 16
GRAMMAR = re.compile(r"rand(-(m\d+|n\d+|p\d*\.?\d+|mstd\d*\.?\d+|mmax\d+|inc[01]|tweights|t3aw?))*")


class Augment:
    """Horizontal flips of half the images, timm's RandAugment (Cubuk et al. 2019, 1909.13719), and
    timm's random erasing (Zhong et al. 2017, 1708.04896).

    randaugment: timm's policy string, such as rand-m9-mstd0.5, or None. erasing: the probability
    that a rectangle of an image becomes noise. mean: of each channel in 0 .. 255, the color of the
    empty parts of a moved image. An example is a tuple of its number and, for the second copy in a
    batch and later ones, the number of the copy.
    """

    def __init__(
        self,
        *,
        seed: int,
        flip: bool,
        randaugment: str | None,
        erasing: float,
        mean: list[float],
        width: int,
    ) -> None:
        self.seed, self.flip = seed, flip
        self.policy = _policy(randaugment, mean, width) if randaugment else None
        self.erasing: Any = None
        if erasing:
            from timm.data.random_erasing import RandomErasing

            noise = {"mode": "pixel", "device": "cpu"}
            self.erasing = RandomErasing(erasing, **noise)

    def erase(self, image: Float[Tensor, "c y x"], *, epoch: int, example: tuple[int, ...]) -> None:
        """Change a normalized image in place; the noise is standard normal."""
        if self.erasing is not None:
            with _random_state(derive(self.seed, "erasing", epoch, *example)):
                self.erasing(image)

    def __call__(self, image: Pixels, *, epoch: int, example: tuple[int, ...]) -> Pixels:
        """`image` is y x c."""
        if self.flip and derive(self.seed, "flip", epoch, *example) % 2:
            image = image[:, ::-1]
        if self.policy is None:
            return image
        # timm's policies need color images, so a gray one is repeated to three channels.
        color = np.ascontiguousarray(np.broadcast_to(image, (*image.shape[:2], 3)))
        with _random_state(derive(self.seed, "randaugment", epoch, *example)):
            changed = self.policy(Image.fromarray(color))
        return np.asarray(changed if image.shape[-1] == 3 else changed.convert("L")).reshape(
            image.shape
        )


def _policy(randaugment: str, mean: list[float], width: int) -> Any:
    """UserError also for a magnitude and a probability that timm would silently reduce."""
    from timm.data.auto_augment import rand_augment_transform

    wrong = None
    settings = dict(re.findall(r"-(mmax|m|p)([\d.]+)", randaugment))
    magnitude, most = settings.get("m", "0"), int(settings.get("mmax", 10))
    if not GRAMMAR.fullmatch(randaugment):
        wrong = "must be null or a timm policy such as rand-m9-mstd0.5"
    elif int(magnitude) > most:
        wrong = f"timm reduces the magnitude m{magnitude} to {most}; add -mmax{magnitude}"
    elif float(settings.get("p", 0)) > 1:
        wrong = f"the probability p{settings['p']} is at most 1"
    elif width < SMALLEST:
        wrong = (
            f"the images have a width of {width} pixels, RandAugment requires {SMALLEST}; set"
            " data.randaugment=null"
        )
    if wrong is not None:
        raise UserError(f"data.randaugment={randaugment}: {wrong}")
    color = tuple(round(value) for value in (mean if len(mean) == 3 else mean * 3))
    options = {"translate_const": int(0.45 * width), "img_mean": color}
    try:
        return rand_augment_transform(randaugment, options)
    except (AssertionError, KeyError, ValueError) as error:
        raise UserError(f"data.randaugment={randaugment}: timm rejects it ({error})") from None


@contextmanager
def _random_state(seed: int) -> Iterator[None]:
    """Seed the global generators, from which timm draws, and restore them afterwards."""
    python, numpy = random.getstate(), np.random.get_state()
    random.seed(seed)
    np.random.seed(seed % 2**32)
    try:
        with torch.random.fork_rng(devices=[]):
            torch.manual_seed(seed)
            yield
    finally:
        random.setstate(python)
        np.random.set_state(numpy)
