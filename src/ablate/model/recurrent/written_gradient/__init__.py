"""The steps of RNN decoders that wait for each other's attention, their gradient written out.

Autograd records some thirty operations for every step, and adds up a gradient of every weight for
each. Here a step computes into buffers, and the way back computes gradients of states alone; those
of the weights are one product over all steps afterwards, as in cuDNN's recurrent layers. The
results equal those of the decoder's own steps (tests/test_loop.py), and take less time
(docs/results/benchmarks.md).

It is part of kernel=auto, on a CPU in float32 or float64, and knows the decoders, cells and scores
that it has a form of by their classes; all others take their own steps.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from itertools import islice
from typing import Any

import torch
from jaxtyping import Bool, Float, Shaped
from torch import Tensor
from torch.autograd.function import once_differentiable
from torch.nn import functional as F

from ablate.kernel import AttentionInputs, Kernel
from ablate.model.attention import Score
from ablate.model.attention.additive import Additive
from ablate.model.attention.dot import Dot
from ablate.model.attention.general import General
from ablate.model.attention.location import Location
from ablate.model.attention.scaled_dot import ScaledDot
from ablate.model.cell import Cell, decodes, wide_on_cpu
from ablate.model.decoder import Decoder, RNNState
from ablate.model.decoder.bahdanau import Bahdanau
from ablate.model.decoder.luong import Luong
from ablate.model.recurrent.recurrent import Recurrent
from ablate.model.recurrent.rnn_attention import RNNAttention
from ablate.model.recurrent.written_gradient.cells import STEPS, Steps
from ablate.model.recurrent.written_gradient.loop import (
    AttendsAfter,
    AttendsBefore,
    Context,
    Fixed,
    Layers,
    Loop,
    Products,
    TanhSums,
    Tensors,
)


def decoded(
    decoder: Decoder, embedded: Float[Tensor, "b i e"], state: RNNState
) -> Float[Tensor, "b i _"]:
    """The decoder's outputs of these steps, and the state advanced."""
    if isinstance(decoder, Luong) and decoder.input_feeding:
        assert state.feed is not None
        fed = [state.feed[:, 0], decoder.combine.weight]
        if made := unroll(AttendsAfter, decoder, embedded, state, fed):
            (states,) = made
            state.feed = states[:, -1:]
            return states
    elif isinstance(decoder, Bahdanau):
        first = decoder.recurrent.output(state.hidden)
        if made := unroll(AttendsBefore, decoder, embedded, state, [first]):
            states, seen = made
            before = torch.cat([first[:, None], states[:, :-1]], 1)
            return decoder.read_out(before, embedded, seen)
    outputs: Tensor = decoder(embedded, state)
    return outputs


def unroll(
    loop: Callable[..., Loop],
    decoder: Decoder,
    embedded: Float[Tensor, "b i e"],
    state: RNNState,
    own: Tensors,
) -> tuple[Float[Tensor, "b i d"], ...] | None:
    """The outputs of the next steps, and the state advanced; None if a part has no written form.

    own: the tensors of the loop's class.
    """
    recurrent, attention, steps = decoder.recurrent, decoder.context, embedded.shape[1]
    layers: list[Cell] = list(recurrent.layers)  # type: ignore[arg-type]
    known = all(type(layer) in STEPS for layer in layers)
    if not known or not wide_on_cpu(embedded) or decodes(embedded):
        return None
    of_context: Tensors = [state.memory.last]
    allowed = None
    if weighs := isinstance(attention, RNNAttention):
        assert state.memory.keys is not None
        scores = of_scores(attention, state.memory.keys[:, 0])
        if scores is None:
            return None
        of_context = [state.memory.states, *scores]
        allowed = attention.allowed(state.memory, state.position, steps)
        if allowed is not None:
            by_step = allowed[:, None] if allowed.dim() == 2 else allowed[:, 0].transpose(0, 1)
            allowed = by_step.expand(steps, len(embedded), -1)
        if not isinstance(attention.kernel, InLoop):
            attention.kernel = InLoop(attention.kernel)
    of_layers, masks = layers_of(recurrent, layers, embedded, state)
    cells = [STEPS[type(layer)] for layer in layers]
    plan = Plan(loop, cells, recurrent.residual, masks, weighs, allowed)
    groups = [*of_layers, of_context, own]
    flat = [tensor for group in groups for tensor in group]
    made = Unrolled.apply(plan, [len(group) for group in groups], *flat)
    count = len(made) - recurrent.states * len(layers)
    parts = iter(part[None] for part in made[count:])
    state.hidden = [tuple(islice(parts, recurrent.states)) for _ in layers]
    state.position += steps
    return tuple(output.transpose(0, 1) for output in made[:count])


def of_scores(attention: RNNAttention, keys: Float[Tensor, "b j p"]) -> Tensors | None:
    """The tensors of the scores for `Products` or `TanhSums`; None if there is no such form. keys:
    as the score prepared them."""
    score: Score = attention.score
    if attention.chosen or attention.kernel.compiled or attention.recorded is not None:
        return None
    if attention.normalizer.needs or attention.window.needs:
        return None
    if type(score) is Dot:
        return [keys]
    if type(score) is ScaledDot:
        return [keys / math.sqrt(score.query_dim)]
    if type(score) is General:  # W k of every key once, not q W at every step
        return [keys @ score.weight[0].mT]
    if type(score) is Location:
        return [score.first(keys.shape[1]).expand(len(keys), -1, -1)]
    if type(score) is Additive and score.w is not None:
        return [keys, score.w[0], score.v[0]]
    return None


class InLoop(Kernel):
    """The kernel of an attention that a loop computes, for steps that it does not."""

    name = "loop"

    def __init__(self, kernel: Kernel) -> None:
        self.kernel = kernel

    def __call__(self, attend: AttentionInputs) -> Float[Tensor, "b h {attend.queries} w"]:
        self.kernel.compiled = self.compiled
        return self.kernel(attend)


@dataclass
class Plan:
    """A loop without its tensors (of each layer, of the context, of its class)."""

    loop: Callable[..., Loop]
    cells: list[type[Steps]]
    residual: bool
    masks: list[Float[Tensor, "i b d"] | None]
    weighs: bool
    allowed: Bool[Tensor, "i b j"] | None

    def make(self, groups: Sequence[Tensors]) -> Loop:
        *of_layers, of_context, own = groups
        cells = [
            steps(sums, w, u, bias, before)
            for steps, (sums, w, u, bias, *before) in zip(self.cells, of_layers, strict=True)
        ]
        count = cells[0].count
        context: Context | Fixed
        if self.weighs:
            values, k, *rest = of_context
            bound = len(cells) if self.residual else 1
            scores = TanhSums(count, k, *rest, bound=bound) if rest else Products(count, k)
            context = Context(count, values, scores, self.allowed)
        else:
            context = Fixed(count, *of_context)
        layers = Layers(cells, residual=self.residual, masks=self.masks)
        return self.loop(layers, context, *own)


class Unrolled(torch.autograd.Function):
    """A loop as one operation of autograd."""

    @staticmethod
    def forward(
        ctx: Any, plan: Plan, sizes: Sequence[int], *tensors: Shaped[Tensor, ...]
    ) -> Tensors:
        ctx.save_for_backward(*tensors)  # autograd sees that none is changed before the way back
        rest = iter(tensors)
        loop = ctx.loop = plan.make([list(islice(rest, size)) for size in sizes])
        loop.run()
        after = [part for cells in loop.layers.cells for part in cells.after]
        # Views: autograd marks returned tensors, and the loop must not keep its own node alive.
        return tuple(x.view_as(x) for x in (*loop.outputs, *after))

    @staticmethod
    @once_differentiable
    def backward(ctx: Any, *d: Shaped[Tensor, ...]) -> tuple[Shaped[Tensor, ...] | None, ...]:
        _, loop = ctx.saved_tensors, ctx.loop
        count = len(loop.outputs)
        loop.layers.start_backward(d[count:])
        return None, None, *loop.backward(*d[:count])


def layers_of(
    recurrent: Recurrent, layers: Sequence[Cell], embedded: Float[Tensor, "b i e"], state: RNNState
) -> tuple[list[Tensors], list[Float[Tensor, "i b d"] | None]]:
    """The tensors of the steps of each layer, and the dropout factors of their inputs."""
    groups: list[Tensors] = []
    masks: list[Float[Tensor, "i b d"] | None] = []
    batch, steps, width = embedded.shape
    for number, (layer, hidden) in enumerate(zip(layers, state.hidden, strict=True)):
        weight, u, bias, of_u = layer.maps
        if number:
            sums, w = bias.expand(steps, batch, -1), weight
            ones = embedded.new_ones(batch, steps, layer.hidden_size)
            dropped = recurrent.dropout(ones, number, state.position)
            masks.append(None if dropped is ones else dropped.transpose(0, 1))
        else:
            sums = F.linear(embedded, weight[:, :width], bias).transpose(0, 1)
            w = weight[:, width:]
        groups.append([sums, w, u, of_u, *(part[0] for part in hidden)])
    return groups, masks
