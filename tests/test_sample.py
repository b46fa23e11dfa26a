"""Sampling: the right tokens can be drawn, with the right chances, with and without the cache."""

from itertools import product
from typing import Any

import pytest
import torch
from make_model import SIZES, gpt, normal, options, part, random_parts, rnn_lm, tokens
from torch import Tensor

from ablate.decode.sample import choose, sample, truncated
from ablate.model.base import LanguageModel
from ablate.model.gpt import GPT
from ablate.model.rnn_lm import RNNLM

LENGTH = SIZES["gpt"]["length"]
PROBABILITIES = torch.tensor([0.1, 0.4, 0.05, 0.25, 0.2])
DRAWS = 20000


def frequencies(**changes: Any) -> Tensor:
    """How often each of the five tokens is drawn."""
    keys: dict[str, Any] = {"temperature": 1.0, "top_k": None, "top_p": None}
    rng = torch.Generator().manual_seed(0)
    logits = PROBABILITIES.log().expand(DRAWS, -1)
    drawn = choose(logits, rng=rng, **(keys | changes))
    assert drawn.shape == (DRAWS,)
    return drawn.bincount(minlength=5) / DRAWS


def kept(*places: int, power: float = 1.0) -> Tensor:
    """The chances when only those tokens can be drawn."""
    chances = torch.zeros(5)
    chances[list(places)] = PROBABILITIES[list(places)] ** power
    return chances / chances.sum()


@pytest.mark.parametrize(
    ("changes", "expected"),
    [
        ({}, kept(0, 1, 2, 3, 4)),
        ({"temperature": 2.0}, kept(0, 1, 2, 3, 4, power=0.5)),
        ({"temperature": 0.5}, kept(0, 1, 2, 3, 4, power=2)),
        ({"top_k": 1}, kept(1)),
        ({"top_k": 3}, kept(1, 3, 4)),
        ({"top_k": 99}, kept(0, 1, 2, 3, 4)),
        ({"top_p": 0.01}, kept(1)),
        ({"top_p": 1e-300}, kept(1)),
        ({"top_p": 0.6}, kept(1, 3)),
        ({"top_p": 0.7}, kept(1, 3, 4)),
        ({"top_p": 1.0}, kept(0, 1, 2, 3, 4)),
        ({"top_k": 2, "top_p": 0.99}, kept(1, 3)),
        ({"top_k": 4, "top_p": 0.6}, kept(1, 3)),
        ({"temperature": 0.5, "top_p": 0.6}, kept(1, 3, power=2)),  # of .57 .22 .14 ..
    ],
    ids=str,
)
def test_tokens_are_drawn_with_the_right_chances(changes: dict[str, Any], expected: Tensor) -> None:
    found = frequencies(**changes)
    assert torch.equal(found > 0, expected > 0)
    torch.testing.assert_close(found, expected, atol=0.015, rtol=0)


def test_the_order_is_that_of_transformers() -> None:
    """Temperature, then top-k, then top-p of what top-k has left together."""
    warpers = pytest.importorskip("transformers.generation.logits_process")
    logits = 3 * normal(40, 50)
    for temperature, top_k, top_p in product((0.3, 1.0, 2.5), (1, 4, 20, 50), (1e-9, 0.5, 0.9, 1)):
        scores = warpers.TemperatureLogitsWarper(temperature)(None, logits)
        scores = warpers.TopKLogitsWarper(top_k)(None, scores)
        expected = warpers.TopPLogitsWarper(float(top_p))(None, scores).softmax(-1)
        ranked, order = truncated(logits, temperature=temperature, top_k=top_k, top_p=top_p)
        torch.testing.assert_close(torch.zeros_like(logits).scatter(-1, order, ranked), expected)


def test_the_lowest_temperature_and_top_p_keep_the_likeliest() -> None:
    assert frequencies(temperature=1e-300)[1] == 1
    assert frequencies(top_p=1e-300)[1] == 1


def test_temperature_zero_takes_the_likeliest() -> None:
    assert frequencies(temperature=0.0)[1] == 1


def test_the_seed_decides() -> None:
    def draw(seed: int) -> Tensor:
        rng = torch.Generator().manual_seed(seed)
        logits = PROBABILITIES.log().expand(50, -1)
        return choose(logits, temperature=1.0, top_k=None, top_p=None, rng=rng)

    assert torch.equal(draw(1), draw(1))
    assert not torch.equal(draw(1), draw(2))


# Whole texts


def model_of(**changes: Any) -> GPT:
    model = gpt(**changes)
    random_parts(model)
    return model.eval()


def text(
    model: LanguageModel, prompt: Tensor, count: int, *, seed: int = 0, **changes: Any
) -> Tensor:
    rng = torch.Generator().manual_seed(seed)
    return torch.stack(list(sample(model, prompt, tokens=count, rng=rng, **changes)), dim=1)


def test_greedy_text_is_the_argmax_of_the_logits() -> None:
    model, prompt = model_of(pos_enc="learned"), tokens(2, 3)
    read = prompt
    for _ in range(3 * LENGTH):  # far beyond the context: the oldest token is forgotten
        best = model(read[:, -LENGTH:])[:, -1].argmax(-1)
        read = torch.cat([read, best[:, None]], dim=1)
    assert torch.equal(text(model, prompt, 3 * LENGTH, temperature=0.0), read[:, 3:])


@pytest.mark.parametrize("mask", options("model.mask"))
@pytest.mark.parametrize("pos_enc", ["learned", "rotary", "t5"])
def test_cached_text_equals_uncached(pos_enc: str, mask: str) -> None:
    size = {"size": 3} if mask in ("window", "prefix") else {}
    model = model_of(pos_enc=pos_enc, mask=part("model.mask", mask, **size))
    for prompt in (tokens(2, 2), tokens(2, LENGTH), tokens(2, LENGTH + 4)):
        cached, plain = (
            text(model, prompt, 2 * LENGTH, use_cache=use_cache) for use_cache in (True, False)
        )
        assert torch.equal(cached, plain)


def test_the_cache_saves_reading_again(monkeypatch: pytest.MonkeyPatch) -> None:
    model, read = model_of(), []
    forward = GPT.forward

    def watched(self: GPT, given: Tensor, **kwargs: Any) -> Tensor:
        read.append(given.shape[1])
        return forward(self, given, **kwargs)

    monkeypatch.setattr(GPT, "forward", watched)
    text(model, tokens(1, 3), LENGTH)
    assert read == [3, 1, 1, 1, 1, LENGTH, LENGTH]
    read.clear()
    text(model, tokens(1, 3), 3, use_cache=False)
    assert read == [3, 4, 5]


def test_text_is_repeated_by_its_seed() -> None:
    model, prompt = model_of(), tokens(1, 2)
    assert torch.equal(text(model, prompt, 20), text(model, prompt, 20))
    assert not torch.equal(text(model, prompt, 20), text(model, prompt, 20, seed=1))


def test_the_context_limits_what_is_read() -> None:
    """What stands further back than the context does not matter."""
    model = model_of()
    prompt = tokens(1, LENGTH + 3)
    other = prompt.clone()
    other[:, :3] = (other[:, :3] + 1) % SIZES["gpt"]["vocab_size"]
    assert torch.equal(text(model, prompt, 5), text(model, other, 5))


# A model without a limit


def rnn(**changes: Any) -> RNNLM:
    model = rnn_lm(**changes)
    random_parts(model)
    return model.eval()


@pytest.mark.parametrize("cell", ["rnn", "gru", "lstm"])
def test_cached_text_of_an_rnn_equals_uncached(cell: str) -> None:
    model = rnn(cell=cell, depth=2)
    for prompt in (tokens(2, 1), tokens(2, LENGTH + 4)):
        cached, plain = (
            text(model, prompt, 3 * LENGTH, use_cache=use_cache) for use_cache in (True, False)
        )
        assert torch.equal(cached, plain)


def test_an_rnn_reads_every_token_once_and_forgets_none(monkeypatch: pytest.MonkeyPatch) -> None:
    model, read = rnn(), []
    forward = RNNLM.forward

    def watched(self: RNNLM, given: Tensor, **kwargs: Any) -> Tensor:
        read.append(given.shape[1])
        return forward(self, given, **kwargs)

    monkeypatch.setattr(RNNLM, "forward", watched)
    text(model, tokens(1, 3), 2 * LENGTH)
    assert read == [3] + [1] * (2 * LENGTH - 1)
    read.clear()
    text(model, tokens(1, 3), 2 * LENGTH, use_cache=False)
    assert read == list(range(3, 2 * LENGTH + 3))
