"""Mixtures: shares at every length, and examples that depend on the seed and their number only."""

from itertools import pairwise

import numpy as np
import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from ablate.data.loader import Share, Stream
from ablate.data.mixing import Mixed, before, ordered

WEIGHTS = {"web": 0.7, "code": 0.2, "books": 0.1}
COUNTS = {"web": 1000, "code": 300, "books": 50}


def mixed(phases=None, counts=None, batch_size=8, world=1, rank=0):
    return Mixed(counts or COUNTS, phases or {0: WEIGHTS}, batch_size, batches=100, seed=3,
                 share=Share(rank, world))  # fmt: skip


@given(
    st.lists(st.floats(0, 1), min_size=1, max_size=8).filter(lambda w: sum(w) > 0.01),
    st.integers(0, 10**9),
    st.integers(0, 50),
)
def test_a_source_has_its_share_of_any_number_of_examples(weights, first, more):
    shares = np.array(weights) / sum(weights)
    low, high = before(shares, first), before(shares, first + more)
    assert low.sum() == first
    assert high.sum() == first + more
    assert (abs(low - shares * first) <= len(shares) / 2 + 1).all()
    one_by_one = [before(shares, first + n) for n in range(more + 1)]
    source = ordered(shares, low, high).source
    steps = [np.flatnonzero(b - a).tolist() for a, b in pairwise(one_by_one)]
    assert steps == [[s] for s in source]


def test_shares_are_kept_within_a_thousandth():
    order = mixed()
    for step in (1000, 2000, 50_000):
        source = order.examples(0, step * 8).source
        assert np.bincount(source) / len(source) == pytest.approx([0.7, 0.2, 0.1], abs=0.001)


def test_an_exchanged_source_leaves_the_order_of_the_others():
    here, there = mixed(), mixed({0: {"web": 0.7, "wiki": 0.2, "books": 0.1}},
                                {"web": 1000, "wiki": 77, "books": 50})  # fmt: skip

    def of(order, name):
        first = int(order.firsts[[*order.counts].index(name)])
        drawn = torch.cat([order.of_epoch(2)(n) for n in range(40)]) - first
        return drawn[(drawn >= 0) & (drawn < order.counts[name])].tolist()

    for name in ("web", "books"):
        assert of(here, name) == of(there, name)


def test_a_phase_continues_the_sources_with_other_shares():
    plain, order = mixed(), mixed({0: WEIGHTS, 30: {"books": 1}, 40: WEIGHTS})
    every = order.examples(0, 60 * 8)
    assert (every.source[30 * 8 : 40 * 8] == 2).all()
    for n in range(3):
        assert every.number[every.source == n].tolist() == [*range(sum(every.source == n))]
    assert plain.examples(0, 30 * 8).source.tolist() == every.source[: 30 * 8].tolist()
    middle = order.examples(25 * 8 + 3, 44 * 8 + 5)
    for whole, part in zip(every, middle, strict=True):
        assert whole[25 * 8 + 3 : 44 * 8 + 5].tolist() == part.tolist()


def test_processes_share_batches_and_resume():
    whole = [it.indices for it in Stream(mixed(), 250)]
    halves = [[it.indices for it in Stream(mixed(world=2, rank=r), 250)] for r in (0, 1)]
    for batch, a, b in zip(whole, *halves, strict=True):
        assert batch.tolist() == [*a.tolist(), *b.tolist()]
    later = Stream(mixed(), 250)
    later.start = 130
    assert [it.indices.tolist() for it in later] == [it.tolist() for it in whole[130:]]
