"""Verdicts in words, for the report."""

from dataclasses import dataclass

from ablate.study.analysis.looks import STOPPED, Look
from ablate.study.analysis.stats import Interval
from ablate.study.numbers import certain, interval_words, probability

BETTER, WORSE, EQUIVALENT, NONE = "better", "worse", "equivalent", "no difference shown"
FEW = "too few seeds"


@dataclass(frozen=True)
class Verdict:
    """The verdict on an arm and one metric, with its evidence."""

    kind: str  # BETTER, WORSE, EQUIVALENT, NONE or FEW
    loss: float  # mean difference from the baseline in units of the metric; positive is worse
    interval: Interval | None  # of the loss, at the level of the arm's test
    n: int  # seeds compared
    planned: int  # seeds that were planned for the arm or the baseline
    p: float | None  # after Holm; of equivalence if that is the verdict
    family: int  # arms that Holm ran over
    margin: float | None  # smaller differences do not matter, in units of the metric
    seeds_needed: int | None  # of "no difference shown"; None: no number is suggested
    spread: float | None = None  # standard deviation of an arm between its seeds
    look: Look | None = None  # None if the number of seeds is fixed

    def words(self) -> str:
        """Describe it, as "worse by 0.031 (95 % 0.025 to 0.037, 5 seeds, Holm p 0.002)"."""
        if self.loss == 0 and self.interval is None:
            return self._same()
        way = WORSE if self.loss > 0 else BETTER
        amount, evidence = self._amount(), self._evidence()
        if self.kind in (BETTER, WORSE):
            return f"{way} by {amount}{self._size()} ({evidence})"
        if self.kind == EQUIVALENT:
            return f"{self._within()}: {way} by {amount} ({evidence})"
        if self.kind == FEW:
            return f"{FEW} for a verdict ({amount} {way}, {evidence})"
        return f"{NONE} ({amount} {way}, {evidence}; {self._advice()})"

    def _amount(self) -> str:
        each = " every time" if self.interval is None and self.n > 1 else ""
        return f"{certain(abs(self.loss), self.interval)}{each}"

    def _size(self) -> str:
        """The size of the difference relative to the spread between seeds and to the margin."""
        sizes = [
            f"{times_of(abs(self.loss), unit)} {name}"
            for unit, name in (
                (self.spread, "the spread between seeds"),
                (self.margin, "the margin"),
            )
            if unit
        ]
        return f", {' and '.join(sizes)}" if sizes else ""

    def _within(self) -> str:
        return f"equivalent within {certain(self.margin or 0.0)}"

    def _evidence(self) -> str:
        parts = []
        if self.interval is not None:
            parts.append(interval_words(self.interval, flip=self.loss < 0))
        short = f" of {self.planned}" if self.planned > self.n else ""
        parts.append(f"{self.n}{short} seed{'s' if self.n > 1 or short else ''}")
        if self.p is not None and self.n > 1:
            what = " of equivalence" * (self.kind == EQUIVALENT)
            parts.append(f"{'Holm ' * (self.family > 1)}p{what} {probability(self.p)}")
        if self.look is not None:
            parts.append(self.look.words())
        return ", ".join(parts)

    def _advice(self) -> str:
        if self.look is not None and self.look.outcome == STOPPED:
            return f"{self.look.last} seeds are unlikely to show a difference"
        if self.seeds_needed is None:
            return "effect too small to estimate the number of seeds needed"
        return f"about {self.seeds_needed} seeds would be needed"

    def _same(self) -> str:
        seeds = f"each of {self.n} seeds" if self.n > 1 else "the only seed"
        head = self._within() if self.kind == EQUIVALENT else "no difference"
        return f"{head}: the same value in {seeds}"


def times_of(amount: float, unit: float) -> str:
    """How many times the unit an amount is, as "0.03 times" or "12 times"."""
    ratio = amount / unit
    return (
        f"{ratio:.1g} times"
        if ratio < 0.1
        else f"{ratio:.2g} times"
        if ratio < 100
        else "over 99 times"
    )
