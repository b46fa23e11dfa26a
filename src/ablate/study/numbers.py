"""Numbers as studies and reports write them, with sensible digits."""

from collections.abc import Collection, Iterable
from math import floor, isfinite, log10
from statistics import median
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from ablate.study.analysis.stats import Interval

MINUS = "\u2212"
NOTHING = "\u2013"  # if there is no number
MOST_DECIMALS = 6
MOST_DIGITS = 16  # after the point, if two numbers are to differ


def decimals(values: Iterable[float], spreads: Iterable[float | None]) -> int:
    """Return the digits after the point: two of a usual spread, or four of the values."""
    known = [s for s in spreads if s is not None and isfinite(s) and s > 0]
    sizes = [abs(value) for value in values if value and isfinite(value)]
    if known:
        digits = 1 - floor(log10(median(known)))
    else:
        digits = 3 - floor(log10(max(sizes))) if sizes else 3
    return min(max(digits, 0), MOST_DECIMALS)


def number(value: float | None, digits: int) -> str:
    """Format a number with a typographic minus; a dash if there is none."""
    if value is None or not isfinite(value):
        return NOTHING
    return f"{value:,.{digits}f}".replace("-", MINUS)


def signed(value: float | None, digits: int) -> str:
    if value is None or not isfinite(value):
        return NOTHING
    text = f"{value:+,.{digits}f}".replace("-", MINUS)
    return text[1:] if not text.strip(f"+{MINUS}0.,") else text


def apart(values: Collection[float], digits: int) -> int:
    """Return the digits after the point, at least `digits`, with which no two look the same."""
    more = range(digits, MOST_DIGITS)
    return next(
        (n for n in more if len({signed(v, n) for v in values}) == len(values)), MOST_DIGITS
    )


def interval(bounds: "Interval | None", digits: int) -> str:
    """Format an interval, as "+0.01 to +0.05"."""
    if bounds is None:
        return NOTHING
    return f"{signed(bounds.low, digits)} to {signed(bounds.high, digits)}"


def interval_words(interval: "Interval", *, flip: bool = False) -> str:
    """Format an interval, as "95 % 0.025 to 0.037"; flip turns the sign. A bound that would round
    to zero has a digit of its own, so that it keeps its sign."""
    low, high = (
        text if float((text := certain(bound, interval)).replace(",", "")) else f"{bound + 0.0:.1g}"
        for bound in ((-interval.high, -interval.low) if flip else (interval.low, interval.high))
    )
    return f"95 % {low} to {high}"


def estimate(value: float, interval: "Interval | None") -> str:
    """Format a number with its interval, as "0.031 (95 % 0.025 to 0.037)"."""
    bounds = f" ({interval_words(interval)})" if interval else ""
    return certain(value, interval) + bounds


def certain(value: float, interval: "Interval | None" = None) -> str:
    """Format a number to the digit that its interval leaves certain; to three digits without."""
    spread = interval.half if interval else None
    if not spread or not isfinite(spread):
        return f"{value:.3g}"
    digits = -floor(log10(spread)) + (1 if spread < 2 * 10 ** floor(log10(spread)) else 0)
    if digits > 6:
        return f"{value:.2g}"
    rounded = round(value, digits)
    return f"{rounded:,.{max(digits, 0)}f}" if rounded else f"{0:.{max(digits, 0)}f}"


def share(value: float | None) -> str:
    """Format a ratio as a signed percentage with two digits."""
    if value is None or not isfinite(value):
        return NOTHING
    percent = 100 * value
    digits = min(max(1 - floor(log10(abs(percent))), 0), 2) if percent else 0
    return f"{signed(percent, digits)} %"


def probability(value: float | None) -> str:
    if value is None or not isfinite(value):
        return NOTHING
    if value < 0.0001:
        return "< 0.0001"
    return f"{value:.4f}" if value < 0.01 else f"{value:.3f}"


def amount(value: float | None) -> str:
    """Format a number with three digits and a prefix: 814,720 as "815 k"."""
    if value is None:
        return NOTHING
    value = float(f"{value:.3g}")  # 999,600 is 1 M
    for exponent, prefix in ((18, "E"), (15, "P"), (12, "T"), (9, "G"), (6, "M"), (3, "k")):
        if abs(value) >= 10**exponent:
            return f"{value / 10**exponent:.3g} {prefix}"
    return f"{value:.3g}"


def duration(seconds: float | None) -> str:
    """Format a duration, as "18.3 s", "4 min 05 s", "2 h 10 min" or "3.2 days"."""
    if seconds is None:
        return NOTHING
    if seconds < 100:
        return f"{seconds:.3g} s"
    minutes, rest = divmod(round(seconds), 60)
    hours, minutes_left = divmod(minutes, 60)
    if hours >= 72:
        return f"{hours / 24:.1f} days"
    return f"{hours} h {minutes_left:02d} min" if hours else f"{minutes} min {rest:02d} s"


def counted(count: int, what: str) -> str:
    """Format a count, as "1 run" or "2 runs"."""
    return f"{count:,} {what}{'' if count == 1 else 's'}"


def seeds_in_words(seeds: Collection[int]) -> str:
    """Format seeds, as "seed 3" or "seeds 3, 4"."""
    return f"seed{'' if len(seeds) == 1 else 's'} {', '.join(map(str, seeds))}"


def listed(names: Iterable[str], most: int = 6) -> str:
    """Join names, as "a, b and c"; of many, the first and how many more."""
    every = list(names)
    if len(every) > most:
        return f"{', '.join(every[:most])} and {len(every) - most} more"
    return " and ".join([", ".join(every[:-1]), every[-1]] if len(every) > 1 else every)


def shortened(name: str, most: int) -> str:
    """Keep both ends of a long name, which tell arms apart."""
    if len(name) <= most:
        return name
    half = (most - 1) // 2
    return f"{name[: most - 1 - half]}…{name[-half:]}"
