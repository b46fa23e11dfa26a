"""Greedy decoding and beam search for sequence-to-sequence models.

Greedy takes the most likely token at every step. Beam search keeps the `size` most likely partial
hypotheses (Sutskever et al. 2014, section 3.2, https://arxiv.org/abs/1409.3215); one that ends
leaves the beam, whose size shrinks by one. Finished hypotheses are ranked by

    log P(Y | X) / ((5 + |Y|) / 6) ** length_penalty

(Wu et al. 2016, equation 14, https://arxiv.org/abs/1609.08144), |Y| counting the end of sentence.
"""

import math
from dataclasses import dataclass
from functools import partial

import torch
from jaxtyping import Bool, Float, Int
from torch import Tensor

from ablate.data.pairs import BOS, EOS, PAD
from ablate.model.base import Seq2Seq, State

# Of log-probabilities, not torch's default: Lightning changes it with trainer.precision.
PRECISION = torch.float32


@dataclass(frozen=True)
class Hypothesis:
    """tokens: without BOS and EOS. log_prob: of all tokens, with EOS if it was written. score: for
    the ranking, log_prob over the length penalty."""

    tokens: list[int]
    log_prob: float
    score: float


@torch.no_grad()
def greedy(
    model: Seq2Seq, source: Int[Tensor, "b j"] | Float[Tensor, "b c y x"], *, max_length: int
) -> list[Hypothesis]:
    """The most likely token at every step, for each row of source.

    max_length: most tokens to write, EOS counted; a hypothesis cut off there has no EOS.
    """
    state = model.encode(source)
    rows = torch.arange(len(source), device=source.device)  # not finished yet
    last = torch.full_like(rows, BOS)
    log_prob = torch.zeros(len(source), dtype=PRECISION, device=source.device)
    written = torch.full((len(source), max_length), EOS, device=source.device)
    for position in range(max_length):
        gained, last = _log_probs(model, last, state).max(-1)
        log_prob[rows] += gained
        written[rows, position] = last
        going = (last != EOS).nonzero()[:, 0]
        if len(going) == 0:
            break
        if len(going) < len(rows):
            rows, last = rows[going], last[going]
            state.select(going)
    return [
        Hypothesis(_before_eos(tokens), total, total)
        for tokens, total in zip(written.tolist(), log_prob.tolist(), strict=True)
    ]


@torch.no_grad()
def beam_search(
    model: Seq2Seq,
    source: Int[Tensor, "b j"] | Float[Tensor, "b c y x"],
    *,
    size: int,
    max_length: int,
    length_penalty: float = 0.0,
    n_best: int = 1,
) -> list[list[Hypothesis]]:
    """The best hypotheses of a beam of `size` for each row of source: n_best, best first.

    max_length: as for `greedy`. Size 1 is greedy decoding.
    """
    assert 1 <= n_best <= size
    assert length_penalty >= 0, "longer would be worse, and the search would stop too early"
    state = model.encode(source)
    beam = Beam(len(source), source.device, size=size, n_best=n_best, strength=length_penalty)
    for left in reversed(range(max_length)):
        rows = beam.advance(_log_probs(model, beam.last(), state), left)
        if len(rows) == 0:
            break
        state.select(rows)
    ranked = (sorted(ended, key=lambda hypothesis: -hypothesis.score) for ended in beam.ended)
    return [hypotheses[:n_best] for hypotheses in ranked]


class Beam:
    """For each source `size` slots, each with a partial hypothesis or none.

    Only partial hypotheses are computed: each is a row of the decoder's state, in slot order.
    """

    def __init__(
        self, sources: int, device: torch.device, *, size: int, n_best: int, strength: float
    ):
        self.size, self.strength = size, strength
        self.ended: list[list[Hypothesis]] = [[] for _ in range(sources)]
        # The following tensors have a row for each source that is still searched.
        self.source = torch.arange(sources, device=device)
        self.written = torch.full((sources, size, 1), BOS, device=device)
        # -inf: the slot is empty.
        nothing = partial(torch.full, fill_value=-math.inf, dtype=PRECISION, device=device)
        self.log_prob = nothing((sources, size))
        self.log_prob[:, 0] = 0.0
        # Scores of the best finished hypotheses, the best first.
        self.best = nothing((sources, n_best))
        self.free = torch.full((sources, 1), size, device=device)

    def last(self) -> Int[Tensor, " hypotheses"]:
        """The last token of each partial hypothesis."""
        return self.written[:, :, -1][self.log_prob.isfinite()]

    def advance(
        self, gained: Float[Tensor, "hypotheses target_vocab"], left: int
    ) -> Int[Tensor, " rows"]:
        """Write the next token; returns the rows of the state that continue, in their new order.

        gained: log-probability of each next token. left: how many tokens may be written after this
        one.
        """
        alive = self.log_prob.isfinite()
        row = (alive.flatten().cumsum(0) - 1).view_as(alive)
        total = gained.new_full((*alive.shape, gained.shape[1]), -math.inf)
        total[alive] = self.log_prob[alive][:, None] + gained
        self.log_prob, chosen = total.flatten(1).topk(self.size)  # the most likely first
        slots = torch.arange(self.size, device=gained.device)
        self.log_prob = self.log_prob.masked_fill(slots >= self.free, -math.inf)
        parent, token = chosen // gained.shape[1], chosen % gained.shape[1]
        before = self.written.gather(1, parent[:, :, None].expand_as(self.written))
        self.written = torch.cat([before, token[:, :, None]], dim=-1)
        self._finish((token == EOS) | (left == 0))
        return self._search_on(row.gather(1, parent), left)

    def _finish(self, over: Bool[Tensor, "b size"]) -> None:
        """over: which hypotheses are finished. Their slots are not filled again."""
        over = over & self.log_prob.isfinite()
        divisor = penalty(self.written.shape[2] - 1, self.strength)
        score = (self.log_prob / divisor).masked_fill(~over, -math.inf)
        self.best = torch.cat([self.best, score], dim=1).topk(self.best.shape[1]).values
        self.free = self.free - over.sum(1, keepdim=True)
        for source, tokens, log_prob in zip(
            self.source[over.nonzero()[:, 0]].tolist(),
            self.written[over][:, 1:].tolist(),
            self.log_prob[over].tolist(),
            strict=True,
        ):
            finished = Hypothesis(_before_eos(tokens), log_prob, log_prob / divisor)
            self.ended[source].append(finished)
        self.log_prob = self.log_prob.masked_fill(over, -math.inf)

    def _search_on(self, rows: Int[Tensor, "b size"], left: int) -> Int[Tensor, " remaining"]:
        """Stop sources whose best cannot change any more; rows -> the remaining ones.

        A log-probability only falls, and no divisor is larger than that of the greatest length.
        """
        longest = penalty(self.written.shape[2] - 1 + left, self.strength)
        on = self.log_prob.amax(1) / longest > self.best[:, -1]
        self.source, self.written = self.source[on], self.written[on]
        self.log_prob, self.best, self.free = self.log_prob[on], self.best[on], self.free[on]
        return rows[on][self.log_prob.isfinite()]


def penalty(length: int, strength: float) -> float:
    """The divisor of the log-probability of that many tokens; 1 for strength 0."""
    return float(((5 + length) / 6) ** strength)


def _log_probs(
    model: Seq2Seq, last: Int[Tensor, " b"], state: State
) -> Float[Tensor, "b target_vocab"]:
    """Log-probabilities of the next token; PAD and BOS are never written."""
    log_probs = model.step(last, state).to(PRECISION).log_softmax(-1)
    log_probs[:, [PAD, BOS]] = -math.inf
    return log_probs


def _before_eos(tokens: list[int]) -> list[int]:
    return tokens[: tokens.index(EOS)] if EOS in tokens else tokens
