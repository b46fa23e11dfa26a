"""How an image becomes noise, and the way back. One class per file; this is their base.

A time is between 0, the image, and 1, noise. All else is b c y x.
"""

from collections.abc import Callable

from torch import Tensor

Bounds = tuple[float, float]
Draw = Callable[[], Tensor]


class Noise:
    """A process that mixes images with standard normal noise, and a sampler that undoes it."""

    def times(self, uniform: Tensor) -> Tensor:
        """Numbers between 0 and 1 -> the times of training, of the same shape."""
        raise NotImplementedError

    def add(self, images: Tensor, noise: Tensor, times: Tensor) -> Tensor:
        """The noisy images of these times, which broadcast to images."""
        raise NotImplementedError

    def target(self, images: Tensor, noise: Tensor) -> Tensor:
        """The training target of the model for noisy images."""
        raise NotImplementedError

    def levels(self, steps: int) -> list[float]:
        """The times at which sampling evaluates the model, falling from 1, and last 0."""
        raise NotImplementedError

    def step(
        self,
        x: Tensor,
        prediction: Tensor,
        now: float,
        after: float,
        *,
        fresh: Draw,
        bounds: Bounds,
    ) -> Tensor:
        """One sampling step: from images at time `now` and the model's prediction to time `after`.

        fresh: draws standard normal noise for this step. bounds: of the values of images.
        """
        raise NotImplementedError
