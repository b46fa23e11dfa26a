"""DDPM: T small steps of noise; x(n) = sqrt(a(n)) image + sqrt(1 - a(n)) noise; the model
predicts the noise.

Ho et al. 2020, "Denoising diffusion probabilistic models", equations 4 and 14,
https://arxiv.org/abs/2006.11239; a(n), there alpha bar, is the product of 1 - beta. Sampling goes
back over some of the steps (Song et al. 2021, "Denoising diffusion implicit models", equations 12
and 16, https://arxiv.org/abs/2010.02502): over all of them with eta = 1 it is DDPM's algorithm 2
with the variance of the posterior, equation 7. The image that a step predicts is clipped to the
values that images have, as in the code of Ho et al.
"""

import math
from typing import Annotated, Literal

import torch
from torch import Tensor

from ablate.config.conflicts import Conflict
from ablate.config.rules import Int, Probability
from ablate.errors import UserError
from ablate.systems.diffusion.noise import Bounds, Draw, Noise

LARGEST = 0.999  # beta, by the cosine schedule
Timesteps = Annotated[int, Int(21, 10**6)]  # of fewer the linear schedule's last beta exceeds 1


class DDPM(Noise):
    """timesteps: T. schedule: linear, beta from 0.1 / T to 20 / T (those of Ho et al. at T = 1000);
    cosine, Nichol and Dhariwal 2021, equation 17, https://arxiv.org/abs/2102.09672.
    """

    conflicts = (
        Conflict(
            lambda c: c("task.sampling_steps") > c("task.noise.timesteps"),
            "task.sampling_steps={task.sampling_steps} is more than"
            " task.noise.timesteps={task.noise.timesteps}",
        ),
    )

    def __init__(
        self, *, timesteps: Timesteps, schedule: Literal["linear", "cosine"], eta: Probability
    ) -> None:
        self.timesteps, self.eta = timesteps, eta
        if schedule == "linear":
            betas = torch.linspace(0.1, 20, timesteps, dtype=torch.float64) / timesteps
        else:
            n = torch.arange(timesteps + 1, dtype=torch.float64)
            left = torch.cos((n / timesteps + 0.008) / 1.008 * math.pi / 2) ** 2
            betas = (1 - left[1:] / left[:-1]).clamp(max=LARGEST)
        # a(n) at n, 1 at the image itself.
        self.alpha_bar = torch.cat([torch.ones(1, dtype=torch.float64), (1 - betas).cumprod(0)])

    def times(self, uniform: Tensor) -> Tensor:
        return ((uniform * self.timesteps).floor() + 1) / self.timesteps

    def add(self, images: Tensor, noise: Tensor, times: Tensor) -> Tensor:
        n = (times * self.timesteps).round().long()
        # Rounded before they are moved: not every device has float64.
        of_image, of_noise = (
            root.to(images.dtype).to(images.device)[n]
            for root in (self.alpha_bar.sqrt(), (1 - self.alpha_bar).sqrt())
        )
        return of_image * images + of_noise * noise

    def target(self, images: Tensor, noise: Tensor) -> Tensor:
        return noise

    def levels(self, steps: int) -> list[float]:
        if steps > self.timesteps:
            raise UserError(
                f"{steps} sampling steps are more than task.noise.timesteps={self.timesteps}"
            )
        return [round(self.timesteps * (1 - n / steps)) / self.timesteps for n in range(steps + 1)]

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
        alpha_bar, next_alpha_bar = (
            float(self.alpha_bar[round(t * self.timesteps)]) for t in (now, after)
        )
        image = ((x - math.sqrt(1 - alpha_bar) * prediction) / math.sqrt(alpha_bar)).clamp(*bounds)
        noise = (x - math.sqrt(alpha_bar) * image) / math.sqrt(1 - alpha_bar)
        drawn = self.eta * math.sqrt(
            (1 - next_alpha_bar) / (1 - alpha_bar) * (1 - alpha_bar / next_alpha_bar)
        )
        left = math.sqrt(max(1 - next_alpha_bar - drawn**2, 0.0))
        x = math.sqrt(next_alpha_bar) * image + left * noise
        return x + drawn * fresh() if drawn else x
