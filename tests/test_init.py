"""Initial values: each depends on the seed and the parameter's own name, and on nothing else."""

from typing import Any

import pytest
import torch
from make_model import gpt, normal, part, transformer
from torch import Tensor

from ablate.errors import UserError
from ablate.model.base import draw_by_name
from ablate.model.layers.linear import STD


def initial(seed: int = 0, **changes: Any) -> dict[str, Tensor]:
    model = gpt(**changes)
    model.initialize(seed)
    return {name: parameter.detach().clone() for name, parameter in model.named_parameters()}


@pytest.mark.parametrize(
    "change",
    [
        {"norm": "post", "mask": "none"},
        {"attention": "additive", "ffn": "none"},
        {"tie_embeddings": False, "bias": False},
        {"share_layers": True},
    ],
    ids=str,
)
def test_arms_start_from_equal_values(change: dict[str, Any]) -> None:
    """Those of the options of each group: test_axes.py."""
    base, arm = initial(pos_enc="learned"), initial(pos_enc="learned", **change)
    shared = base.keys() & arm.keys()
    assert len(shared) >= 4
    for name in shared:
        assert torch.equal(base[name], arm[name]), name


@pytest.mark.parametrize(("mixer", "depth_scale"), [("attention", True), ("convolution", False)])
def test_deeper_arms_start_from_equal_values_up_to_gpt2s_factor(
    mixer: str, depth_scale: bool
) -> None:
    """1 / sqrt(additions to the residual stream), two a block; without it all are equal."""
    changes = {"init_depth_scale": depth_scale, "mixer": mixer}
    shallow, deep = initial(depth=2, **changes), initial(depth=8, **changes)
    assert shallow.keys() < deep.keys()
    scaled = ("out.weight", "down.weight", "mixer.function.weight") if depth_scale else ()
    assert sum(name.endswith(scaled) for name in shallow) == (4 if depth_scale else 0)
    for name in shallow:
        torch.testing.assert_close(shallow[name], deep[name] * (2 if name.endswith(scaled) else 1))
    # With cross-attention a block adds three times.
    maps = []
    for scale in (depth_scale, False):
        model = transformer(decoder={"depth": 3}, init_depth_scale=scale)
        model.initialize(0)
        maps.append(model.decoder.blocks[0].cross_attention.function.out.weight)
    torch.testing.assert_close(maps[0] * (3 if depth_scale else 1), maps[1])


def test_zero_projections_make_every_sublayer_the_identity() -> None:
    """And all logits zero, if the head is not tied."""
    model = gpt(init_depth_scale="zero", depth=3)
    model.initialize(0)
    x = torch.randn(2, 5, 12)
    torch.testing.assert_close(model.stack(x), model.stack.final_norm(x))
    model = gpt(init_depth_scale="zero", tie_embeddings=False)
    model.initialize(0)
    assert not model(torch.arange(5)[None]).any()


def test_a_value_does_not_depend_on_what_its_module_draws_before_it() -> None:
    def tables(*, depth: int = 2, **changes: Any) -> dict[str, Tensor]:
        values = initial(depth=depth, pos_enc=part("pos_enc", "relative", **changes))
        return {name: v for name, v in values.items() if "value_tables" in name}

    before = tables()
    assert len(before) == 2
    assert not torch.equal(*before.values())
    for after in (tables(keys=False), tables(depth=4)):
        assert all(torch.equal(before[name], after[name]) for name in before)


def test_drawing_depends_on_the_seed_and_on_nothing_else() -> None:
    torch.manual_seed(1)
    first = initial(attention="general", pos_enc="relative")
    torch.manual_seed(2)
    again, other = (initial(seed, attention="general", pos_enc="relative") for seed in (0, 1))
    for name, value in first.items():
        assert torch.equal(value, again[name])
        constant = bool((value == value.flatten()[0]).all())
        assert torch.equal(value, other[name]) == constant
    model = gpt()
    state = torch.get_rng_state()
    model.initialize(0)
    assert torch.equal(state, torch.get_rng_state())  # nobody else's draws are moved


def test_initial_widths_are_gpt2s_at_its_width() -> None:
    values = initial(dim=96, depth=8)
    for name, value in values.items():
        if name.endswith(".bias"):
            assert torch.equal(value, torch.zeros_like(value)), name
        elif "norm" in name:
            assert torch.equal(value, torch.ones_like(value)), name
        else:
            scaled = name.endswith(("out.weight", "down.weight"))
            # Tables keep GPT-2's deviation; linear maps have it at GPT-2's width of 768.
            linear = STD * (768 / 96) ** 0.5 if ".blocks." in name else STD
            expected = linear / (2 * 8) ** 0.5 if scaled else linear
            assert value.std().item() == pytest.approx(expected, rel=0.1), name
            assert abs(value.mean().item()) < 0.1 * expected, name


def test_a_parameter_that_nothing_can_draw_is_refused() -> None:
    model = gpt()
    model.stray = torch.nn.Parameter(normal(2))
    with pytest.raises(UserError, match="the parameter stray belongs to no module"):
        draw_by_name(model, 0)
