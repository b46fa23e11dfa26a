"""One position asked for: what the last block leaves out changes nothing that is read."""

from typing import Any

import pytest
import torch
from make_model import SIZES, bert, gpt, normal, options, part, random_parts, scores, tokens, vit
from torch import Tensor, nn

from ablate.model.layers.multi_head import recording
from ablate.model.layers.stack import Stack

TOKENS = 1 + 9  # of the tiny ViT
CHANGES: dict[str, dict[str, Any]] = {
    "plain": {},
    "shared blocks": {"share_layers": True},
    "computed again": {"activation_checkpointing": True},
    "no residual": {"residual": False},
    "no feed-forward": {"ffn": "none"},
    "one block": {"depth": 1},
    **{f"norm={norm}": {"norm": norm} for norm in ("pre", "post", "sandwich", "none")},
    **{f"norm_type={name}": {"norm_type": name} for name in ("layer", "rms", "batch")},
    **{f"attention={name}": {"attention": name} for name in scores()},
    **{f"mixer={name}": {"mixer": name} for name in ("fixed", "none")},  # others: with texts
    **{
        f"normalizer={name}": {"normalizer": name}
        for name in options("model.normalizer")
        if name != "hard"  # whose weights are drawn
    },
    **{
        f"pos_enc={name} kernel={kernel}": {"pos_enc": name, "kernel": kernel}
        for name in options("pos_enc")
        for kernel in ("reference", "sdpa", "chunked")
        if kernel != "sdpa" or not name.startswith("relative")
    },
    "window": {"mask": part("model.mask", "window", size=3), "kernel": "chunked"},
    "neighbours": {"mask": "neighbours"},
}


def measured(stack: Stack, x: Tensor, at: int, keep: Tensor | None = None) -> dict[str, Tensor]:
    """The state of one position, and what it gives to all parameters and to x."""
    results = []
    for position in (at, None):
        stack.zero_grad()
        read = x.clone().requires_grad_()
        found = stack(read, keep=keep, position=position)
        found = found if position is not None else found[:, at : at + 1]
        (found * normal(*found.shape, seed=5)).sum().backward()
        assert read.grad is not None
        gradients = {name: p.grad for name, p in stack.named_parameters() if p.grad is not None}
        results.append({"state": found.detach(), "x": read.grad, **gradients})
    torch.testing.assert_close(*results)
    return results[0]


@pytest.mark.parametrize("at", [0, 4])
@pytest.mark.parametrize("change", CHANGES)
def test_the_state_and_its_gradients_stay(change: str, at: int) -> None:
    changes = {"depth": 2, "dropout": 0.0} | CHANGES[change]
    model = random_parts(vit(**changes), std=0.3).train()
    found = measured(model.stack, normal(3, TOKENS, 12), at)
    assert found["state"].shape == (3, 1, 12)
    assert found["state"].abs().max() > 0


@pytest.mark.parametrize("at", [0, 3, 6])
@pytest.mark.parametrize("mixer", options("model.mixer"))
@pytest.mark.parametrize("mask", ["causal", "none"])
def test_of_texts_with_padding(mask: str, mixer: str, at: int) -> None:
    model = random_parts(gpt(mask=mask, mixer=mixer, pos_enc="rotary", dropout=0.0)).train()
    keep = torch.ones(3, 7, dtype=torch.bool)
    keep[1, 1:3] = False
    measured(model.stack, normal(3, 7, 12), at, keep)


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
        ({"share_layers": True}, [TOKENS, 1]),
        ({"depth": 1}, [1]),
        ({"mixer": "fixed"}, [TOKENS, 1]),
        ({"mixer": "none"}, [TOKENS, 1]),
        ({"norm_type": "batch"}, [TOKENS, TOKENS]),  # by the statistics of all of them
        ({"pool": "mean"}, [TOKENS - 1, TOKENS - 1]),
    ],
    ids=str,
)
def test_a_vit_computes_what_is_read(changes: dict[str, Any], expected: list[int]) -> None:
    model = vit(**changes).double()
    assert widths(model, normal(2, 2, 6, 6)) == expected


def test_who_wants_to_see_the_weights_sees_those_of_all_positions() -> None:
    model = vit().double()
    with recording(model) as layers:
        model(normal(2, 2, 6, 6))
    assert [weights.shape for layer in layers for weights in layer] == [(2, 3, TOKENS, TOKENS)] * 2


@pytest.mark.parametrize(("mask", "expected"), [("none", [9, 1]), ("causal", [9, 9])])
def test_a_bert_for_classes_reads_its_first_token_where_that_sees_all(
    mask: str, expected: list[int]
) -> None:
    sizes = SIZES["bert"] | {"segments": 1, "next_sentence": False, "classes": 3}
    model = random_parts(bert(mask=mask, **sizes)).eval()
    keep = torch.arange(9) < torch.tensor([[9], [5]])
    text = tokens(2, 9)
    assert widths(model, text, keep) == expected
    assert model.pooler is not None
    assert model.classifier is not None
    states = model.summary(model.encode(text, keep=keep), keep)
    torch.testing.assert_close(model(text, keep), model.classifier(model.pooler(states)))
