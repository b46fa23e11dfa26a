"""Local-p: step t attends to |s - p_t| <= D, with weights times exp(-(s - p_t)^2 / (2 sigma^2)).

Predictive local attention, Luong et al. 2015, section 3.2, equations 9 and 10,
https://arxiv.org/abs/1508.04025: p_t = S sigmoid(v tanh(W h_t)), where S is the length of the
source, its end counted, and h_t the decoder state; sigma = D / 2, and D is `size`. As in the paper
the products are not normalized again, so they sum to less than 1. The paper leaves the width of
W h_t open: here that of h_t. Initialized uniformly in [-0.1, 0.1], as all parameters there (section
4.1).
"""

from typing import ClassVar

import torch
from jaxtyping import Bool, Float
from torch import Tensor, nn

from ablate.config.rules import Count
from ablate.model.window import Window


class LocalP(Window):
    """The center is predicted from the decoder state; the Gaussian makes it differentiable."""

    needs: ClassVar[frozenset[str]] = frozenset({"weights"})

    def __init__(self, *, size: Count, dim: int) -> None:
        super().__init__(dim=dim)
        self.size = size
        self.w = nn.Parameter(torch.empty(dim, dim))
        self.v = nn.Parameter(torch.empty(dim))
        self.reset_parameters()

    def reset_parameters(self) -> None:
        nn.init.uniform_(self.w, -0.1, 0.1)
        nn.init.uniform_(self.v, -0.1, 0.1)

    def center(
        self, query: Float[Tensor, "b i {self.dim}"], keep: Bool[Tensor, "b j"]
    ) -> Float[Tensor, "b i"]:
        """p_t."""
        center = torch.tanh(query @ self.w) @ self.v
        # Half precision cannot tell positions beyond a few hundred from their neighbors.
        wide = center.to(torch.promote_types(center.dtype, torch.float32))
        return keep.sum(-1, keepdim=True) * torch.sigmoid(wide)

    def factors(
        self, query: Float[Tensor, "b i {self.dim}"], keep: Bool[Tensor, "b j"]
    ) -> Float[Tensor, "b 1 i j"]:
        s = torch.arange(keep.shape[1], device=keep.device)
        apart = s - self.center(query, keep)[:, :, None]
        gaussian = torch.exp(-2 * (apart / self.size).square())  # 2 sigma^2 = D^2 / 2
        return torch.where(apart.abs() <= self.size, gaussian, 0.0)[:, None].to(query.dtype)
