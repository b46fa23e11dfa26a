"""The words of verdicts: in the list of results, in the page, in a LaTeX table, on a terminal."""

from typing import NamedTuple

from ablate.study.numbers import NOTHING


class VerdictWords(NamedTuple):
    """style: its color on a terminal, if it has one."""

    heading: str
    page: str
    latex: str
    style: str | None = None


VERDICT_WORDS = {
    "better": VerdictWords("Better than the baseline", "▲ better", "better", "green"),
    "worse": VerdictWords("Worse than the baseline", "▼ worse", "worse", "red"),
    "equivalent": VerdictWords("Equivalent to the baseline", "≈ equivalent", "equivalent", "cyan"),
    "inconclusive": VerdictWords("No difference shown", "no difference shown", "not shown"),
    "too_few_seeds": VerdictWords("Too few seeds for a verdict", "too few seeds", "too few seeds"),
    "excluded": VerdictWords("Not compared", "not compared", "not compared", "yellow"),
    "baseline": VerdictWords("", "baseline", NOTHING, "bold"),
}
# Of claims: the verdict of an arm with the same color in the page, and the color on a terminal.
CLAIM_COLORS = {
    "confirmed": ("equivalent", "green"),
    "refuted": ("worse", "red"),
    "undecided": ("inconclusive", None),
    "not tested": ("inconclusive", None),
}
