"""Autoencoder: images as a small grid of latent vectors, the space of a latent diffusion model.

Rombach et al. 2022, "High-resolution image synthesis with latent diffusion models", section 3.1 and
appendix G, https://arxiv.org/abs/2112.10752: the latent is normal (KL-regularized), after Kingma
and Welling 2014, "Auto-encoding variational Bayes", https://arxiv.org/abs/1312.6114. Without their
residual blocks, attention and losses of perception: these images are small.
"""

from typing import Annotated

import torch
from jaxtyping import Float
from torch import Tensor, nn

from ablate.config.rules import Int, Width
from ablate.errors import UserError
from ablate.model.base import Model, ModelTraits
from ablate.model.layers.linear import KaimingConv
from ablate.random.draws import Source, Stream, normal

Downsamples = Annotated[int, Int(0, 8)]


class Autoencoder(Model):
    """Convolutions of 3 x 3, of width `dim`; each of `num_downsamples` halves both sides of the
    image.

    latent: numbers at each place of the latent.
    """

    kinds = ("images with captions",)
    outputs = ("reconstructions",)
    positions = None
    traits = ModelTraits(causal=False)

    def __init__(
        self,
        *,
        image_size: tuple[int, int],
        channels: int,
        target_vocab: int,
        target_length: int,
        dim: Width,
        latent: Width,
        num_downsamples: Downsamples,
    ):
        super().__init__()
        self.reduction, self.latent = 2**num_downsamples, latent
        height, width = image_size
        if height % self.reduction or width % self.reduction:
            raise UserError(
                f"model.num_downsamples={num_downsamples}: the sides of images, {height} x {width}"
                f" pixels, must be multiples of {self.reduction}"
            )
        encoder: list[nn.Module] = [conv(channels, dim)]
        decoder: list[nn.Module] = [conv(latent, dim)]
        for _ in range(num_downsamples):
            encoder += [nn.SiLU(), conv(dim, dim, stride=2)]
            decoder += [nn.SiLU(), nn.Upsample(scale_factor=2), conv(dim, dim)]
        self.encoder = nn.Sequential(*encoder, nn.SiLU(), conv(dim, 2 * latent))
        self.decoder = nn.Sequential(*decoder, nn.SiLU(), conv(dim, channels))
        self.draws = Stream()

    def forward(
        self, images: Float[Tensor, "b c y x"]
    ) -> tuple[Float[Tensor, "b c y x"], Float[Tensor, "b l v u"], Float[Tensor, "b l v u"]]:
        """The reconstruction, and the mean and the logarithm of the variance of its
        latent. In training the latent is sampled, else it is the mean."""
        mean, log_variance = self.describe(images)
        latent = mean
        if self.training:
            noise = normal(Source(self.draws.key(mean)), mean).to(mean.dtype)
            latent = mean + (log_variance / 2).exp() * noise
        return self.decoder(latent), mean, log_variance

    def describe(
        self, images: Float[Tensor, "b c y x"]
    ) -> tuple[Float[Tensor, "b l v u"], Float[Tensor, "b l v u"]]:
        mean, log_variance = self.encoder(images).chunk(2, dim=1)
        return mean, log_variance.clamp(-30, 20)

    @torch.no_grad()
    def encode(self, images: Float[Tensor, "b c y x"]) -> Float[Tensor, "b {self.latent} v u"]:
        """The means."""
        return self.describe(images)[0]

    @torch.no_grad()
    def decode(self, latents: Float[Tensor, "b {self.latent} v u"]) -> Float[Tensor, "b c y x"]:
        images: Tensor = self.decoder(latents)
        return images


def conv(inputs: int, outputs: int, stride: int = 1) -> KaimingConv:
    return KaimingConv(inputs, outputs, 3, stride=stride, padding=1)
