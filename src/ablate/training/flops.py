"""Count the floating-point operations of a training step without computing it."""

from __future__ import annotations

from dataclasses import replace

import torch
from torch import Tensor, nn

from ablate.kernel import AttentionInputs, Kernel
from ablate.kernel.reference import Reference
from ablate.model.base import outputs
from ablate.model.layers.layer import Context
from ablate.model.layers.stack import Stack
from ablate.model.mask import Mask
from ablate.model.mixer.fixed import Fixed
from ablate.training.flop_counter import FlopCounter

ROWS = 1024  # queries whose pairs with keys are counted at once
COSTS: dict[str, int] = {}  # of a pair, by the kind of layer; arms of a study share kinds


def flops_per_step(model: nn.Module, *inputs: Tensor) -> int:
    """Count the matrix products of one forward and backward pass of a model on torch's meta device,
    which is of no use afterwards.

    Attention is counted as the reference kernel computes it, so that arms are compared by their
    function, not by their kernel, and without the pairs of a query and a key that a mask or the
    edges of a graph exclude, whether or not the kernel that runs skips them. A row counts as one
    document (data.documents). A multiply-add counts as two, as in torch.utils.flop_counter; tanh,
    softmax and other pointwise operations count as zero, and so does the recomputation of
    activation checkpointing.
    """
    counted: list[Counted | CountedFixed] = []
    for part in model.modules():
        if isinstance(part, Stack):
            part.activation_checkpointing = False
        elif isinstance(part, Fixed):
            counted.append(CountedFixed(part))
        elif isinstance(getattr(part, "kernel", None), Kernel):
            counted.append(kernel := Counted())
            part.kernel = kernel  # type: ignore[assignment]
    with FlopCounter() as counter:
        computed = outputs(model(*(tensor.to("meta") for tensor in inputs)))
        torch.stack([tensor.sum() for tensor in computed]).sum().backward()
    return counter.flops - sum(layer.excluded() for layer in counted)


class Counted(Reference):
    """The reference kernel of one layer, which counts the pairs that are excluded."""

    def __init__(self) -> None:
        self.pairs = 0
        self.last: AttentionInputs | None = None

    def __call__(self, attend: AttentionInputs) -> Tensor:
        every = attend.queries * attend.keys
        if attend.edges is not None:
            self.pairs += every - len(attend.edges.query)
        elif attend.mask.restricts:
            queries = range(attend.start, attend.start + attend.queries)
            self.pairs += every - allowed(attend.mask, queries, attend.keys)
        self.last = attend
        return super().__call__(attend)

    def excluded(self) -> int:
        """FLOPs of the reference kernel on excluded pairs, forward and backward."""
        if not self.pairs or self.last is None:
            return 0
        if (kind := _kind(self.last)) not in COSTS:
            COSTS[kind] = cost_of_pair(self.last)
        return self.pairs * COSTS[kind]


class CountedFixed:
    """Counts the pairs that the mask of model.mixer=fixed excludes."""

    def __init__(self, layer: Fixed) -> None:
        self.flops = 0
        layer.register_forward_hook(self)

    def __call__(self, layer: Fixed, inputs: tuple[Tensor, Context], _: Tensor) -> None:
        (b, keys, d), position = inputs[0].shape, inputs[1].position
        queries = range(keys) if position is None else range(position, position + 1)
        pairs = len(queries) * keys - allowed(layer.mask, queries, keys)
        products = 3 if layer.weight.requires_grad else 1  # one forward, two backward
        self.flops += 2 * products * b * d * pairs

    def excluded(self) -> int:
        return self.flops


def allowed(mask: Mask, queries: range, keys: int) -> int:
    """The number of pairs of a query and a key that a mask allows."""
    i, j = (torch.arange(r.start, r.stop, device="cpu") for r in (queries, range(keys)))
    return sum(int(mask.allowed(rows, j).sum()) for rows in i.split(ROWS))


def cost_of_pair(attend: AttentionInputs) -> int:
    """The FLOPs of one pair of a query and a key, in all heads and rows of the batch.

    i queries and j keys cost a i + b j + c i j: operations for each query, for each key, and for
    each pair.
    """
    return sum(
        sign * _cost(attend, queries, keys)
        for sign, queries, keys in ((1, 2, 2), (-1, 2, 1), (-1, 1, 2), (1, 1, 1))
    )


def _kind(attend: AttentionInputs) -> str:
    """All that the cost of a pair depends on: equal for layers that differ in the values of their
    parameters only."""
    modules = [*attend.score.modules(), *attend.pos.modules()]
    plain = [
        (
            type(part),
            [item for item in vars(part).items() if isinstance(item[1], int | float | str)],
        )
        for part in (*modules, attend.normalizer)
    ]
    parameters = [p for module in modules for p in module.parameters(recurse=False)]
    inputs = [attend.q, attend.k, attend.v, *([] if attend.prepared is None else [attend.prepared])]
    shapes = [(tensor.shape, tensor.requires_grad) for tensor in (*inputs, *parameters)]
    return repr((plain, shapes))


def _cost(attend: AttentionInputs, queries: int, keys: int) -> int:
    """The FLOPs of attention between so many queries and keys, forward and backward."""

    def sized(tensor: Tensor, count: int) -> Tensor:
        b, h, _, width = tensor.shape
        return tensor.new_empty(b, h, count, width).requires_grad_(tensor.requires_grad)

    few = replace(
        attend,
        q=sized(attend.q, queries),
        k=sized(attend.k, keys),
        v=sized(attend.v, keys),
        prepared=None if attend.prepared is None else sized(attend.prepared, keys),
        start=0,
        keep=None,
        edges=None,
        factors=None,
        dropout=0.0,
    )
    with FlopCounter() as counter:
        context = Reference()(few)
        if context.requires_grad:
            context.sum().backward()
    return counter.flops
