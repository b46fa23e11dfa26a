"""The base of mixers with a linear recurrence."""

import math
from functools import partial
from typing import ClassVar, NamedTuple

import torch
import torch.nn.functional as F
from einops import rearrange
from jaxtyping import Bool, Float
from torch import Tensor, nn

from ablate.config.rules import Width
from ablate.model.layers.layer import Context, Layer, LayerSpec, LayerTraits
from ablate.model.layers.linear import Linear
from ablate.model.layers.recurrence import recurrence
from ablate.model.layers.short_conv import ShortConvolution


class Inputs(NamedTuple):
    """The queries, keys and values of all heads, and the input x of the layer."""

    q: Float[Tensor, "b i k_of_all"]
    k: Float[Tensor, "b i k_of_all"]
    v: Float[Tensor, "b i v_of_all"]
    x: Float[Tensor, "b i d"]


class Step(NamedTuple):
    """The arguments of `recurrence` for some tokens. skip: added to the output."""

    q: Float[Tensor, "b h i k"]
    k: Float[Tensor, "b h i k"]
    v: Float[Tensor, "b h i v"]
    g: Float[Tensor, "b h i #k"]
    beta: Float[Tensor, "b h i"] | None = None
    skip: Float[Tensor, "b h i v"] | None = None

    def without(self, padding: Bool[Tensor, "b i"]) -> "Step":
        """Padding changes no state: no decay, no key, no step."""
        beta = None if self.beta is None else self.beta.masked_fill(padding[:, None], 0.0)
        rows = padding[:, None, :, None]
        return self._replace(
            g=self.g.masked_fill(rows, 0.0), k=self.k.masked_fill(rows, 0.0), beta=beta
        )


class LinearMixer(Layer):
    """A layer whose heads keep a state of fixed size instead of all keys and values.

    key_width, value_width: of all heads together. short_conv: queries, keys and values are silu of
    a causal convolution over so many positions; None: maps of the input. The output of a head is
    normalized by its root mean square and, if `gated`, gated by silu of a map of the input.
    """

    traits = LayerTraits(causal=True, caches=True)
    gated: ClassVar[bool] = True

    def __init__(
        self, place: LayerSpec, *, key_width: int, value_width: int, short_conv: Width | None = None
    ):
        super().__init__()
        self.heads, self.size = place.heads, short_conv or 1
        linear = partial(Linear, place.dim, bias=False, std=place.std)
        self.query, self.key = linear(key_width), linear(key_width)
        self.value = linear(value_width)
        self.query_conv, self.key_conv, self.value_conv = (
            ShortConvolution(width, short_conv) if short_conv else None
            for width in (key_width, key_width, value_width)
        )
        self.norm = nn.RMSNorm(value_width // place.heads, eps=1e-5)
        self.gate = linear(value_width) if self.gated else None
        self.out = Linear(value_width, place.dim, bias=False, std=place.out_std)

    def step(self, inputs: Inputs, context: Context) -> Step:
        """The arguments of the recurrence for each token."""
        raise NotImplementedError

    def read_out(
        self, y: Float[Tensor, "b h i v"], x: Float[Tensor, "b i d"]
    ) -> Float[Tensor, "b i d"]:
        """The heads' outputs and the layer's input -> the layer's output."""
        y = rearrange(self.norm(y), "b h i v -> b i (h v)")
        return self.out(y if self.gate is None else y * F.silu(self.gate(x)))

    def forward(self, x: Float[Tensor, "b i d"], context: Context) -> Float[Tensor, " b #i d"]:
        padding = None
        if context.keep is not None:
            padding = ~context.keep[:, -x.shape[1] :]  # without those of a cache
            x = x.masked_fill(padding[..., None], 0.0)
        past, state = context.recall(self) or (x.new_zeros(len(x), self.size - 1, x.shape[2]), None)
        wide = torch.cat([past, x], dim=1)
        inputs = Inputs(
            self._near(self.query, self.query_conv, wide, context),
            self._near(self.key, self.key_conv, wide, context),
            self._near(self.value, self.value_conv, wide, context),
            x,
        )
        step = self.step(inputs, context)
        step = step if padding is None else step.without(padding)
        documents = context.documents
        number = None if documents is None else documents.number
        y, state = recurrence(
            step.q, step.k, step.v, step.g, beta=step.beta, state=state, documents=number
        )
        y = y if step.skip is None else y + step.skip
        context.remember(self, wide[:, x.shape[1] :], state)
        if (first := context.position) is not None:
            x, y = x[:, first : first + 1], y[:, :, first : first + 1]
        return self.read_out(y.to(x.dtype), x)

    def _near(
        self,
        linear: nn.Linear,
        conv: ShortConvolution | None,
        wide: Float[Tensor, "b _ d"],
        context: Context,
    ) -> Float[Tensor, "b i _"]:
        y = linear(wide)
        return y if conv is None else F.silu(conv(y, context.documents))

    def split(self, x: Float[Tensor, "b i _"]) -> Float[Tensor, "b {self.heads} i _"]:
        """The heads of a tensor of all."""
        return rearrange(x, "b i (h k) -> b h i k", h=self.heads)


class Decay(nn.Module):
    """Decays that depend on the input (Mamba): dt = softplus(W x + b), g = -exp(a) dt, a head each.

    exp(a) starts between 1 and 16, and dt between 0.001 and 0.1, uniform in its logarithm.
    """

    def __init__(self, dim: int, heads: int, *, std: float):
        super().__init__()
        self.rate = nn.Parameter(torch.empty(heads))
        self.bias = nn.Parameter(torch.empty(heads))
        self.linear = Linear(dim, heads, bias=False, std=std)
        self.reset_parameters()

    def reset_parameters(self) -> None:
        with torch.no_grad():
            self.rate.uniform_(1, 16).log_()
            dt = self.bias.uniform_(math.log(0.001), math.log(0.1)).exp_()
            self.bias.add_((-torch.expm1(-dt)).log())  # softplus of it is dt
        self.linear.reset_parameters()

    def forward(
        self, x: Float[Tensor, "b i d"]
    ) -> tuple[Float[Tensor, "b h i 1"], Float[Tensor, "b h i 1"]]:
        """g and dt."""
        dt = F.softplus(self.linear(x) + self.bias).mT[..., None]
        return -self.rate.exp()[:, None, None] * dt, dt
