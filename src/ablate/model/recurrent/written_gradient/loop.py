"""All steps of a decoder, forward and back. Stored tensors begin with the axes time and batch."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import torch
from jaxtyping import Bool, Float, Shaped
from torch import Tensor

from ablate.kernel.additive_cpu import LIMITS, pieces
from ablate.model.recurrent.written_gradient.cells import Steps, sigmoid_gradient, tanh_gradient

# Of parameters and states of several shapes.
Tensors = Sequence[Shaped[Tensor, "..."]]


class Layers:
    """The steps of all layers of a Recurrent, with residuals and dropout between them.

    masks: dropout factors of the input of each layer but the first; None: no dropout.
    """

    def __init__(
        self,
        cells: list[Steps],
        *,
        residual: bool,
        masks: Sequence[Float[Tensor, "i b d"] | None],
    ) -> None:
        self.cells, self.residual, self.masks = cells, residual, masks
        first = cells[0]
        self.inputs = [first.h.new_empty(first.count, *first.h.shape[1:]) for _ in masks]

    def forward(self, t: int, x: Float[Tensor, "b f"]) -> Float[Tensor, "b d"]:
        out = self.cells[0].forward(t, x)
        for cells, mask, kept in zip(self.cells[1:], self.masks, self.inputs, strict=True):
            below = kept[t].copy_(out) if mask is None else torch.mul(out, mask[t], out=kept[t])
            h = cells.forward(t, below)
            out = out + h if self.residual else h
        return out

    def start_backward(self, d_after: Tensors) -> None:
        states = len(self.cells[0].after)
        for number, cells in enumerate(self.cells):
            cells.start_backward(d_after[number * states : (number + 1) * states])

    def backward(self, t: int, d: Float[Tensor, "b d"]) -> Float[Tensor, "b f"]:
        """The gradient of the output -> that of x."""
        for cells, mask in zip(reversed(self.cells[1:]), reversed(self.masks), strict=True):
            below = cells.backward(t, d)
            if mask is not None:
                below *= mask[t]
            d = d + below if self.residual else below
        return self.cells[0].backward(t, d)

    def gradients(self, x: Float[Tensor, "i b f"]) -> Tensors:
        inputs = [x, *self.inputs]
        pairs = zip(self.cells, inputs, strict=True)
        return [d for cells, below in pairs for d in cells.gradients(below)]


class Products:
    """Scores q . k."""

    def __init__(self, steps: int, k: Float[Tensor, "b j d"]) -> None:
        self.k = k.contiguous()
        self.q = k.new_empty(steps, len(k), k.shape[2])

    def forward(self, t: int, q: Float[Tensor, "b d"]) -> Float[Tensor, "b j"]:
        # A row times a matrix: torch takes six times as long for a matrix times a column.
        return torch.bmm(self.q[t].copy_(q)[:, None], self.k.mT)[:, 0]

    def backward(self, t: int, d: Float[Tensor, "b j"]) -> Float[Tensor, "b d"]:
        return torch.bmm(d[:, None], self.k)[:, 0]

    def gradients(self, d: Float[Tensor, "i b j"]) -> Tensors:
        return (torch.bmm(d.permute(1, 2, 0), self.q.transpose(0, 1)),)


class TanhSums:
    """Scores v . tanh(q w + k), by the exponentials of kernel/additive_cpu.py.

    bound: the largest |q|. If q w or k could be too large for exponentials, tanh is a sigmoid.
    """

    def __init__(
        self,
        steps: int,
        k: Float[Tensor, "b j p"],
        w: Float[Tensor, "d p"],
        v: Float[Tensor, " p"],
        *,
        bound: int,
    ) -> None:
        self.w, self.v = w, v
        self.q = k.new_empty(steps, len(k), len(w))
        self.qw = k.new_empty(steps, len(k), 1, k.shape[2])
        largest = torch.maximum(k.abs().max(), bound * w.abs().sum(0).max())
        self.separate = bool(largest <= LIMITS[k.dtype])
        self.k = (2 * k).exp_() if self.separate else k.contiguous()
        self.d_k, self.d_v = torch.zeros_like(self.k), k.new_zeros(len(k), len(v))
        self.d_qw = torch.empty_like(self.qw)

    def forward(self, t: int, q: Float[Tensor, "b d"]) -> Float[Tensor, "b j"]:
        qw = torch.mm(self.q[t].copy_(q), self.w, out=self.qw[t, :, 0])
        if self.separate:
            qw.mul_(2).exp_()
        scores = self.k.new_empty(self.k.shape[:2])
        for rows, _, r in self._pieces(t):
            torch.matmul(r[:, 0], self.v, out=scores[rows])
        return scores.mul_(-2).add_(self.v.sum())

    def backward(self, t: int, d: Float[Tensor, "b j"]) -> Float[Tensor, "b d"]:
        for rows, _, r in self._pieces(t):
            part, r = d[rows], r[:, 0]
            self.d_v[rows] += torch.bmm(part[:, None], r)[:, 0]
            slope = torch.addcmul(r, r, r, value=-1, out=r).mul_(part[..., None])
            torch.sum(slope, 1, out=self.d_qw[t, rows, 0])
            self.d_k[rows] += slope
        return self.d_qw[t, :, 0].mul_(4 * self.v) @ self.w.T

    def gradients(self, d: Float[Tensor, "i b j"]) -> Tensors:
        d_w = self.q.flatten(0, 1).T @ self.d_qw.flatten(0, 2)
        gradients = self.d_k * (4 * self.v), d_w, d.sum() - 2 * self.d_v.sum(0)
        self.d_k.zero_(), self.d_v.zero_()  # a graph may be gone back through again
        return gradients

    def _pieces(self, t: int) -> Any:
        return pieces(self.qw[t], self.k, separate=self.separate)


class Context:
    """The weighted sum of the values, by softmax weights.

    allowed: which keys a step may attend to; None: all.
    """

    def __init__(
        self,
        steps: int,
        values: Float[Tensor, "b j w"],
        scores: Products | TanhSums,
        allowed: Bool[Tensor, "i b j"] | None,
    ) -> None:
        # Contiguous, or a product for each step takes several times as long.
        self.values, self.scores = values.contiguous(), scores
        batch, keys, width = values.shape
        self.masked = None if allowed is None else ~allowed
        self.weights = values.new_empty(steps, batch, keys)
        self.out = values.new_empty(steps, batch, width)
        self.d_scores, self.d_out = torch.empty_like(self.weights), torch.empty_like(self.out)
        self.weights_at, self.out_at = self.weights.unbind(0), self.out.unsqueeze(2).unbind(0)

    def forward(self, t: int, q: Float[Tensor, "b d"]) -> Float[Tensor, "b w"]:
        scores, weights = self.scores.forward(t, q), self.weights_at[t]
        if self.masked is None:
            torch.softmax(scores, -1, out=weights)
        else:  # as in Normalizer: a fully masked query gets zeros
            masked = self.masked[t]
            scores.masked_fill_(masked, torch.finfo(scores.dtype).min)
            torch.softmax(scores, -1, out=weights).masked_fill_(masked, 0.0)
        return torch.bmm(weights[:, None], self.values, out=self.out_at[t])[:, 0]

    def backward(self, t: int, d: Float[Tensor, "b w"]) -> Float[Tensor, "b d"]:
        d = self.d_out[t].copy_(d)
        of_weights = torch.bmm(d[:, None], self.values.mT)[:, 0]
        torch.ops.aten._softmax_backward_data.out(
            of_weights, self.weights_at[t], -1, d.dtype, grad_input=self.d_scores[t]
        )
        return self.scores.backward(t, self.d_scores[t])

    def gradients(self) -> Tensors:
        of_values = torch.bmm(self.weights.permute(1, 2, 0), self.d_out.transpose(0, 1))
        return [of_values, *self.scores.gradients(self.d_scores)]


class Fixed:
    """The same context at every step."""

    def __init__(self, steps: int, context: Float[Tensor, "b w"]) -> None:
        self.out = context.expand(steps, -1, -1)
        self.d_out = torch.zeros_like(context)

    def forward(self, t: int, q: Float[Tensor, "b d"]) -> Float[Tensor, "b w"]:
        return self.out[t]

    def backward(self, t: int, d: Float[Tensor, "b w"]) -> Float[Tensor, "b d"]:
        self.d_out += d
        return torch.zeros_like(d)

    def gradients(self) -> Tensors:
        gradient, self.d_out = self.d_out, torch.zeros_like(self.d_out)
        return [gradient]


class Loop:
    """All steps of a decoder. `run` fills `outputs`."""

    outputs: Tensors

    def __init__(self, layers: Layers, context: Context | Fixed) -> None:
        self.layers, self.context = layers, context
        self.steps = layers.cells[0].count

    def run(self) -> None:
        raise NotImplementedError

    def backward(self, *d_outputs: Shaped[Tensor, ...]) -> Tensors:
        """The gradients of the tensors of the layers, of the context, and of the subclass."""
        raise NotImplementedError


class AttendsAfter(Loop):
    """a(t) = tanh(W [c(t); s(t)]), s(t) = cell([e(t); a(t-1)]), c(t) the context of s(t)."""

    def __init__(
        self,
        layers: Layers,
        context: Context | Fixed,
        fed: Float[Tensor, "b d"],
        combine: Float[Tensor, "d both"],
    ) -> None:
        super().__init__(layers, context)
        self.combine, self.combine_in = combine, combine.T.contiguous()
        width, dim = combine.shape[1], len(combine)
        self.both = fed.new_empty(self.steps, len(fed), width)
        self.a = fed.new_empty(self.steps + 1, len(fed), dim)
        self.a[0] = fed
        self.outputs = (self.a[1:],)
        self.split = width - dim

    def run(self) -> None:
        for t in range(self.steps):
            s = self.layers.forward(t, self.a[t])
            both = self.both[t]
            both[:, : self.split] = self.context.forward(t, s)
            both[:, self.split :] = s
            torch.mm(both, self.combine_in, out=self.a[t + 1]).tanh_()

    def backward(self, *d_outputs: Shaped[Tensor, ...]) -> Tensors:
        (d_a,) = d_outputs
        d_sums, fed = torch.empty_like(self.a[1:]), torch.zeros_like(self.a[0])
        for t in reversed(range(self.steps)):
            d = tanh_gradient(fed.add_(d_a[t]), self.a[t + 1], out=d_sums[t])
            d_both = d @ self.combine
            of_s = self.context.backward(t, d_both[:, : self.split])
            fed = self.layers.backward(t, of_s.add_(d_both[:, self.split :]))
        of_combine = d_sums.flatten(0, 1).T @ self.both.flatten(0, 1)
        layers = self.layers.gradients(self.a[:-1])
        return [*layers, *self.context.gradients(), fed, of_combine]


class AttendsBefore(Loop):
    """s(t) = cell([e(t); g(t) c(t)]), c(t) the context of s(t-1), g(t) = sigmoid(gate s(t-1)) or 1.

    first: s(0); `gate` and its bias are one row.
    """

    def __init__(
        self,
        layers: Layers,
        context: Context | Fixed,
        first: Float[Tensor, "b d"],
        *gate: Float[Tensor, ...],
    ) -> None:
        super().__init__(layers, context)
        self.s = first.new_empty(self.steps + 1, *first.shape)
        self.s[0] = first
        self.gate = gate
        self.fed = first.new_empty(context.out.shape)
        self.share = first.new_empty(self.steps, len(first), 1)
        self.outputs = (self.s[1:], self.fed)

    def run(self) -> None:
        for t in range(self.steps):
            fed = self.fed[t].copy_(self.context.forward(t, self.s[t]))
            if self.gate:
                weight, bias = self.gate
                share = torch.addmm(bias, self.s[t], weight.T, out=self.share[t]).sigmoid_()
                fed *= share
            self.s[t + 1] = self.layers.forward(t, fed)

    def backward(self, *d_outputs: Shaped[Tensor, ...]) -> Tensors:
        d_s, d_fed = d_outputs
        of_share = torch.empty_like(self.share)
        later = torch.zeros_like(self.s[0])
        for t in reversed(range(self.steps)):
            d = self.layers.backward(t, later + d_s[t]) + d_fed[t]
            if self.gate:
                part = (d * self.context.out[t]).sum(1, keepdim=True)
                share = sigmoid_gradient(part, self.share[t], out=of_share[t])
                d = d * self.share[t]
            later = self.context.backward(t, d)
            if self.gate:
                later = later.addmm(share, self.gate[0])
        of_gate = []
        if self.gate:
            flat = of_share.flatten(0, 1)
            of_gate = [flat.T @ self.s[:-1].flatten(0, 1), flat.sum(0)]
        layers = self.layers.gradients(self.fed)
        return [*layers, *self.context.gradients(), later, *of_gate]
