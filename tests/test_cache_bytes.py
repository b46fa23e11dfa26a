"""The bytes that decoding keeps, measured, against the formulas of the papers."""

from collections.abc import Callable
from functools import partial
from typing import Any

import pytest
import torch
from make_model import gpt, part, rnn_lm, transformer
from torch import Tensor, nn

from ablate.training import cache
from ablate.training.cache import CacheBytes

D, DEPTH, HEADS = 24, 3, 4  # float32 numbers of 4 bytes
TOKENS = torch.zeros(2, 5, dtype=torch.long)


def cache_bytes(make: Callable[[], nn.Module], *inputs: Tensor) -> CacheBytes | None:
    with torch.device("meta"):
        model = make()
    return cache.cache_bytes(model, *inputs)


@pytest.mark.parametrize(
    ("keys", "numbers"),
    [
        ({}, 2 * D),
        ({"kv_heads": 2}, 2 * D // 2),
        ({"attention": "uniform"}, D),
        ({"mixer": part("model.mixer", "latent", rank=5, rotary_dim=2), "pos_enc": "rotary"}, 7),
    ],
)
def test_a_token_costs_what_the_formula_says(keys: dict[str, Any], numbers: int) -> None:
    made = partial(gpt, dim=D, depth=DEPTH, heads=HEADS, **keys)
    assert cache_bytes(made, TOKENS) == CacheBytes(4 * DEPTH * numbers, 0)


@pytest.mark.parametrize(
    ("name", "keys", "growing", "numbers"),
    [
        ("attention", {"short_conv": 3}, 2 * D, 2 * D),
        ("convolution", {"size": 3}, 0, 2 * D),
        # Of each head k x v numbers, and the inputs that the convolutions have still to read.
        ("retention", {"expand": 2}, 0, D * 2 * D // HEADS),
        ("gla", {}, 0, D // 2 * D // HEADS),
        ("delta", {"short_conv": None}, 0, D * D // HEADS),
        ("gated_delta", {"short_conv": 4}, 0, D * D // HEADS + 3 * D),
        ("mamba2", {"state": 7}, 0, 7 * 2 * D + 3 * D),
    ],
)
def test_a_state_is_told_apart_from_what_grows(
    name: str, keys: dict[str, Any], growing: int, numbers: int
) -> None:
    mixer = part("model.mixer", name, **keys)
    made = partial(gpt, dim=D, depth=DEPTH, heads=HEADS, mixer=mixer)
    assert cache_bytes(made, TOKENS) == CacheBytes(4 * DEPTH * growing, 4 * DEPTH * numbers)


def test_a_recurrent_model_keeps_its_state_alone() -> None:
    made = partial(rnn_lm, dim=D, depth=DEPTH)  # an LSTM
    assert cache_bytes(made, TOKENS) == CacheBytes(0, 4 * DEPTH * 2 * D)


def test_of_a_model_that_reads_one_token() -> None:
    made = partial(gpt, dim=D, depth=DEPTH, heads=HEADS, length=1)
    assert cache_bytes(made, TOKENS[:, :1]) == CacheBytes(4 * DEPTH * 2 * D, 0)


def test_a_decoder_keeps_its_own_tokens_alone() -> None:
    """The memory of the source does not grow."""
    made = partial(transformer, dim=D, heads=HEADS)
    numbers = 2 * D * len(made().decoder.blocks)
    assert cache_bytes(made, TOKENS, TOKENS) == CacheBytes(4 * numbers, 0)


def test_a_model_without_a_cache_keeps_nothing() -> None:
    assert cache_bytes(partial(gpt, dim=D, heads=HEADS, mask="none"), TOKENS) is None
