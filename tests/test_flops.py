"""What a training step costs: a pair of a query and a key that is masked costs nothing."""

from typing import Any

import pytest
import torch
from make_model import gpt, part, rnn_seq2seq

import ablate
from ablate.study.plan.budget import on_meta
from ablate.training.build import build_data, count_flops
from ablate.training.flops import flops_per_step

B, N, D, DEPTH = 2, 7, 12, 2
EVERY = N * N
MASKS: dict[str, tuple[Any, int]] = {
    "causal": ("causal", N * (N + 1) // 2),
    "window": (part("model.mask", "window", size=2), 2 * N - 1),
    "prefix": (part("model.mask", "prefix", size=3), N * (N + 1) // 2 + 3),
}

SEEN = ("none", "neighbours")


def cost(**changes: Any) -> int:
    tokens = torch.zeros(B, N, dtype=torch.long)
    return flops_per_step(lambda: gpt(dim=D, depth=DEPTH, **changes), tokens)


@pytest.mark.parametrize("mask", MASKS)
@pytest.mark.parametrize(
    ("changes", "products"),  # of a pair, each a multiplication and an addition
    [
        ({}, 6),  # a score and a weighted value, forward and twice backward
        ({"attention": "general"}, 6),  # q W belongs to the query
        ({"attention": "additive"}, 3),  # a tanh is no product
        ({"attention": "location"}, 6),
        ({"attention": "uniform"}, 2),  # values alone, whose weights have no gradient
        ({"pos_enc": "alibi"}, 6),
        ({"normalizer": "hard"}, 6),
        ({"mixer": "fixed"}, 3),
        ({"share_layers": True}, 6),
        ({"dropout": 0.1}, 6),
    ],
    ids=str,
)
def test_a_masked_pair_costs_nothing(changes: dict[str, Any], products: int, mask: str) -> None:
    chosen, pairs = MASKS[mask]
    of_a_pair = 2 * products * B * D * DEPTH
    assert cost(mask="none", **changes) - cost(mask=chosen, **changes) == (
        of_a_pair * (EVERY - pairs)
    )


def test_a_window_of_an_rnn_decoder_costs_its_width() -> None:
    """Step t sees |s - t| <= 2, one step after another."""
    i, j = 7, 8
    inputs = torch.ones(B, j, dtype=torch.long), torch.ones(B, i, dtype=torch.long)
    whole, near = (
        flops_per_step(lambda: rnn_seq2seq(window=window, decoder="bahdanau"), *inputs)  # noqa: B023
        for window in ("none", "local_m")
    )
    seen = sum(abs(s - t) <= 2 for s in range(j) for t in range(i))
    assert whole - near == 3 * 2 * B * D * (i * j - seen)


def test_a_graph_costs_its_edges() -> None:
    """Zachary's club: 34 members, each with an edge to itself and two for each of 78 ties."""
    arms = [ablate.compose("model=gat", "model.attention=dot", f"model.mask={m}") for m in SEEN]
    data = build_data(arms[0])
    every, edges = (count_flops(cfg, on_meta(cfg, data)) for cfg in arms)
    widths = arms[0].model.dim + data.sizes["classes"]
    assert every - edges == 3 * 2 * 2 * widths * (34 * 34 - (34 + 2 * 78))


def test_a_window_of_two_costs_less_than_causal_attention() -> None:
    """The two that the first count of FLOPs held to be equal."""
    arms = ("model.mask=causal", "model.mask=window model.mask.size=2")
    common = ["model.dim=32", "model.depth=2", "data.seq_len=64", "data.batch_size=2"]
    causal, window = (ablate.compose(*common, *arm.split()) for arm in arms)
    data = build_data(causal)
    found = [count_flops(cfg, on_meta(cfg, data)) for cfg in (causal, window)]
    pairs = 64 * 65 // 2 - (2 * 64 - 1)
    assert found[0] - found[1] == 3 * 2 * 2 * 2 * 32 * 2 * pairs
