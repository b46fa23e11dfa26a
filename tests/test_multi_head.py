"""Multi-head attention: torch's with copied weights, its projections, its recorded weights."""

from typing import Any

import pytest
import torch
from make_model import context, kernel, normal, options, part, place, random_parts
from torch import Tensor, nn

from ablate.kernel.reference import Reference
from ablate.model.layers.layer import Cache, Context, Memory
from ablate.model.layers.multi_head import (
    CrossAttention,
    MultiHeadAttention,
    recording,
)
from ablate.model.mixer.attention import Attention

B, N, M, D, H = 2, 6, 8, 12, 3
SCORES = [name for name in options("model.attention") if part("model.attention", name).func.weighs]
KERNELS = {
    "reference": kernel("reference"),
    "sdpa": kernel("sdpa"),
    "chunked": kernel("chunked", chunk=4, compile=False),
}


def ours(
    score: str = "scaled_dot", *, mask: str = "none", run: str = "reference", **changes: Any
) -> Attention:
    changes |= {"mask": part("model.mask", mask)(causal=True), "kernel": KERNELS[run]}
    made = Attention(place(D, H, M, score=score, **changes))
    random_parts(made)
    return made


def crossing(
    score: str = "scaled_dot", *, run: str = "reference", **changes: Any
) -> CrossAttention:
    made = CrossAttention(place(D, H, M, score=score, kernel=KERNELS[run], **changes))
    random_parts(made)
    return made


def remembered(mine: CrossAttention, source: Tensor, keep: Tensor) -> Context:
    return context(memory=Memory({mine: mine.read(source)}, keep))


def torchs(mine: MultiHeadAttention) -> nn.MultiheadAttention:
    """torch's attention with our weights."""
    theirs = nn.MultiheadAttention(D, H, batch_first=True, bias=mine.out.bias is not None).double()
    assert mine.query is not None
    assert mine.key is not None
    inputs = [mine.query, mine.key, mine.value]
    with torch.no_grad():
        theirs.in_proj_weight.copy_(torch.cat([each.weight for each in inputs]))
        theirs.out_proj.weight.copy_(mine.out.weight)
        if mine.out.bias is not None:
            theirs.in_proj_bias.copy_(torch.cat([each.bias for each in inputs]))
            theirs.out_proj.bias.copy_(mine.out.bias)
    return theirs


def none(depth: int = 1) -> Any:
    return part("pos_enc", "none")(dim=D, heads=H, head_dim=D // H, length=M, depth=depth)


def padding(keys: int) -> Tensor:
    keep = torch.ones(B, keys, dtype=torch.bool)
    keep[0, -2:] = False
    return keep


@pytest.mark.parametrize("run", KERNELS)
@pytest.mark.parametrize("bias", [True, False])
@pytest.mark.parametrize("padded", [True, False])
@pytest.mark.parametrize("mask", ["none", "causal"])
def test_self_attention_equals_torchs(mask: str, padded: bool, bias: bool, run: str) -> None:
    mine = ours(mask=mask, run=run, bias=bias)
    x, keep = normal(B, N, D), padding(N) if padded else None
    later = torch.ones(N, N, dtype=torch.bool).triu(1) if mask == "causal" else None
    with recording(mine) as weights:
        output = mine(x, context(keep=keep))
    expected, expected_weights = torchs(mine)(
        x,
        x,
        x,
        attn_mask=later,
        key_padding_mask=None if keep is None else ~keep,
        average_attn_weights=False,
    )
    torch.testing.assert_close(output, expected)
    torch.testing.assert_close(weights[0][0], expected_weights)


@pytest.mark.parametrize("run", KERNELS)
@pytest.mark.parametrize("padded", [True, False])
def test_cross_attention_equals_torchs(padded: bool, run: str) -> None:
    mine, x, source = crossing(run=run), normal(B, N, D), normal(B, M, D, seed=2)
    keep = padding(M) if padded else torch.ones(B, M, dtype=torch.bool)
    with recording(mine) as weights:
        output = mine(x, remembered(mine, source, keep))
    expected, expected_weights = torchs(mine)(
        x, source, source, key_padding_mask=~keep, average_attn_weights=False
    )
    torch.testing.assert_close(output, expected)
    torch.testing.assert_close(weights[0][0], expected_weights)


def test_gradients_equal_torchs() -> None:
    mine, x = ours(mask="causal", run="sdpa"), normal(B, N, D)
    theirs = torchs(mine)
    later = torch.ones(N, N, dtype=torch.bool).triu(1)
    mine(x, context()).square().sum().backward()
    theirs(x, x, x, attn_mask=later)[0].square().sum().backward()
    assert mine.query is not None
    assert mine.key is not None
    for name in ("weight", "bias"):
        pieces = [getattr(each, name).grad for each in (mine.query, mine.key, mine.value)]
        torch.testing.assert_close(torch.cat(pieces), getattr(theirs, f"in_proj_{name}").grad)
        torch.testing.assert_close(
            getattr(mine.out, name).grad, getattr(theirs.out_proj, name).grad
        )


@pytest.mark.parametrize("score", SCORES)
def test_only_what_the_score_reads_is_projected(score: str) -> None:
    mine = ours(score)
    names = {name.split(".")[0] for name, _ in mine.named_parameters()}
    assert ("query" in names) == mine.score.query == (score != "uniform")
    assert ("key" in names) == mine.score.key == (score not in ("uniform", "location"))
    mine(normal(B, N, D), context()).square().sum().backward()
    assert all(parameter.grad is not None for parameter in mine.parameters())


def test_uniform_attention_is_the_mean_of_what_may_be_seen() -> None:
    mine, x = ours("uniform", mask="causal"), normal(B, N, D)
    values = mine.value(x)
    means = values.cumsum(1) / torch.arange(1, N + 1)[:, None]
    torch.testing.assert_close(mine(x, context()), mine.out(means))


@pytest.mark.parametrize("run", KERNELS)
def test_dropout_is_active_in_training_alone(run: str) -> None:
    mine, x = ours(run=run, dropout=0.5), normal(B, N, D)
    plain = ours(run=run)(x, context())
    assert torch.equal(mine.eval()(x, context()), plain)
    mine.train()
    torch.manual_seed(0)
    first, second = mine(x, context()), mine(x, context())
    assert not torch.allclose(first, second)
    torch.manual_seed(0)
    assert torch.equal(mine(x, context()), first)


@pytest.mark.parametrize("run", KERNELS)
@pytest.mark.parametrize("score", SCORES)
def test_cross_attention_reads_a_set_and_writes_a_list(score: str, run: str) -> None:
    """The order of the memory says nothing, except to a score that weighs places."""
    if run == "sdpa" and not part("model.attention", score).func.lowers:
        pytest.skip("sdpa refuses it")
    mine, x, source, keep = crossing(score, run=run), normal(B, N, D), normal(B, M, D), padding(M)
    order = torch.randperm(M, generator=torch.Generator().manual_seed(0))
    output = mine(x, remembered(mine, source, keep))
    turned = mine(x, remembered(mine, source[:, order], keep[:, order]))
    assert torch.allclose(turned, output, atol=1e-12) == (score != "location")
    back = mine(x.flip(1), remembered(mine, source, keep))
    torch.testing.assert_close(back, output.flip(1))
    output.square().sum().backward()
    assert all(parameter.grad is not None for parameter in mine.parameters())


def test_a_memory_is_selected_by_rows() -> None:
    mine, keep = crossing(), padding(M)
    source = normal(B, M, D, seed=2)
    read = remembered(mine, source, keep)
    memory = read.memory
    assert memory is not None
    for rows in ([0, 0, 1], [1, 0, 2], [2, 2, 0], [2, 0], [1]):  # the second: one source's
        before, index = memory.states, torch.tensor(rows)
        source, keep = source[index], keep[index]
        memory.select(index)
        assert (memory.states is before) == (rows == [1, 0, 2])
        mixed = normal(len(rows), N, D)
        expected = mine(mixed, remembered(mine, source, keep))
        torch.testing.assert_close(mine(mixed, read), expected)


def test_recorded_weights_are_those_before_dropout_and_change_nothing() -> None:
    mine, x = ours(dropout=0.5), normal(B, N, D)
    torch.manual_seed(0)
    plain = mine(x, context())
    torch.manual_seed(0)
    with recording(mine) as weights:
        assert torch.equal(mine(x, context()), plain)
        mine(x, context())
    assert len(weights[0]) == 2
    for each in weights[0]:
        torch.testing.assert_close(each.sum(-1), torch.ones(B, H, N, dtype=torch.float64))
        assert not each.requires_grad
    mine(x, context())
    assert len(weights[0]) == 2  # recording has ended


def test_recording_ends_after_an_error() -> None:
    mine = ours()
    with pytest.raises(RuntimeError), recording(mine):
        mine(normal(B, N, D + 1), context())
    assert mine.recorded is None


def test_the_cache_holds_every_application_of_a_layer_apart() -> None:
    mine, cache = ours(), Cache()
    first, second = (context(cache=cache, step=step) for step in (0, 1))
    first.remember(mine, normal(3, 2))
    second.remember(mine, normal(3, 2, seed=2))
    for found, seed in ((first, 1), (second, 2)):
        (state,) = found.recall(mine) or ()
        assert torch.equal(state, normal(3, 2, seed=seed))
    assert context(cache=cache, step=2).recall(mine) is None
    cache.select(torch.tensor([2, 0, 0, 1]))
    (state,) = second.recall(mine) or ()
    assert torch.equal(state, normal(3, 2, seed=2)[[2, 0, 0, 1]])


def test_whatever_has_the_attribute_is_recorded() -> None:
    class Other(nn.Module):
        recorded: list[Tensor] | None = None

    both = nn.ModuleList([Other(), ours()])
    with recording(both) as weights:
        both[0].recorded.append(torch.ones(1, 1, 1, 1))
        both[1](normal(B, N, D), context())
    assert [len(each) for each in weights] == [1, 1]
    assert both[0].recorded is both[1].recorded is None


def test_every_layer_gets_a_kernel_resolved_for_its_parts() -> None:
    assert isinstance(ours(run="reference").kernel, Reference)
    assert ours("additive", run="chunked").kernel is not KERNELS["chunked"]
