"""Compute the losses of several tasks in one pass: one model with stacked weights.

The model runs under torch.func.vmap, https://docs.pytorch.org/docs/stable/func.html. Where vmap has
no batching rule or a slow one, `Batching` provides one: linear maps become batched matrix products,
attention treats the seeds as more examples, additive scores treat them as more heads, and random
numbers are drawn for each seed from its own stream, in the order of a separate run.
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
    tasks: Sequence[Task], weights: Stacked, batches: Sequence[Batch], seeds: Sequence[int]
) -> Tensor:
    """Return the loss of each task on its batch: k. seeds: random seed of each task's step."""
    whole = _Loss(tasks[0])
    batch = {name: torch.stack([one[name] for one in batches]) for name in batches[0]}
    streams = Streams(seeds, cuda=any(tensor.is_cuda for tensor in batch.values()))

    def loss(number: Tensor, weights: Mapping[str, Tensor], batch: Batch) -> Tensor:
        with Batching(number, streams):
            found: Tensor = functional_call(whole, dict(weights), (batch,))
        return found

    tasks[0].step_so_far = Accumulated(1)  # each batch is a step: see trial.py
    each: Tensor = vmap(loss)(torch.arange(len(tasks)), dict(weights), batch)
    return each


class _Loss(nn.Module):
    """A module whose forward is a task's loss."""

    def __init__(self, task: Task):
        super().__init__()
        self.model = task.model
        self.forward = task.loss


class Streams:
    """The random streams of each seed: states of torch's generators as in a separate run."""

    def __init__(self, seeds: Sequence[int], *, cuda: bool):
        self.seeds, self.cuda = seeds, cuda
        self._states: dict[int, tuple[Tensor, ...]] = {}

    def each(self, draw: Callable[[int], Tensor]) -> Tensor:
        """`draw(k)` for every seed, stacked."""
        drawn = []
        for k, seed in enumerate(self.seeds):
            if k not in self._states:
                torch.manual_seed(seed)
            else:
                torch.set_rng_state(self._states[k][0])
                if self.cuda:
                    torch.cuda.set_rng_state(self._states[k][1])
            drawn.append(draw(k))
            gpu = (torch.cuda.get_rng_state(),) if self.cuda else ()
            self._states[k] = (torch.get_rng_state(), *gpu)
        return torch.stack(drawn)


class Batching(TorchFunctionMode):
    """Replace operations inside vmap by our rules. number: a seed's index in the pack."""

    def __init__(self, number: Tensor, streams: Streams):
        super().__init__()
        self.number, self.streams = number, streams

    def __torch_function__(
        self, function: Any, types: Any, args: Any = (), kwargs: Any = None
    ) -> Any:
        kwargs = kwargs or {}
        if function in RULES:
            return _apply(RULES[function](*args, **kwargs))
        if function is F.scaled_dot_product_attention:
            return _apply(_attention(self.streams, *args, **kwargs))
        if function is torch._fused_sdp_choice:  # depends on shapes only, not on values
            args = [torch.empty(x.shape, dtype=x.dtype, device=x.device) for x in args]
            if (mask := kwargs.get("attn_mask")) is not None:
                like = torch.empty(mask.shape, dtype=mask.dtype, device=mask.device)
                kwargs = {**kwargs, "attn_mask": like}
            return function(*args, **kwargs)
        if function in RANDOM:
            return _apply(_random(self.number, self.streams, function, *args, **kwargs))
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
    streams: Streams, query: Tensor, key: Tensor, value: Tensor, attn_mask: Tensor | None = None,
    dropout_p: float = 0.0, is_causal: bool = False, scale: float | None = None,
) -> Planned:  # fmt: skip
    def rule(q: Tensor, k: Tensor, v: Tensor, mask: Tensor | None) -> Tensor:
        seeds = len(q)

        def run(q: Tensor, k: Tensor, v: Tensor, mask: Tensor | None) -> Tensor:
            return F.scaled_dot_product_attention(q, k, v, mask, dropout_p, is_causal, scale=scale)

        if dropout_p:
            return streams.each(lambda n: run(q[n], k[n], v[n], mask if mask is None else mask[n]))
        if mask is not None:
            ones = [1] * (q.dim() - mask.dim())
            mask = mask.view(len(mask), *ones, *mask.shape[1:])
            mask = mask.expand(*q.shape[:2], *mask.shape[2:]).flatten(0, 1)
        q, k, v = (x.flatten(0, 1) for x in (q, k, v))
        return run(q, k, v, mask).unflatten(0, (seeds, -1))

    return rule, (query, key, value, attn_mask)


def _random(
    number: Tensor, streams: Streams, function: Any, x: Tensor, *args: Any, **kwargs: Any
) -> Planned:
    def rule(numbers: Tensor, x: Tensor) -> Tensor:
        return streams.each(lambda k: function(x[k].clone(), *args, **kwargs))

    return rule, (number, x)


RULES: dict[Any, Callable[..., Planned]] = {
    F.linear: _linear,
    F.layer_norm: _layer_norm,
    tanh_sum: _tanh_sum,
}
# Our parts use the result of the in-place ones, not the tensor that they were called on.
RANDOM = {Tensor.random_, Tensor.bernoulli_, F.dropout}
