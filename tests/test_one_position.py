"""One position asked for: what the last block leaves out changes nothing that is read."""

from typing import Any

import pytest
import torch
from make_model import bert, gpt, normal, options, part, random_parts, tokens, vit
from torch import Tensor, nn

from ablate.model.layers.multi_head import recording
from ablate.model.layers.stack import Stack

TOKENS = 1 + 9  # of the tiny ViT
CHANGES: list[dict[str, Any]] = [
    *({key: value} for key, value in (("share_layers", True), ("activation_checkpointing", True))),
    *({"residual": False, "ffn": "none", "norm": norm} for norm in ("post", "none")),
    {"norm_type": "batch", "norm": "sandwich"},
    *({"attention": name, "normalizer": "sigmoid"} for name in ("additive", "location")),
    {"pos_enc": "relative_2d", "attention": "general"},
    *({"pos_enc": name, "kernel": "chunked"} for name in ("rotary", "relative", "t5")),
    {"kernel": "sdpa", "depth": 1, "connection": "x0"},
    {"mask": part("model.mask", "window", size=3), "kernel": "chunked", "ffn": "moe"},
    {"connection": "hyper", "parallel": True},
]

NEAR = part("model.mixer", "attention", short_conv=3, key_shift=True, exclusive=True)


def assert_same(stack: Stack, x: Tensor, at: int, keep: Tensor | None = None) -> None:
    """The state of one position, and what it gives to all parameters and to x."""
    results = []
    for position in (at, None):
        stack.zero_grad()
        read = x.clone().requires_grad_()
        found = stack(read, keep=keep, position=position)
        found = found if position is not None else found[:, at : at + 1]
        (found * normal(*found.shape, seed=5)).sum().backward()
        assert read.grad is not None
        assert found.shape[1] == 1
        assert found.abs().max() > 0
        gradients = {name: p.grad for name, p in stack.named_parameters() if p.grad is not None}
        results.append({"state": found.detach(), "x": read.grad, **gradients})
    torch.testing.assert_close(*results)


@pytest.mark.parametrize("change", CHANGES, ids=str)
def test_the_state_and_its_gradients_stay(change: dict[str, Any]) -> None:
    model = random_parts(vit(**{"depth": 2, "dropout": 0.0} | change), std=0.3).train()
    for at in (0, 4):
        assert_same(model.stack, normal(3, TOKENS, 12), at)


@pytest.mark.parametrize("mixer", [*options("model.mixer"), NEAR])
def test_of_texts_with_padding(mixer: Any) -> None:
    model = random_parts(gpt(mixer=mixer, pos_enc="rotary", dropout=0.0)).train()
    keep = torch.ones(3, 7, dtype=torch.bool)
    keep[1, 1:3] = False
    for at in (0, 3, 6):
        assert_same(model.stack, normal(3, 7, 12), at, keep)


def widths(model: nn.Module, *inputs: Tensor) -> list[int]:
    """How many positions each feed-forward of a model was given."""
    seen: list[int] = []
    for block in model.stack.blocks:
        block.feed_forward.register_forward_pre_hook(lambda _, args: seen.append(args[0].shape[1]))
    model(*inputs)
    return seen


@pytest.mark.parametrize(
    ("changes", "expected"),
    [
        ({}, [TOKENS, 1]),
        ({"mixer": "none"}, [TOKENS, 1]),
        ({"norm_type": "batch"}, [TOKENS, TOKENS]),  # by the statistics of all of them
        ({"pool": "mean"}, [TOKENS - 1, TOKENS - 1]),
    ],
    ids=str,
)
def test_a_vit_computes_what_is_read(changes: dict[str, Any], expected: list[int]) -> None:
    model = vit(**changes).double()
    assert widths(model, normal(2, 2, 6, 6)) == expected
    with recording(model) as layers:  # who wants to see weights sees those of all positions
        model(normal(2, 2, 6, 6))
    seen = TOKENS - (changes.get("pool") == "mean")
    shapes = {weights.shape[2:] for layer in layers for weights in layer}
    assert shapes == (set() if changes == {"mixer": "none"} else {(seen, seen)})


@pytest.mark.parametrize(("mask", "expected"), [("none", [9, 1]), ("causal", [9, 9])])
def test_a_bert_for_classes_reads_its_first_token_where_that_sees_all(
    mask: str, expected: list[int]
) -> None:
    sizes = {"segments": 1, "next_sentence": False, "classes": 3}
    model = random_parts(bert(mask=mask, **sizes)).eval()
    keep = torch.arange(9) < torch.tensor([[9], [5]])
    text = tokens(2, 9)
    assert widths(model, text, keep) == expected
    assert model.pooler is not None
    assert model.classifier is not None
    states = model.summary(model.encode(text, keep=keep), keep)
    torch.testing.assert_close(model(text, keep), model.classifier(model.pooler(states)))
