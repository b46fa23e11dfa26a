"""Multi-head attention: its projections, its memory, its recorded weights.

test_around_scores.py compares what it computes with loops, test_block.py with torch's.
"""

import pytest
import torch
from make_model import context, normal, options, part, place, random_parts
from torch.testing import assert_close

from ablate.model.layers.layer import Cache, Memory
from ablate.model.layers.multi_head import CrossAttention, recording
from ablate.model.mixer.attention import Attention

B, N, M, D, H = 2, 6, 8, 12, 3
SCORES = [name for name in options("model.attention") if part("model.attention", name).func.weighs]


def ours(score="scaled_dot", **changes):
    return random_parts(Attention(place(D, H, M, score=score, **changes)))


def crossing(score="scaled_dot"):
    return random_parts(CrossAttention(place(D, H, M, score=score)))


def remembered(mine, source, keep):
    return context(memory=Memory({mine: mine.read(source)}, keep))


def padding(keys):
    keep = torch.ones(B, keys, dtype=torch.bool)
    keep[0, -2:] = False
    return keep


@pytest.mark.parametrize("score", SCORES)
def test_only_what_the_score_reads_is_projected(score):
    mine = ours(score)
    names = {name.split(".")[0] for name, _ in mine.named_parameters()}
    assert ("query" in names) == mine.score.query == (score != "uniform")
    assert ("key" in names) == mine.score.key == (score not in ("uniform", "location"))
    mine(normal(B, N, D), context()).square().sum().backward()
    assert all(parameter.grad is not None for parameter in mine.parameters())


@pytest.mark.parametrize("score", SCORES)
def test_cross_attention_reads_a_set_and_writes_a_list(score):
    """The order of the memory says nothing, except to a score that weighs places."""
    mine, x, source, keep = crossing(score), normal(B, N, D), normal(B, M, D), padding(M)
    order = torch.randperm(M, generator=torch.Generator().manual_seed(0))
    output = mine(x, remembered(mine, source, keep))
    turned = mine(x, remembered(mine, source[:, order], keep[:, order]))
    assert torch.allclose(turned, output, atol=1e-12) == (score != "location")
    back = mine(x.flip(1), remembered(mine, source, keep))
    assert_close(back, output.flip(1))
    output.square().sum().backward()
    assert all(parameter.grad is not None for parameter in mine.parameters())


def test_a_memory_is_selected_by_rows():
    mine, keep = crossing(), padding(M)
    source = normal(B, M, D, seed=2)
    read = remembered(mine, source, keep)
    memory = read.memory
    for rows in ([0, 0, 1], [1, 0, 2], [2, 2, 0], [2, 0], [1]):  # the second: one source's
        before, index = memory.states, torch.tensor(rows)
        source, keep = source[index], keep[index]
        memory.select(index)
        assert (memory.states is before) == (rows == [1, 0, 2])
        mixed = normal(len(rows), N, D)
        expected = mine(mixed, remembered(mine, source, keep))
        assert_close(mine(mixed, read), expected)


def test_recorded_weights_are_those_before_dropout_and_change_nothing():
    mine, x = ours(dropout=0.5), normal(B, N, D)
    torch.manual_seed(0)
    plain = mine(x, context())
    torch.manual_seed(0)
    with recording(mine) as weights:
        assert torch.equal(mine(x, context()), plain)
        mine(x, context())
    assert len(weights[0]) == 2
    for each in weights[0]:
        assert_close(each.sum(-1), torch.ones(B, H, N, dtype=torch.float64))
        assert not each.requires_grad
    mine(x, context())
    assert len(weights[0]) == 2  # recording has ended
    with pytest.raises(RuntimeError), recording(mine):
        mine(normal(B, N, D + 1), context())
    assert mine.recorded is None


def test_the_cache_holds_every_application_of_a_layer_apart():
    mine, cache, states = ours(), Cache(), (normal(3, 2), normal(3, 2, seed=2))
    places = [context(cache=cache, step=step) for step in (0, 1, 2)]
    for where, state in zip(places[:2], states, strict=True):
        where.remember(mine, state)
    assert [where.recall(mine) for where in places] == [(states[0],), (states[1],), None]
    cache.select(torch.tensor([2, 0, 0, 1]))
    assert torch.equal(places[1].recall(mine)[0], states[1][[2, 0, 0, 1]])
