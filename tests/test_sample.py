"""Sampling: the right tokens can be drawn, with the right chances, with and without the cache."""

from functools import partial
from itertools import product

import pytest
import torch
from make_model import SIZES, gpt, normal, part, random_parts, rnn_lm, tokens

from ablate.decode.sample import choose, sample, truncated

LENGTH = SIZES["gpt"]["length"]
PROBABILITIES = torch.tensor([0.1, 0.4, 0.05, 0.25, 0.2])
DRAWS = 20000


def frequencies(**changes):
    """How often each of the five tokens is drawn."""
    keys = {"temperature": 1.0, "top_k": None, "top_p": None} | changes
    logits = PROBABILITIES.log().expand(DRAWS, -1)
    drawn = choose(logits, rng=torch.Generator().manual_seed(0), **keys)
    return drawn.bincount(minlength=5) / DRAWS


def kept(*places, power=1.0):
    """The chances when only those tokens can be drawn."""
    chances = torch.zeros(5)
    chances[list(places)] = PROBABILITIES[list(places)] ** power
    return chances / chances.sum()


@pytest.mark.parametrize(
    ("changes", "expected"),
    [
        ({}, kept(0, 1, 2, 3, 4)),
        ({"temperature": 0.5}, kept(0, 1, 2, 3, 4, power=2)),
        ({"temperature": 0.0}, kept(1)),
        ({"top_p": 0.6}, kept(1, 3)),
        ({"temperature": 0.5, "top_p": 0.6}, kept(1, 3, power=2)),  # of .57 .22 .14 ..
    ],
    ids=str,
)
def test_tokens_are_drawn_with_the_right_chances(changes, expected):
    found = frequencies(**changes)
    assert torch.equal(found > 0, expected > 0)
    torch.testing.assert_close(found, expected, atol=0.015, rtol=0)


def test_the_order_is_that_of_transformers():
    """Temperature, then top-k, then top-p of what top-k has left together."""
    warpers = pytest.importorskip("transformers.generation.logits_process")
    logits = 3 * normal(40, 50)
    for temperature, top_k, top_p in product((0.3, 1.0, 2.5), (1, 4, 20, 50), (1e-9, 0.5, 0.9, 1)):
        scores = warpers.TemperatureLogitsWarper(temperature)(None, logits)
        scores = warpers.TopKLogitsWarper(top_k)(None, scores)
        expected = warpers.TopPLogitsWarper(float(top_p))(None, scores).softmax(-1)
        ranked, order = truncated(logits, temperature=temperature, top_k=top_k, top_p=top_p)
        torch.testing.assert_close(torch.zeros_like(logits).scatter(-1, order, ranked), expected)


# Whole texts


def text(model, prompt, count, *, seed=0, **changes):
    rng = torch.Generator().manual_seed(seed)
    return torch.stack(list(sample(model, prompt, tokens=count, rng=rng, **changes)), dim=1)


def test_greedy_text_is_the_argmax_of_the_logits():
    model = random_parts(gpt(pos_enc="learned")).eval()
    read = tokens(2, 3)
    for _ in range(3 * LENGTH):  # far beyond the context: the oldest token is forgotten
        best = model(read[:, -LENGTH:])[:, -1].argmax(-1)
        read = torch.cat([read, best[:, None]], dim=1)
    assert torch.equal(text(model, read[:, :3], 3 * LENGTH, temperature=0.0), read[:, 3:])


@pytest.mark.ci
@pytest.mark.parametrize(
    "make",
    [
        partial(gpt, pos_enc="learned"),
        partial(gpt, mask=part("model.mask", "prefix", size=3)),
        partial(rnn_lm, cell="lstm", depth=2),
    ],
)
def test_cached_text_equals_uncached_and_is_that_of_its_seed(make):
    model = random_parts(make()).eval()
    for prompt in (tokens(2, 2), tokens(2, LENGTH + 4)):
        cached = text(model, prompt, 2 * LENGTH)
        assert torch.equal(cached, text(model, prompt, 2 * LENGTH, use_cache=False))
        assert not torch.equal(cached, text(model, prompt, 2 * LENGTH, seed=1))


@pytest.mark.parametrize(
    ("make", "cached", "plain"),
    [
        (gpt, [3, 1, 1, 1, 1, LENGTH, LENGTH], [3, 4, 5, 6, LENGTH, LENGTH, LENGTH]),
        (rnn_lm, [3, 1, 1, 1, 1, 1, 1], [3, 4, 5, 6, 7, 8, 9]),  # which forgets nothing
    ],
)
def test_the_cache_saves_reading_again(make, cached, plain):
    model, read = make(), []
    model.embedding.register_forward_pre_hook(lambda _, args: read.append(args[0].shape[1]))
    text(model, tokens(1, 3), LENGTH)
    assert read == cached
    read.clear()
    text(model, tokens(1, 3), LENGTH, use_cache=False)
    assert read == plain
