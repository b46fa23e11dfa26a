"""Verdicts and numbers in words, for the report."""

from dataclasses import dataclass
from math import floor, log10

from ablate.study.analysis.stats import MOST, Interval, seeds_to_reach, smallest_p

BETTER, WORSE, EQUIVALENT, NONE = "better", "worse", "equivalent", "no difference shown"


@dataclass(frozen=True)
class Verdict:
    """The verdict on an arm and one metric, with its evidence."""

    kind: str  # BETTER, WORSE, EQUIVALENT or NONE
    loss: float  # mean difference from the baseline in units of the metric; positive is worse
    interval: Interval | None  # t interval of the loss, not widened for several arms
    level: float
    n: int  # seeds compared
    planned: int  # seeds that were planned for the arm or the baseline
    p: float | None  # after Holm; of equivalence where that is the verdict
    family: int  # arms that Holm ran over
    margin: float | None  # within which a difference does not matter, in units of the metric
    seeds_needed: int | None  # of "no difference shown"; None: no number is suggested

    def words(self, unit: str = "") -> str:
        """Describe it, as "worse by 0.031 nats (95 % 0.025 to 0.037, 5 seeds, Holm p 0.002)"."""
        if self.loss == 0 and self.interval is None:
            return self._same(unit)
        way = WORSE if self.loss > 0 else BETTER
        amount, evidence = self._amount(unit), self._evidence()
        if self.kind in (BETTER, WORSE):
            return f"{way} by {amount} ({evidence})"
        if self.kind == EQUIVALENT:
            within = f"equivalent within {number(self.margin or 0.0)}{_of(unit)}"
            return f"{within}: {way} by {amount} ({evidence})"
        return f"{NONE} ({amount} {way}, {evidence}; {self._advice()})"

    def _amount(self, unit: str) -> str:
        half = None if self.interval is None else (self.interval.high - self.interval.low) / 2
        each = " every time" if self.interval is None and self.n > 1 else ""
        return f"{number(abs(self.loss), half)}{_of(unit)}{each}"

    def _evidence(self) -> str:
        parts = []
        if self.interval is not None:
            parts.append(interval_words(self.interval, self.level, flip=self.loss < 0))
        short = f" of {self.planned}" if self.planned > self.n else ""
        parts.append(f"{self.n}{short} seed{'s' if self.n > 1 or short else ''}")
        if self.p is not None and self.n > 1:
            parts.append(f"{'Holm ' if self.family > 1 else ''}p {p_words(self.p)}")
        return ", ".join(parts)

    def _advice(self) -> str:
        if self.seeds_needed is None:
            return f"more than {MOST:,} seeds would be needed"
        return f"about {self.seeds_needed} seeds would be needed"

    def _same(self, unit: str) -> str:
        seeds = f"each of {self.n} seeds" if self.n > 1 else "the only seed"
        if self.kind == EQUIVALENT:
            within = f"{number(self.margin or 0.0)}{_of(unit)}"
            return f"equivalent within {within}: the same value in {seeds}"
        return f"no difference: the same value in {seeds}"


def caution(rests_on: str, n: int, family: int, level: float) -> str:
    """Return what readers must know about the test behind a verdict; "" for a sign-flip test."""
    if rests_on == "sign-flip":
        return ""
    least = smallest_p(n)
    after = f", {min(1.0, family * least):.2g} after Holm over {family} arms" if family > 1 else ""
    reach = seeds_to_reach(family, level)
    cure = "" if reach is None else f"; from {reach} seeds on that test can reach {level:g}"
    seeds = f"{n} seed{'s' if n > 1 else ''}"
    what = (
        "verdicts rest on the paired t test, which takes the differences to be normal"
        if rests_on == "t"
        else "too few for any verdict"
    )
    return f"{seeds}: sign-flip p at least {least:.3g}{after}; {what}{cure}"


def interval_words(interval: Interval, level: float, *, flip: bool = False) -> str:
    """Format an interval, as "95 % 0.025 to 0.037"; flip turns the sign."""
    half = (interval.high - interval.low) / 2
    low, high = (-interval.high, -interval.low) if flip else (interval.low, interval.high)
    return f"{100 * (1 - level):g} % {number(low, half)} to {number(high, half)}"


def number(value: float, spread: float | None = None) -> str:
    """Format a number to the digit that its spread leaves certain; to three digits without one."""
    if not spread:
        return f"{value:.3g}"
    places = -floor(log10(spread)) + (1 if spread < 2 * 10 ** floor(log10(spread)) else 0)
    if places > 6:
        return f"{value:.2g}"
    rounded = round(value, places)
    return f"{rounded:,.{max(places, 0)}f}" if rounded else f"{0:.{max(places, 0)}f}"


def p_words(p: float) -> str:
    """Format a p value, as 0.31, 0.002 or < 0.001."""
    if p < 0.001:
        return "< 0.001"
    return f"{p:.2f}" if p >= 0.1 else f"{p:.3f}"


def _of(unit: str) -> str:
    return f" {unit}" if unit else ""
