"""Compute the losses of several tasks in one pass: one model with stacked weights.

The model runs under torch.func.vmap, https://docs.pytorch.org/docs/stable/func.html. Where vmap has
no batching rule or a slow one, `Batching` provides one: linear maps become batched matrix products,
attention treats the seeds as more examples, additive scores treat them as more heads, and random
numbers are drawn for each seed from its own stream.
"""

from collections.abc import Callable, Mapping, Sequence
from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor, nn
from torch.autograd import Function
from torch.func import functional_call, vmap
from torch.overrides import TorchFunctionMode

from ablate.data import Batch
from ablate.kernel.additive_cpu import tanh_sum
from ablate.model.layers.draws import draw
from ablate.task import Task
from ablate.task.accumulation import Accumulated

Stacked = Mapping[str, nn.Parameter]
Rule = Callable[..., Tensor]


def stack(models: Sequence[nn.Module]) -> dict[str, nn.Parameter]:
    """Stack each parameter of models of one architecture along a new first axis."""
    each = [dict(model.named_parameters()) for model in models]
    return {
        name: nn.Parameter(
            torch.stack([one[name].detach() for one in each]), requires_grad=first.requires_grad
        )
        for name, first in each[0].items()
    }


def share(stacked: Stacked, models: Sequence[nn.Module]) -> None:
    """Make the models' parameters, and their gradients, views of the stacked ones."""
    for number, model in enumerate(models):
        for name, parameter in model.named_parameters():
            whole = stacked[name]
            parameter.data = whole.data[number]
            if whole.requires_grad:
                if whole.grad is None:
                    whole.grad = torch.zeros_like(whole)
                parameter.grad = whole.grad[number]


def losses(
    tasks: Sequence[Task], weights: Stacked, batches: Sequence[Batch], number: int
) -> Tensor:
    """Return the loss of each task on its batch: k. number: of the batches, counted from 0."""
    whole, draws = _Loss(tasks[0]), tasks[0].draws
    batch = {name: torch.stack([one[name] for one in batches]) for name in batches[0]}
    device = next(iter(weights.values())).device
    keys = torch.stack([task.keys_of_batch(number) for task in tasks]).to(device)

    def loss(keys: Tensor, weights: Mapping[str, Tensor], batch: Batch) -> Tensor:
        draws.keys = keys
        with Batching():
            found: Tensor = functional_call(whole, dict(weights), (batch,))
        return found

    tasks[0].step_so_far = Accumulated(1)  # each batch is a step: see trial.py
    each: Tensor = vmap(loss)(keys, dict(weights), batch)
    draws.keys = None
    return each


class _Loss(nn.Module):
    """A module whose forward is a task's loss."""

    def __init__(self, task: Task):
        super().__init__()
        self.model = task.model
        self.forward = task.loss


class Batching(TorchFunctionMode):
    """Replace operations inside vmap by our rules."""

    def __torch_function__(
        self, function: Any, types: Any, args: Any = (), kwargs: Any = None
    ) -> Any:
        kwargs = kwargs or {}
        if function in RULES:
            return _apply(RULES[function](*args, **kwargs))
        if function is torch._fused_sdp_choice:  # depends on shapes only, not on values
            args = [torch.empty(x.shape, dtype=x.dtype, device=x.device) for x in args]
            if (mask := kwargs.get("attn_mask")) is not None:
                like = torch.empty(mask.shape, dtype=mask.dtype, device=mask.device)
                kwargs = {**kwargs, "attn_mask": like}
            return function(*args, **kwargs)
        return function(*args, **kwargs)


# A rule, which gets its tensors with the seeds as first axis, and those tensors.
Planned = tuple[Rule, Sequence[Tensor | None]]


def _apply(planned: Planned) -> Tensor:
    rule, tensors = planned
    computed: Tensor = Apart.apply(rule, *tensors)
    return computed


class Apart(Function):
    """Apply a rule in place of vmap's own. There is no forward outside vmap, and no backward:
    autograd differentiates the operations of the rule."""

    @staticmethod
    def forward(rule: Rule, *tensors: Tensor | None) -> Tensor:
        raise NotImplementedError

    @staticmethod
    def setup_context(ctx: Any, inputs: Any, output: Any) -> None:
        raise NotImplementedError

    @staticmethod
    def vmap(
        info: Any, dims: Sequence[Any], rule: Rule, *tensors: Tensor | None
    ) -> tuple[Tensor, int]:
        def first(tensor: Tensor | None, dim: int | None) -> Tensor | None:
            if tensor is None:
                return None
            if dim is None:
                return tensor.expand(info.batch_size, *tensor.shape)
            return tensor.movedim(dim, 0)

        return rule(*map(first, tensors, dims[1:])), 0


def _linear(input: Tensor, weight: Tensor, bias: Tensor | None = None) -> Planned:
    def rule(x: Tensor, weight: Tensor, bias: Tensor | None) -> Tensor:
        rows = x.reshape(len(x), -1, x.shape[-1])
        if bias is None:
            mapped = torch.bmm(rows, weight.mT)
        else:
            mapped = torch.baddbmm(bias[:, None], rows, weight.mT)
        return mapped.view(*x.shape[:-1], -1)

    return rule, (input, weight, bias)


def _layer_norm(
    input: Tensor, normalized_shape: Sequence[int], weight: Tensor | None = None,
    bias: Tensor | None = None, eps: float = 1e-5,
) -> Planned:  # fmt: skip
    def rule(x: Tensor, weight: Tensor | None, bias: Tensor | None) -> Tensor:
        def beside(parameter: Tensor) -> Tensor:
            ones = [1] * (x.dim() - parameter.dim())
            return parameter.view(len(x), *ones, *parameter.shape[1:])

        normed = F.layer_norm(x, normalized_shape, eps=eps)
        if weight is None:
            return normed
        if bias is None:
            return normed * beside(weight)
        return torch.addcmul(beside(bias), normed, beside(weight))

    return rule, (input, weight, bias)


def _tanh_sum(q: Tensor, k: Tensor, v: Tensor) -> Planned:
    def rule(q: Tensor, k: Tensor, v: Tensor) -> Tensor:
        """s b h i d, s b h j d, s h d -> s b h i j."""
        q, k = (x.transpose(0, 1).flatten(1, 2) for x in (q, k))
        return tanh_sum(q, k, v.flatten(0, 1)).unflatten(1, v.shape[:2]).transpose(0, 1)

    return rule, (q, k, v)


def _attention(
    query: Tensor, key: Tensor, value: Tensor, attn_mask: Tensor | None = None,
    is_causal: bool = False, scale: float | None = None,
) -> Planned:  # fmt: skip
    def rule(q: Tensor, k: Tensor, v: Tensor, mask: Tensor | None) -> Tensor:
        seeds = len(q)
        if mask is not None:
            ones = [1] * (q.dim() - mask.dim())
            mask = mask.view(len(mask), *ones, *mask.shape[1:])
            mask = mask.expand(*q.shape[:2], *mask.shape[2:]).flatten(0, 1)
        q, k, v = (x.flatten(0, 1) for x in (q, k, v))
        mixed = F.scaled_dot_product_attention(q, k, v, mask, is_causal=is_causal, scale=scale)
        return mixed.unflatten(0, (seeds, -1))

    return rule, (query, key, value, attn_mask)


def _draw(key: Tensor, *sizes: int) -> Planned:
    return lambda keys: torch.stack([draw(key, *sizes) for key in keys]), (key,)


RULES: dict[Any, Callable[..., Planned]] = {
    F.linear: _linear,
    F.layer_norm: _layer_norm,
    F.scaled_dot_product_attention: _attention,
    tanh_sum: _tanh_sum,
    draw: _draw,
}
