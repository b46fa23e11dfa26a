"""Linear maps, embeddings and convolutions with explicit initialization."""

from collections.abc import Callable

import torch
import torch.nn.functional as F
from jaxtyping import Float
from torch import Tensor, nn

# Standard deviation of initial weights in Radford et al. 2019 (GPT-2) and timm's ViT, at width 768.
STD, STD_WIDTH = 0.02, 768


def width_std(dim: int) -> float:
    """Standard deviation of initial weights for a model of width `dim`: GPT-2's at GPT-2's width.

    It falls with the square root of the width, so that sums over the width keep their size. At 128
    it is 0.05; with 0.02 there, nanoGPT's CPU setting ends 0.13 nats worse
    (docs/explanation/decisions.md).
    """
    return STD * (STD_WIDTH / dim) ** 0.5


class Linear(nn.Linear):
    """Weights from N(0, std^2), bias zero."""

    def __init__(self, inputs: int, outputs: int, *, bias: bool = True, std: float = STD):
        self.std = std
        super().__init__(inputs, outputs, bias=bias)

    def reset_parameters(self) -> None:
        nn.init.normal_(self.weight, std=self.std)
        if self.bias is not None:
            nn.init.zeros_(self.bias)


def small(table: Float[Tensor, "count dim"]) -> None:
    """N(0, 0.02^2)."""
    nn.init.normal_(table, std=STD)


class Embedding(nn.Embedding):
    """An embedding table, count x dim, initialized by `draw`."""

    def __init__(
        self, count: int, dim: int, *, draw: Callable[[Float[Tensor, "count dim"]], object] = small
    ):
        self.draw = draw
        super().__init__(count, dim)

    def reset_parameters(self) -> None:
        self.draw(self.weight)


class Bias(nn.Module):
    """A bias added at every position, initialized to zero."""

    def __init__(self, width: int):
        super().__init__()
        self.weight = nn.Parameter(torch.zeros(width))

    def reset_parameters(self) -> None:
        nn.init.zeros_(self.weight)

    def forward(self, x: Float[Tensor, "*n d"]) -> Float[Tensor, "*n d"]:
        return x + self.weight


class KaimingLinear(nn.Linear):
    def reset_parameters(self) -> None:
        nn.init.kaiming_normal_(self.weight, nonlinearity="relu")
        if self.bias is not None:
            nn.init.zeros_(self.bias)


class KaimingConv(nn.Conv2d):
    def reset_parameters(self) -> None:
        nn.init.kaiming_normal_(self.weight, mode="fan_out", nonlinearity="relu")
        if self.bias is not None:
            nn.init.zeros_(self.bias)


def logits(
    x: Float[Tensor, "*n d"],
    head: nn.Module | None,
    table: Float[Tensor, "_ d"],
    cap: float | None,
    *,
    scale: float | Float[Tensor, " v"] = 1.0,
) -> Float[Tensor, "*n v"]:
    """The logits of each state, by the head or, if None, by the table of embeddings (weight tying).

    cap: c of c tanh(z / c), which keeps a logit z between -c and c (soft capping: Gemma 2, section
    2, https://arxiv.org/abs/2408.00118); None: as they are. scale: a factor of all, or of each.
    """
    z = F.linear(x, table) if head is None else head(x)
    z = z if isinstance(scale, float) and scale == 1 else scale * z
    return z if cap is None else cap * (z / cap).tanh()
