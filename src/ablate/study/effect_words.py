"""Main effects and interactions in the words of a report."""

from typing import TYPE_CHECKING

from ablate.study.confounding import TIMES
from ablate.study.stats import Interval
from ablate.study.verdict import interval_words, number, p_words

if TYPE_CHECKING:
    from ablate.study.effects import Effect


def effect_words(found: "Effect", unit: str) -> str:
    """One sentence that a stranger to experimental design can read."""
    said = _two_options(found, unit) if found.effect is not None else _more_options(found)
    if found.aliases:
        others = ", ".join(TIMES.join(each) for each in found.aliases)
        said += f"; this design cannot tell it from {others}"
    return f"{found.name}: {said}"


def _two_options(found: "Effect", unit: str) -> str:
    """With a p that does not reach the level, or without one, nothing is claimed."""
    assert found.effect is not None
    times = len(found.factors)  # an interaction is told as a difference between two effects
    change = times * found.effect * (1 if found.mode == "min" else -1)
    interval = found.interval
    if interval is not None:
        interval = Interval(times * interval.low, times * interval.high)
    half = None if interval is None else (interval.high - interval.low) / 2
    amount = f"{number(abs(change), half)}{' ' + unit if unit else ''}"
    evidence = _evidence(found, interval)
    low, high = found.options[0]
    way = "worse" if change > 0 else "better"
    if times == 1:
        if found.shown:
            return f"{high} {way} than {low} by {amount} ({evidence})"
        return (
            f"no difference shown between {low} and {high} ({high} {way} by {amount}, {evidence})"
        )
    first, second = found.options[1]
    other = found.factors[1]
    step = (
        f"the step from {low} to {high} is {amount} {way}"
        f" at {other}={second} than at {other}={first}"
    )
    return f"{step} ({evidence})" if found.shown else f"no interaction shown ({step}, {evidence})"


def _more_options(found: "Effect") -> str:
    evidence = _evidence(found, None)
    if len(found.factors) == 2:
        said = "the effect of one depends on the other" if found.shown else "no interaction shown"
        return f"{said} ({evidence})"
    ranked = sorted(found.means, key=lambda option: found.means[option])
    best, worst = (ranked[0], ranked[-1]) if found.mode == "min" else (ranked[-1], ranked[0])
    ends = ", ".join(
        f"{word} {option[0]} at {number(found.means[option])}"
        for word, option in (("best", best), ("worst", worst))
    )
    count = len(found.options[0])
    none = f"no difference shown between {count} options"
    said = f"the {count} options differ" if found.shown else none
    return f"{said} ({ends}, {evidence})"


def _evidence(found: "Effect", interval: Interval | None) -> str:
    if found.p_holm is None:
        return "nothing to judge it by"
    # As in words, the sign of worse and better is the same for the interval and the amount.
    turned = found.effect is not None and found.effect < 0
    bounds = "" if interval is None else interval_words(interval, found.level, flip=turned) + ", "
    return f"{bounds}Holm p {p_words(found.p_holm)}"
