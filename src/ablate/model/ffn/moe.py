"""Mixture of experts: each token passes through `top_k` of several feed-forward networks.

Shazeer et al. 2017, https://arxiv.org/abs/1701.06538; the balance loss: Fedus et al. 2021, Switch
Transformers, section 2.2, https://arxiv.org/abs/2101.03961; weights over only the chosen experts:
Jiang et al. 2024, Mixtral, section 2.1, https://arxiv.org/abs/2401.04088; shared experts: Dai et
al. 2024, DeepSeekMoE, section 3.2, https://arxiv.org/abs/2401.06066. No token is dropped
(Gale et al. 2022, MegaBlocks, https://arxiv.org/abs/2211.15841).
"""

from importlib import import_module
from typing import Annotated, Any, Literal

import torch
from jaxtyping import Bool, Float, Int, Shaped
from torch import Tensor, nn

from ablate.config.conflicts import Conflict
from ablate.config.rules import Count, NotNegative, Width
from ablate.config.rules import Int as Whole
from ablate.model.ffn import FeedForward
from ablate.model.layers.layer import Context, Layer, LayerTraits
from ablate.model.layers.linear import STD, Linear


class MixtureOfExperts(Layer):
    """y = sum over the chosen experts e of w_e f_e(x), plus the shared experts.

    p = softmax(R x); the `top_k` experts with the largest p are chosen. w: their p, divided by
    their sum if `normalize`. `router`: R; `experts`: the routed networks; `shared`: those that read
    every token.

    width: of an expert; None: that of the dense network over (top_k + shared), so that a token
    costs as much as without experts, but for R. balance: coefficient of the loss
    E sum_e f_e P_e, with f_e the share of choices that fell on e, and P_e the mean p_e over the
    tokens of a batch that are not padding; 1 when balanced. It is logged as train/balance.
    """

    revision = 2
    traits = LayerTraits(mixes=False)
    conflicts = (
        Conflict(
            lambda c: c("model.ffn.top_k") > c("model.ffn.experts"),
            "model.ffn.top_k={model.ffn.top_k} is more than model.ffn.experts={model.ffn.experts}",
        ),
        Conflict(
            lambda c: c("model.ffn.top_k") == 1 and c("model.ffn.normalize"),
            "model.ffn.normalize=true with model.ffn.top_k=1 weights the one expert by 1, which"
            " leaves the router without a gradient; use model.ffn.normalize=false, as in Switch"
            " Transformers",
        ),
        Conflict(
            lambda c: c("compile"),
            "compile=true captures the model as one graph, and the numbers of tokens of"
            " model.ffn=moe's experts are known only as it runs; use compile=false",
        ),
    )

    def __init__(
        self,
        dim: int,
        *,
        hidden: int,
        bias: bool,
        experts: Count,
        top_k: Count,
        shared: Annotated[int, Whole(0, 2**16)],
        expert: Literal["geglu", "gelu", "gelu_tanh", "relu", "relu2", "swiglu"],
        width: Width | None,
        normalize: bool,
        balance: NotNegative,
        std: float = STD,
        out_std: float = STD,
    ):
        super().__init__()
        width = width or max(1, round(hidden / (top_k + shared)))
        make = network(expert)
        linear: dict[str, Any] = {"hidden": width, "bias": bias, "std": std, "out_std": out_std}
        self.router = Linear(dim, experts, bias=False, std=std)
        self.experts = nn.ModuleList(make(dim, **linear) for _ in range(experts))
        self.shared = nn.ModuleList(make(dim, **linear) for _ in range(shared))
        self.top_k, self.normalize, self.balance = top_k, normalize, balance
        # As in a task's measures.
        self.of_process = "model.ffn.balance takes the load of the experts" if balance else None

    def forward(self, x: Float[Tensor, "b i d"], context: Context) -> Float[Tensor, "b i d"]:
        logits = self.router(x)
        probabilities = logits.softmax(-1, dtype=torch.promote_types(logits.dtype, torch.float32))
        weights, chosen = probabilities.topk(self.top_k, dim=-1)
        if self.balance:
            imbalance = self.imbalance(probabilities, chosen, context)
            context.add_loss("balance", self.balance * imbalance)
        if self.normalize:
            weights = weights / weights.sum(-1, keepdim=True)
        tokens = x.flatten(0, 1)
        routed = self.route(tokens, chosen.flatten(0, 1))
        y = (routed * weights.flatten(0, 1)[..., None].to(x.dtype)).sum(1)
        for expert in self.shared:
            y = y + expert(tokens)
        return y.view_as(x)

    def route(
        self, tokens: Float[Tensor, "n d"], chosen: Int[Tensor, "n k"]
    ) -> Float[Tensor, "n k d"]:
        """The output of each chosen expert for each token."""
        order = chosen.flatten().argsort(stable=True)
        rows = tokens[order // self.top_k].split(self.counts(chosen))
        # An expert without tokens computes as well: its parameters have gradients in every process.
        done = torch.cat([f(part) for f, part in zip(self.experts, rows, strict=True)])
        return done[order.argsort()].unflatten(0, chosen.shape)

    def counts(self, chosen: Int[Tensor, "n k"]) -> list[int]:
        """How often each expert is chosen."""
        if chosen.is_meta:  # operations are counted: any split costs the same
            less, more = divmod(chosen.numel(), len(self.experts))
            return [less + (number < more) for number in range(len(self.experts))]
        return chosen.flatten().bincount(minlength=len(self.experts)).tolist()

    def imbalance(
        self,
        probabilities: Float[Tensor, "b i e"],
        chosen: Int[Tensor, "b i k"],
        context: Context,
    ) -> Float[Tensor, ""]:
        """E sum_e f_e P_e over the tokens that are not padding."""
        counted = real(probabilities, context)[..., None].to(probabilities.dtype)
        choices = torch.zeros_like(probabilities).scatter(-1, chosen, 1.0)
        f, mean = ((x * counted).sum((0, 1)) / counted.sum() for x in (choices, probabilities))
        return len(self.experts) / self.top_k * (f * mean).sum()


def real(x: Shaped[Tensor, "b i _"], context: Context) -> Bool[Tensor, "b i"]:
    """True = not padding."""
    keep = context.keep if context.counted is None else context.counted
    if keep is None:
        return x.new_ones(x.shape[:2], dtype=torch.bool)
    return keep[:, context.start : context.start + x.shape[1]]


def network(name: str) -> type[FeedForward]:
    """The class of another option of model.ffn."""
    module = import_module(f"ablate.model.ffn.{name}")
    (found,) = (
        value
        for value in vars(module).values()
        if isinstance(value, type) and value.__module__ == module.__name__
    )
    return found
