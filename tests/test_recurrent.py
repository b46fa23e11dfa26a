"""Recurrent layers and the language model made of them; test_properties.py has the rest."""

import pytest
import torch
from make_model import SIZES, flops, normal, options, part, random_parts, rnn_lm, tokens
from torch import nn
from torch.testing import assert_close

from ablate.model.base import draw_by_name
from ablate.model.recurrent.recurrent import Recurrent

B, N, E, D = 4, 6, 5, 8
GATES = {"rnn": 1, "gru": 3, "lstm": 4}
LENGTHS = [6, 1, 4, 3]
CELLS = options("model.cell")
LENGTH = SIZES["rnn_lm"]["length"]


def made(cell="gru", *, inputs=E, dim=D, **changes):
    keys = {"depth": 1, "residual": False, "dropout": 0.0} | changes
    return random_parts(Recurrent(inputs, dim, cell=part("model.cell", cell), **keys))


def padding():
    return torch.arange(N) < torch.tensor(LENGTHS)[:, None]


def alone(layers, x):
    """One sentence, i e, through torch's layers: what they say, i d, and the last states."""
    last = []
    for number, layer in enumerate(layers.layers):
        said, ends = layer(x[None])
        x = x + said[0] if layers.residual and number else said[0]
        last.append(ends if layers.states == 2 else (ends,))
    return x, last


@pytest.mark.parametrize("bidirectional", [False, True])
@pytest.mark.parametrize(("depth", "residual"), [(1, False), (3, False), (3, True)])
@pytest.mark.parametrize("cell", CELLS)
def test_a_sentence_is_read_as_if_it_were_alone(cell, depth, residual, bidirectional):
    """In a padded batch."""
    layers = made(cell, depth=depth, residual=residual, bidirectional=bidirectional)
    x, keep = normal(B, N, E), torch.arange(N) < torch.tensor(LENGTHS)[:, None]
    y, hidden = layers(x, keep=keep)
    output = layers.output(hidden)
    assert not y[~keep].any()
    for b, length in enumerate(LENGTHS):
        expected, last = alone(layers, x[b, :length])
        assert_close(y[b, :length], expected)
        mine = [[state[:, [b]] for state in layer] for layer in hidden]
        assert_close(mine, [[*layer] for layer in last])
        half = D // 2  # each direction's last
        ends = [expected[-1, :half], expected[0, half:]] if bidirectional else [expected[-1]]
        if not (residual and bidirectional):
            assert_close(output[b], torch.cat(ends))


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
    layers, same, x = made(), made(), normal(1, N, E)
    draw_by_name(layers, 3)
    same.load_state_dict(layers.state_dict())
    assert_close(layers(x)[0], same(x)[0])


@pytest.mark.parametrize(("cell", "bidirectional"), [("lstm", True), ("rnn", False)])
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
    assert flops(Reader, torch.ones(B, N, dtype=torch.long)) == 2 * products


def language_model(**changes):
    return random_parts(rnn_lm(**changes)).eval()


def test_dropout_acts_on_the_embedding_and_before_the_output_map():
    model, seen = language_model(dropout=0.5, tie_embeddings=False).train(), []
    for dropout in (model.dropout, model.read_out.dropout):
        dropout.register_forward_hook(lambda _, args, out: seen.append((*args, out)))
    logits = model(tokens(2, LENGTH))
    (read, _), (_, out) = seen
    assert torch.equal(read, model.embedding(tokens(2, LENGTH)))
    assert torch.equal(logits, model.head(out))


@pytest.mark.ci
def test_the_gates_of_every_layer_are_drawn(tmp_path):
    model, example = language_model(cell="lstm", depth=2), {"tokens": tokens(1, LENGTH)}
    paths = model.float().figures(example, tmp_path, None)
    assert [path.name for path in paths] == ["gates_layer_01.png", "gates_layer_02.png"]
    assert all(path.is_file() for path in paths)
    assert model.figures(example, tmp_path, 2) == paths[1:]
    assert language_model(cell="gru").figures(example, tmp_path, None) == []
