"""Greedy and beam search, against every sequence there is: tables of random logits, and models."""

import math
from functools import partial
from itertools import count, product

import pytest
import torch
from make_model import random_parts, rnn_seq2seq, transformer
from torch import nn

from ablate.data.pairs import BOS, EOS, PAD
from ablate.decode.search import Hypothesis, beam_search, greedy, penalty
from ablate.model.base import Seq2Seq, State

VOCAB, LONGEST = 6, 4
SOURCES = 5
SUMS = 11  # the sum of the tokens so far is told apart up to this


class Place(State):
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
        self.state = Place(source[:, 0])
        return self.state

    def step(self, tokens, state):
        assert len(tokens) == len(state.source)
        state.rows += len(tokens)
        state.written += 1
        state.total = (state.total + tokens) % SUMS
        return self.logits[state.source, state.written - 1, state.total]


EVERY = torch.arange(SOURCES)[:, None]


def hypothesis(tokens, total, strength):
    score = total / ((5 + len(tokens)) / 6) ** strength
    return Hypothesis([token for token in tokens if token != EOS], total, score)


def best_first(found):
    return sorted(found, key=lambda one: -one.score)


@torch.no_grad()
def everything(model, source, max_length, strength):
    """Every target there is, scored by teacher forcing, best first."""
    found = []
    for length in range(max_length + 1):
        for tokens in product(set(range(VOCAB)) - {PAD, BOS, EOS}, repeat=length):
            whole = [*tokens, EOS] if length < max_length else list(tokens)
            target_in = torch.tensor([[BOS, *whole[:-1]]])
            log_probs = model(source[None], target_in)[0].log_softmax(-1)
            total = sum(float(log_probs[place, token]) for place, token in enumerate(whole))
            found.append(hypothesis(whole, total, strength))
    return best_first(found)


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
        ended += [hypothesis(*one, strength) for one in whole]
    return best_first(ended)


@pytest.mark.parametrize("seed", range(2))
@pytest.mark.parametrize("size", [1, 2, 5])
@pytest.mark.parametrize("strength", [0.0, 0.7, 3.0])
def test_a_small_beam_is_that_of_a_plain_search(seed, size, strength):
    model, options = Table(seed=seed), {"size": size, "max_length": LONGEST}
    slow = [plain(model, source, **options, strength=strength) for source in EVERY]
    for n_best in (1, size):
        found = beam_search(model, EVERY, **options, length_penalty=strength, n_best=n_best)
        for ours, theirs in zip(found, slow, strict=True):
            same(ours, theirs[:n_best])
    if size == 1:
        likeliest = greedy(model, EVERY, max_length=LONGEST)
        assert [[one.tokens] for one in likeliest] == [[it.tokens for it in one] for one in slow]


def test_the_length_penalty_of_wu():
    assert penalty(1, 0.7) == 1.0
    assert penalty(7, 0.5) == pytest.approx(math.sqrt(2))


# Models that are trained, whose states and caches have to follow the beam

MODELS = {
    "luong, fed": lambda: rnn_seq2seq(input_feeding=True, window="local_m", target_vocab=VOCAB),
    "bahdanau": lambda: rnn_seq2seq(decoder="bahdanau", cell="lstm", depth=2, target_vocab=VOCAB),
    "no attention": lambda: rnn_seq2seq(attention="none", target_vocab=VOCAB),
    # The bias of a last norm would make one token the likeliest everywhere.
    "transformer": lambda: transformer(norm="pre", bias=False, pos_enc="t5", target_vocab=VOCAB),
}


SENTENCES = torch.tensor([[4, 5, 6, 7, 2], [5, 2, 0, 0, 0], [6, 6, 8, 2, 0]])  # filled up


def some_model(name):
    """The first by chance that does not write the same for all sources."""
    models = (random_parts(MODELS[name](), seed=seed, std=0.8).eval() for seed in count())
    written = ((model, greedy(model, SENTENCES, max_length=3)) for model in models)
    return next(it for it, found in written if len({tuple(one.tokens) for one in found}) > 1)


@pytest.mark.parametrize("name", MODELS)
def test_every_model_is_searched_exhaustively_plainly_and_greedily(name):
    model, longest, strength = some_model(name), 3, 0.7
    options = {"max_length": longest, "length_penalty": strength}
    size = sum(3**length for length in range(longest + 1))
    whole = beam_search(model, SENTENCES, size=size, n_best=size, **options)
    small = beam_search(model, SENTENCES, size=3, n_best=3, **options)
    single = beam_search(model, SENTENCES, size=1, max_length=longest)
    likeliest = greedy(model, SENTENCES, max_length=longest)
    for n, source in enumerate(SENTENCES):
        same(whole[n], everything(model, source, longest, strength))
        plainly = plain(model, source, size=3, max_length=longest, strength=strength)
        same(small[n], plainly[:3])
        same(single[n], plain(model, source, size=1, max_length=longest, strength=0.0))
        assert likeliest[n].tokens == single[n][0].tokens
        assert likeliest[n].log_prob == pytest.approx(single[n][0].log_prob, abs=1e-5)


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
