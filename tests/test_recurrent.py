"""Recurrent layers: the cells step by step by hand, padding, residuals, both directions, FLOPs."""

import pytest
import torch
from make_model import normal, options, part, random_parts
from torch import nn
from torch.testing import assert_close

from ablate.model.base import draw_by_name
from ablate.model.recurrent.recurrent import Recurrent
from ablate.training.flops import flops_per_step

B, N, E, D = 4, 6, 5, 8
GATES = {"rnn": 1, "gru": 3, "lstm": 4}
LENGTHS = [6, 1, 4, 3]
CELLS = options("model.cell")


def made(cell="gru", *, inputs=E, dim=D, **changes):
    keys = {"depth": 1, "residual": False, "dropout": 0.0} | changes
    return random_parts(Recurrent(inputs, dim, cell=part("model.cell", cell), **keys))


def padding():
    return torch.arange(N) < torch.tensor(LENGTHS)[:, None]


def step(cell, x, hidden, weights):
    """One step of a cell by its formula: x and h are vectors; weights as torch orders them."""
    from_x = weights[0] @ x + weights[2]
    from_h = weights[1] @ hidden[0] + weights[3]
    if cell == "rnn":
        return (torch.tanh(from_x + from_h),)
    if cell == "gru":
        (r_x, z_x, n_x), (r_h, z_h, n_h) = from_x.chunk(3), from_h.chunk(3)
        r, z = torch.sigmoid(r_x + r_h), torch.sigmoid(z_x + z_h)
        return ((1 - z) * torch.tanh(n_x + r * n_h) + z * hidden[0],)
    i, f, g, o = (from_x + from_h).chunk(4)
    c = torch.sigmoid(f) * hidden[1] + torch.sigmoid(i) * torch.tanh(g)
    return torch.sigmoid(o) * torch.tanh(c), c


def by_hand(layers, cell, xs):
    """One sentence, i e: what the layers say, i d, and the last states by layer and direction."""
    last = []
    for number, layer in enumerate(layers.layers):
        said, ends = [], []
        for suffix in ("", "_reverse") if layer.bidirectional else ("",):
            names = ("weight_ih", "weight_hh", "bias_ih", "bias_hh")
            weights = [getattr(layer, f"{name}_l0{suffix}") for name in names]
            zeros = xs.new_zeros(D // (1 + layer.bidirectional))
            hidden = (zeros,) * layers.states
            states = []
            for x in xs.flip(0) if suffix else xs:
                hidden = step(cell, x, hidden, weights)
                states.append(hidden[0])
            said.append(torch.stack(states).flip(0) if suffix else torch.stack(states))
            ends.append(hidden)
        new = torch.cat(said, -1)
        xs = xs + new if layers.residual and number else new
        last.append(ends)
    return xs, last


@pytest.mark.parametrize("bidirectional", [False, True])
@pytest.mark.parametrize(("depth", "residual"), [(1, False), (3, False), (3, True)])
@pytest.mark.parametrize("cell", CELLS)
def test_every_cell_is_its_formula_for_every_sentence_alone(cell, depth, residual, bidirectional):
    """A padded batch against a loop over its sentences, each without its padding."""
    layers = made(cell, depth=depth, residual=residual, bidirectional=bidirectional)
    x = normal(B, N, E)
    y, hidden = layers(x, keep=padding())
    output = layers.output(hidden)
    for b, length in enumerate(LENGTHS):
        expected, last = by_hand(layers, cell, x[b, :length])
        assert_close(y[b, :length], expected)
        assert not y[b, length:].any()
        of_hand = [[torch.stack(states) for states in zip(*ends, strict=True)] for ends in last]
        assert_close([[state[:, b] for state in layer] for layer in hidden], of_hand)
        half = D // 2  # each direction's last
        ends = [expected[-1, :half], expected[0, half:]] if bidirectional else [expected[-1]]
        if not residual:
            assert_close(output[b], torch.cat(ends))


@pytest.mark.parametrize("cell", CELLS)
def test_steps_one_by_one_are_all_steps_at_once(cell):
    layers, x = made(cell, depth=2, residual=True), normal(B, N, E)
    expected, after = layers(x)
    hidden, steps = None, []
    for one in x.split(1, dim=1):
        y, hidden = layers(one, hidden)
        steps.append(y)
        assert_close(layers.output(hidden), y[:, 0])
    assert_close((torch.cat(steps, 1), hidden), (expected, after))


def test_padding_gets_no_gradient_and_gives_none():
    layers, x = made(bidirectional=True), normal(B, N, E).requires_grad_()
    y, _ = layers(x, keep=padding())
    y.sum().backward()
    assert torch.equal(x.grad.abs().sum(-1) > 0, padding())


@pytest.mark.parametrize("cell", CELLS)
def test_initial_values_are_the_stated_ones(cell):
    layers = made(cell, inputs=30, dim=40, depth=2).float()
    draw_by_name(layers, 0)
    for inputs, layer in zip((30, 40), layers.layers, strict=True):
        for recurrent in layer.weight_hh_l0.split(40):
            assert_close(recurrent @ recurrent.T, torch.eye(40), atol=1e-5, rtol=0)
        for read in layer.weight_ih_l0.split(40):
            bound = (6 / (inputs + 40)) ** 0.5
            assert read.abs().max() <= bound
            assert read.std().item() == pytest.approx(bound / 3**0.5, rel=0.1)
        biases = (layer.bias_ih_l0 + layer.bias_hh_l0).view(GATES[cell], 40)
        expected = torch.zeros(GATES[cell], 40)
        if cell == "lstm":
            expected[1] = 1
        assert torch.equal(biases, expected)


def test_layers_compute_with_what_was_drawn_for_them():
    """torch's layers keep a second list of their weights, which drawing must not leave behind."""
    layers = made().float()
    draw_by_name(layers, 3)
    x = normal(1, N, E).float()
    assert_close(layers(x)[0][0], by_hand(layers, "gru", x[0])[0])


@pytest.mark.parametrize("bidirectional", [False, True])
@pytest.mark.parametrize("cell", CELLS)
def test_flops_are_those_of_the_products(cell, bidirectional):
    """Forward, W x and U h at every step; backward, twice that, but no gradient for the first h."""

    class Reader(nn.Module):
        def __init__(self):
            super().__init__()
            self.table = nn.Embedding(9, E)
            self.layers = made(cell, bidirectional=bidirectional).float()

        def forward(self, tokens):
            y, _ = self.layers(self.table(tokens), keep=tokens != 0)
            return y

    rows, width = GATES[cell] * D, D // (1 + bidirectional)
    products = 3 * B * N * rows * (E + width) - B * rows * width
    # Padding counts as if it were read, for its place is unknown where nothing is computed.
    assert flops_per_step(Reader, torch.ones(B, N, dtype=torch.long)) == 2 * products
