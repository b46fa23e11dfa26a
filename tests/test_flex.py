"""kernel=flex: the forward pass against the reference on a CPU, and with gradients on a GPU."""

import itertools
from dataclasses import replace

import pytest
import torch
from make_model import part
from test_kernel import (
    ENCODINGS,
    MASKS,
    PADDING,
    SCORES,
    SHAPES,
    make,
    make_pos,
    make_score,
    results,
)

from ablate.errors import UserError
from ablate.kernel import Attend, Parts
from ablate.kernel import flex as module
from ablate.kernel.flex import Flex
from ablate.kernel.reference import Reference

PRODUCTS = [name for name in SCORES if part("model.attention", name.split(",")[0]).func.lowers]
T5 = pytest.param("t5", "some", marks=pytest.mark.slow)
BIASES = [name for name in ENCODINGS if not make_pos(name).value_term]


def agrees(attend: Attend) -> None:
    with torch.no_grad():
        torch.testing.assert_close(Flex()(attend), Reference()(attend))


@pytest.mark.filterwarnings("ignore:flex_attention called without")
@pytest.mark.parametrize(
    ("bias", "mask"),
    [
        pytest.param(bias, mask, marks=[] if m == b % len(MASKS) else pytest.mark.slow)
        for b, bias in enumerate(BIASES)
        for m, mask in enumerate(MASKS)
    ],
)
def test_it_computes_what_the_reference_computes(bias: str, mask: str) -> None:
    for shape, padding in itertools.product(SHAPES, ("none", "empty rows")):
        if shape != "cross" or bias == "none":  # two sequences have no distance
            agrees(make("scaled_dot", bias, mask, shape=shape, padding=padding))


@pytest.mark.filterwarnings("ignore:flex_attention called without")
@pytest.mark.parametrize("score", PRODUCTS)
def test_every_product_can_be_computed(score: str) -> None:
    agrees(make(score, "alibi", "causal"))


@pytest.mark.parametrize(("bias", "padding"), [("alibi", "none"), T5])
def test_it_is_compiled_with_all_the_rest(
    monkeypatch: pytest.MonkeyPatch, bias: str, padding: str
) -> None:
    """As it is on a GPU: compile=true compiles a model whole, and nothing in it compiles again."""
    monkeypatch.setattr(module, "PLAIN", set())
    made = make("scaled_dot", bias, "causal", padding=padding)
    # torch looks for gradients here, which a CPU has not.
    attend = replace(made, q=made.q.detach(), k=made.k.detach(), v=made.v.detach())
    attend.pos.requires_grad_(False)
    whole = torch.compile(Flex(), fullgraph=True, backend="eager")
    with torch.no_grad():
        torch.testing.assert_close(whole(attend), Reference()(attend))


@pytest.mark.skipif(not torch.cuda.is_available(), reason="torch has no backward pass on a CPU")
@pytest.mark.parametrize("padding", PADDING)
@pytest.mark.parametrize("mask", MASKS)
@pytest.mark.parametrize("bias", BIASES)
def test_its_gradients_are_those_of_the_reference(bias: str, mask: str, padding: str) -> None:
    attend = make("scaled_dot", bias, mask, padding=padding)
    q, k, v = (x.detach().cuda().float().requires_grad_() for x in (attend.q, attend.k, attend.v))
    attend.score.cuda().float()
    attend.pos.cuda().float()
    keep = None if attend.keep is None else attend.keep.cuda()
    there = replace(attend, q=q, k=k, v=v, keep=keep)
    for mine, expected in zip(results(Flex(), there), results(Reference(), there), strict=True):
        torch.testing.assert_close(mine, expected, atol=1e-3, rtol=1e-3)


@pytest.mark.parametrize(
    ("score", "pos", "says"),
    [
        ("additive", "none", "the score Additive is not a scaled dot product"),
        ("dot", "relative", "Relative positions add to the values"),
    ],
)
def test_what_it_cannot_compute_is_refused(score: str, pos: str, says: str) -> None:
    with pytest.raises(UserError, match=says):
        Flex().resolve(Parts(make_score(score), make_pos(pos)))


@pytest.mark.skipif(torch.cuda.is_available(), reason="here it could train")
def test_without_a_gpu_it_is_refused() -> None:
    with pytest.raises(UserError, match=r"kernel=flex cannot run here: it trains on a GPU"):
        Flex().resolve(Parts(make_score("dot"), make_pos("alibi")))
