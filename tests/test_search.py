"""Greedy and beam search of tables of random logits, against a search without any short cut."""

from functools import partial

import pytest
import torch
from torch import nn

from ablate.data.pairs import BOS, EOS, PAD
from ablate.decode.search import Hypothesis, beam_search, greedy
from ablate.model.base import Seq2Seq, State

VOCAB, LONGEST = 6, 4
SOURCES = 5
SUMS = 11  # the sum of the tokens so far is told apart up to this


class LayerSpec(State):
    """Where in the table each target reads: its source, how far it is, the sum of its tokens."""

    def __init__(self, source):
        self.source, self.total = source, torch.zeros_like(source)
        self.written = self.rows = 0  # rows computed so far

    def select(self, rows):
        self.source, self.total = self.source[rows], self.total[rows]


class Table(Seq2Seq):
    """Logits by (first token of the source, step, all tokens so far); 3, 4 and 5 are words."""

    def __init__(self, *, seed=0):
        super().__init__()
        rng = torch.Generator().manual_seed(seed)
        size = (SOURCES, LONGEST + 3, SUMS, VOCAB)
        self.logits = nn.Parameter(2 * torch.randn(size, generator=rng))

    def forward(self, source, target_in):
        place = torch.arange(target_in.shape[1])
        return self.logits[source[:, :1], place, target_in.cumsum(1) % SUMS]

    def encode(self, source):
        self.state = LayerSpec(source[:, 0])
        return self.state

    def step(self, tokens, state):
        assert len(tokens) == len(state.source)
        state.rows += len(tokens)
        state.written += 1
        state.total = (state.total + tokens) % SUMS
        return self.logits[state.source, state.written - 1, state.total]


EVERY = torch.arange(SOURCES)[:, None]
SEQUENCES = sum(3**length for length in range(LONGEST + 1))  # that there are


def same(ours, theirs):
    assert [one.tokens for one in ours] == [one.tokens for one in theirs]
    for of in ("log_prob", "score"):
        own, other = ([getattr(one, of) for one in found] for found in (ours, theirs))
        assert own == pytest.approx(other, abs=1e-4)


@torch.no_grad()
def plain(model, source, *, size, max_length, strength):
    """One source after the other, without any short cut. What ended is counted in the size."""
    alive, ended = [([], 0.0)], []
    for length in range(1, max_length + 1):
        longer = []
        for tokens, total in alive:
            log_probs = model(source[None], torch.tensor([[BOS, *tokens]]))[0, -1].log_softmax(-1)
            for token in set(range(VOCAB)) - {PAD, BOS}:
                longer.append(([*tokens, token], total + float(log_probs[token])))
        kept = sorted(longer, key=lambda one: -one[1])[: size - len(ended)]
        whole = [one for one in kept if one[0][-1] == EOS or length == max_length]
        alive = [one for one in kept if one not in whole]
        for tokens, total in whole:
            words = [token for token in tokens if token != EOS]
            score = total / ((5 + len(tokens)) / 6) ** strength
            ended.append(Hypothesis(words, total, score))
    return sorted(ended, key=lambda one: -one.score)


@pytest.mark.parametrize("seed", range(2))
@pytest.mark.parametrize("size", [1, 2, 5, SEQUENCES])
@pytest.mark.parametrize("strength", [0.0, 0.7, 3.0])
def test_a_beam_is_that_of_a_plain_search(seed, size, strength):
    model, options = Table(seed=seed), {"size": size, "max_length": LONGEST}
    slow = [plain(model, source, **options, strength=strength) for source in EVERY]
    for n_best in (1, size):
        found = beam_search(model, EVERY, **options, length_penalty=strength, n_best=n_best)
        for ours, theirs in zip(found, slow, strict=True):
            same(ours, theirs[:n_best])
    if size == 1:
        likeliest = greedy(model, EVERY, max_length=LONGEST)
        assert [[one.tokens] for one in likeliest] == [[it.tokens for it in one] for one in slow]


@pytest.mark.parametrize("write", [greedy, partial(beam_search, size=3)])
def test_half_precision_ends_with_the_logits(write):
    """What is made of them is made in float32, as of a model in float32 that says the same."""
    half = Table(seed=1).bfloat16()
    single = Table().float()
    single.load_state_dict(half.state_dict())
    found, expected = (write(model, EVERY, max_length=LONGEST) for model in (half, single))
    assert found == expected


@torch.no_grad()
def test_what_is_finished_costs_nothing():
    """All sources end at once but one, which is written alone to the end."""
    model = Table()
    model.logits[..., EOS] = 50.0
    model.logits[2, ..., EOS] = -50.0
    greedy(model, EVERY, max_length=LONGEST)
    assert model.state.rows == SOURCES + LONGEST - 1
    beam_search(model, EVERY, size=3, max_length=LONGEST)
    assert model.state.rows <= SOURCES + 3 * (LONGEST - 1)
