"""A short causal convolution of each channel over a text, as before attention or a state.

Poli et al. 2023, "Hyena", https://arxiv.org/abs/2302.10866; So et al. 2021, "Primer",
https://arxiv.org/abs/2109.08668, section 4.2, on queries, keys and values; with a residual: the
Canon layers of Allen-Zhu 2025, "Physics of language models", part 4.1.
"""

import torch
import torch.nn.functional as F
from jaxtyping import Bool, Float
from torch import Tensor, nn

from ablate.kernel.interface.documents import Documents


class ShortConvolution(nn.Module):
    """y[i] = sum over m < size of w[m] x[i - size + 1 + m], channel by channel."""

    def __init__(self, channels: int, size: int):
        super().__init__()
        self.size = size
        self.weight = nn.Parameter(torch.empty(channels, 1, size))
        self.reset_parameters()

    def reset_parameters(self) -> None:
        """Uniform within 1 / sqrt(size), as torch's Conv1d."""
        nn.init.uniform_(self.weight, -(self.size**-0.5), self.size**-0.5)

    def forward(
        self, x: Float[Tensor, "b n c"], documents: Documents | None = None
    ) -> Float[Tensor, "b n-{self.size}+1 c"]:
        """The first output is of the first `size` rows. documents: of the outputs; other documents
        are read as zeros."""
        if documents is not None:
            return within(documents.near(self.size - 1), x, self.weight, len(self.weight))
        return F.conv1d(x.mT, self.weight, groups=len(self.weight)).mT


def within(
    near: Bool[Tensor, "b i size"],
    x: Float[Tensor, "b n c"],
    weight: Float[Tensor, "d e size"],
    groups: int,
) -> Float[Tensor, "b i d"]:
    """A convolution whose window has zeros for the positions that are not `near`."""
    windows = x.unfold(1, weight.shape[-1], 1).masked_fill(~near[:, :, None], 0.0)
    return F.conv1d(windows.flatten(0, 1), weight, groups=groups)[..., 0].unflatten(
        0, near.shape[:2]
    )
