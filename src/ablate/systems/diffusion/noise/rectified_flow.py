"""Rectified flow: x(t) = (1 - t) image + t noise; the model predicts dx/dt = noise - image.

Liu et al. 2023, "Flow straight and fast", section 2.1, https://arxiv.org/abs/2209.03003, with time
from image to noise as in Esser et al. 2024 (Stable Diffusion 3), section 2,
https://arxiv.org/abs/2403.03206. Times of training are uniform; sampling is Euler's method.
"""

from torch import Tensor

from ablate.systems.diffusion.noise import Bounds, Draw, Noise


class RectifiedFlow(Noise):
    def times(self, uniform: Tensor) -> Tensor:
        return uniform

    def add(self, images: Tensor, noise: Tensor, times: Tensor) -> Tensor:
        return (1 - times) * images + times * noise

    def target(self, images: Tensor, noise: Tensor) -> Tensor:
        return noise - images

    def levels(self, steps: int) -> list[float]:
        return [1 - n / steps for n in range(steps + 1)]

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
        return x + (after - now) * prediction
