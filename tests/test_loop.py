"""The written-out loop of RNN decoders beside the plain steps of kernel=reference."""

import pytest
import torch
from make_model import options, random_parts, scores, tiny
from torch import Tensor
from torch.testing import assert_close

from ablate.data.pairs import BOS, PAD
from ablate.kernel.additive_cpu import LIMITS
from ablate.model.layers.stack import kernels
from ablate.random.draws import Draws

# The scores whose steps the loop computes.
LOOPED = {"dot", "scaled_dot", "general", "additive", "location", "none"}
SOURCE = torch.tensor(
    [[4, 5, 6, 7, 8, 9, 10, 11], [9, 4, 7, *[PAD] * 5], [5, 6, 4, 4, 8, *[PAD] * 3]]
)
TARGET = torch.tensor([[BOS, 4, 8, 9, 4, 7], [BOS, 6, 5, 5, 10, 4], [BOS, 9, 9, 6, 4, 8]])


def two(name: str, **keys):
    """A model and the same with plain steps, in float64, with draws of one step of training."""
    made = [tiny(name, kernel=kernel, **keys).double() for kernel in ("auto", "reference")]
    random_parts(made[0], std=0.5)
    made[1].load_state_dict(made[0].state_dict())
    for model in made:
        draws = Draws(model.train())
        draws.keys = draws.of_batch(0, 3)
    return made


def looped(model) -> bool:
    return [*kernels(model).values()] == ["loop"]


def gradients(model, source: Tensor) -> tuple[Tensor, dict[str, Tensor]]:
    model.zero_grad()
    out = model(source, TARGET)
    out.sin().sum().backward()
    return out.detach(), {name: p.grad for name, p in model.named_parameters()}


@pytest.mark.ci
@pytest.mark.parametrize("cell", options("model.cell"))
@pytest.mark.parametrize("decoder", ["luong", "bahdanau"])
@pytest.mark.parametrize("score", sorted(LOOPED))
def test_value_and_gradient_are_those_of_plain_steps(score, decoder, cell):
    keys = {"attention": score, "decoder": decoder, "cell": cell}
    keys["input_feeding"] = decoder == "luong"
    deep = {"depth": 3, "residual": True, "dropout": 0.3}
    for more in ({}, deep) if score == "none" else ({"window": "local_m"}, deep):
        model, plain = two("rnn_seq2seq", **keys, **more)
        assert_close(gradients(model, SOURCE), gradients(plain, SOURCE))
        assert score == "none" or (looped(model) and not looped(plain))


@pytest.mark.parametrize("score", sorted(LOOPED - {"none"}))
def test_decoding_takes_the_steps_of_training(score):
    """Which cells, scores and masks compute one by one there, by torch's functions of one step."""
    for cell, decoder in zip(options("model.cell"), ("luong", "bahdanau", "luong"), strict=True):
        keys = {"window": "local_m"} if cell == "gru" else {"depth": 2, "residual": True}
        model, _ = two("rnn_seq2seq", attention=score, cell=cell, decoder=decoder, **keys,
                       input_feeding=decoder == "luong")  # fmt: skip
        model.eval()
        with torch.no_grad():
            state = model.encode(SOURCE)
            steps = [model.step(TARGET[:, t], state) for t in range(TARGET.shape[1])]
            assert_close(torch.stack(steps, 1), model(SOURCE, TARGET))
        assert looped(model)


def test_the_state_after_the_last_step_has_its_gradient():
    found = []
    for model in two("rnn_seq2seq", cell="lstm", decoder="bahdanau"):
        state = model.encode(SOURCE)
        model.decoder(model.target_embedding(TARGET), state)
        (h, c) = state.hidden[0]
        (h.sin() + c.cos()).sum().backward()
        found.append({n: p.grad for n, p in model.named_parameters() if p.grad is not None})
    assert_close(*found)


@pytest.mark.parametrize("score", ["additive", "dot", "none"])
def test_a_graph_is_gone_back_through_twice_and_notices_a_change(score):
    model, _ = two("rnn_seq2seq", attention=score, input_feeding=True)
    weights = [*model.decoder.parameters()]
    loss = model(SOURCE, TARGET).sin().sum()
    first, second = (torch.autograd.grad(loss, weights, retain_graph=True) for _ in range(2))
    assert_close(first, second)
    with torch.no_grad():
        model.decoder.combine.weight.mul_(3)
    with pytest.raises(RuntimeError, match="modified by an inplace operation"):
        loss.backward()


def test_additive_scores_that_are_too_large_for_exponentials():
    for size in (0.9, 3.0):
        model, plain = two("rnn_seq2seq", input_feeding=True)
        for each in (model, plain):
            each.decoder.context.score.u.data.fill_(size * LIMITS[torch.float64])
        assert_close(gradients(model, SOURCE), gradients(plain, SOURCE))


@pytest.mark.parametrize("score", sorted(set(scores()) - LOOPED))
def test_other_scores_take_plain_steps(score):
    model, _ = two("rnn_seq2seq", attention=score, input_feeding=True)
    gradients(model, SOURCE)
    assert not looped(model)


@pytest.mark.parametrize("keys", [{"window": "local_p"}, {"normalizer": "sparsemax"}], ids=str)
def test_parts_without_a_written_gradient_take_plain_steps(keys):
    model, plain = two("rnn_seq2seq", input_feeding=True, **keys)
    assert_close(gradients(model, SOURCE), gradients(plain, SOURCE))
    assert not looped(model)


def test_autocast_takes_plain_steps():
    model = tiny("rnn_seq2seq", kernel="auto", input_feeding=True)
    with torch.autocast("cpu", torch.bfloat16):
        model(SOURCE, TARGET)
    assert not looped(model)
