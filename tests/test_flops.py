"""What a training step costs: a pair of a query and a key that is masked costs nothing."""

from typing import Any

import pytest
import torch
from make_model import flops, gpt, options, part, rnn_seq2seq
from test_properties import FAMILIES
from torch.utils.flop_counter import FlopCounterMode

from ablate.model.base import outputs
from ablate.training.flop_counter import KNOWN, FlopCounter

B, N, D, DEPTH = 2, 7, 12, 2
MASKS: dict[str, tuple[Any, int]] = {
    "causal": ("causal", N * (N + 1) // 2),
    "window": (part("model.mask", "window", size=2), 2 * N - 1),
    "prefix": (part("model.mask", "prefix", size=3), N * (N + 1) // 2 + 3),
}


def cost(**changes: Any) -> int:
    tokens = torch.zeros(B, N, dtype=torch.long)
    return flops(lambda: gpt(dim=D, depth=DEPTH, **changes), tokens)


PRODUCTS: list[tuple[dict[str, Any], int]] = [  # of a pair: a multiplication and an addition
    ({}, 6),  # a score and a weighted value, forward and twice backward
    ({"attention": "general"}, 6),  # q W belongs to the query
    ({"attention": "additive"}, 3),  # a tanh is no product
    ({"attention": "uniform"}, 2),  # values alone, whose weights have no gradient
    ({"pos_enc": "alibi", "normalizer": "hard"}, 6),
    ({"mixer": "fixed"}, 3),
    ({"share_layers": True, "dropout": 0.1}, 6),
    ({"activation_checkpointing": True}, 6),  # what is computed twice is counted once
]


@pytest.mark.ci
@pytest.mark.parametrize(
    ("changes", "products", "mask"),
    [*((*case, "window") for case in PRODUCTS), *((*PRODUCTS[0], mask) for mask in MASKS)],
    ids=str,
)
def test_a_masked_pair_costs_nothing(changes: dict[str, Any], products: int, mask: str) -> None:
    chosen, pairs = MASKS[mask]
    saved = 2 * products * B * D * DEPTH * (N * N - pairs)
    assert cost(mask="none", **changes) - cost(mask=chosen, **changes) == saved


def test_a_window_of_an_rnn_decoder_costs_its_width() -> None:
    """Step t sees |s - t| <= 2, one step after another."""
    i, j = 7, 8
    inputs = torch.ones(B, j, dtype=torch.long), torch.ones(B, i, dtype=torch.long)
    whole, near = (
        flops(lambda: rnn_seq2seq(window=window, decoder="bahdanau"), *inputs)  # noqa: B023
        for window in ("none", "local_m")
    )
    seen = sum(abs(s - t) <= 2 for s in range(j) for t in range(i))
    assert whole - near == 3 * 2 * B * D * (i * j - seen)


def test_a_triangular_system_costs_a_product_for_each_earlier_row() -> None:
    with torch.device("meta"), FlopCounter() as counter:
        torch.linalg.solve_triangular(torch.empty(5, 5), torch.empty(5, 3), upper=False)
    assert counter.flops == 5 * 5 * 3


LAYERS = [
    *({"depth": 1, "mixer": name} for name in options("model.mixer") if name != "attention"),
    *({"depth": 1, "ffn": name} for name in options("model.ffn")),
    *({"cell": name} for name in options("model.cell")),
]


@pytest.mark.parametrize(
    ("family", "changes"),
    [
        *((family, {}) for family in FAMILIES),
        *(
            pytest.param("rnn_lm" if "cell" in changes else "gpt", changes, marks=pytest.mark.ci)
            for changes in LAYERS
        ),
    ],
    ids=str,
)
def test_flops_are_those_that_torch_counts(family: str, changes: dict[str, Any]) -> None:
    """The second of ours from what the first has left."""
    make, *inputs = FAMILIES[family]
    ours, again, theirs = FlopCounter(), FlopCounter(), FlopCounterMode(display=False)
    KNOWN.clear()
    for counter in (ours, again, theirs):
        with torch.device("meta"):
            model, batch = make(**changes), [torch.empty_like(t, device="meta") for t in inputs]
        model.to(torch.float64)
        forward = model.encode if family == "bert" else model
        with counter:
            torch.stack([tensor.sum() for tensor in outputs(forward(*batch))]).sum().backward()
    assert ours.flops == again.flops == theirs.get_total_flops() > 0
