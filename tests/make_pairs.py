"""Every pair of options of any two axes: trained for two steps, or refused, and why.

For each model a covering array is made: a row sets many axes at once and stands for all of its
pairs. What is refused in a row is taken out of it, by the axes that the refusal names; a pair
that is still refused alone, whatever the axes it was refused for are set to, is written down with
its reason. In the end every pair is in one of the two books, and the second holds what it should.
"""

from dataclasses import dataclass, field
from functools import cache
from itertools import combinations, product
from typing import Any

from make_rows import axes_of, refusal, train

Choice = tuple[str, Any]  # an axis and its option
Pair = frozenset[Choice]


@dataclass
class Books:
    """What became of every pair of a model's axes."""

    trained: set[Pair] = field(default_factory=set)
    refused: dict[Pair, str] = field(default_factory=dict)
    alone: dict[Choice, str] = field(default_factory=dict)  # refused with everything
    rows: list[dict[str, Any]] = field(default_factory=list)


def named(reason: str, axes: dict[str, list[Any]]) -> list[str]:
    """The axes that a refusal names."""
    return [axis for axis in axes if f"{axis}=" in reason]


def accepted(
    model: str, wanted: dict[str, Any], axes: dict[str, list[Any]], changes: int = 2
) -> dict[str, Any] | str:
    """A row with the wanted choices that is accepted, or why there is none.

    Where the base's own values of other axes are in the way, so many of those axes are changed.
    """
    reason = refusal(model, wanted)
    if reason is None:
        return wanted
    for axis in named(reason, axes) if changes else []:
        if axis in wanted:
            continue
        for other in axes[axis]:
            found = accepted(model, wanted | {axis: other}, axes, changes - 1)
            if not isinstance(found, str):
                return found
    return reason


def fill(model: str, wanted: dict[str, Any], open_pairs: set[Pair]) -> dict[str, Any]:
    """The row with options for the other axes that close as many open pairs as possible."""
    row, axes = dict(wanted), axes_of(model)
    for axis in [axis for axis in axes if axis not in row]:
        if best := useful(row, axis, axes[axis], open_pairs):
            row[axis] = best[0]
    taken_out: list[str] = []
    while (reason := refusal(model, row)) is not None:
        in_the_way = [axis for axis in named(reason, axes) if axis in row and axis not in wanted]
        assert in_the_way, reason  # a refusal names what to change
        row = {axis: chosen for axis, chosen in row.items() if axis not in in_the_way}
        taken_out += in_the_way
    for axis in taken_out:
        for choice in useful(row, axis, axes[axis], open_pairs):
            if refusal(model, row | {axis: choice}) is None:
                row[axis] = choice
                break
    return row


def useful(row: dict[str, Any], axis: str, choices: list[Any], open_pairs: set[Pair]) -> list[Any]:
    """The options that close open pairs together with the row, the most useful first."""
    closed = [
        sum(frozenset({(axis, choice), item}) in open_pairs for item in row.items())
        for choice in choices
    ]
    order = sorted(range(len(choices)), key=lambda n: -closed[n])
    return [choices[n] for n in order if closed[n]]


def pairs_of(row: dict[str, Any]) -> set[Pair]:
    return {frozenset(pair) for pair in combinations(row.items(), 2)}


def all_pairs(axes: dict[str, list[Any]]) -> list[Pair]:
    return [
        frozenset({(a, x), (b, y)})
        for a, b in combinations(axes, 2)
        for x, y in product(axes[a], axes[b])
    ]


@cache
def books(model: str) -> Books:
    """Train or refuse every pair of the model's axes."""
    kept, axes = Books(), axes_of(model)
    for axis, choices in axes.items():
        for choice in choices:
            found = accepted(model, {axis: choice}, axes)
            if isinstance(found, str):
                kept.alone[axis, choice] = found
    everything = all_pairs(axes)
    for pair in everything:
        if blamed := [kept.alone[item] for item in pair if item in kept.alone]:
            kept.refused[pair] = blamed[0]
    open_pairs = set(everything) - kept.refused.keys()
    usable = {
        axis: [choice for choice in choices if (axis, choice) not in kept.alone]
        for axis, choices in axes.items()
    }
    for pair in everything:
        if pair not in open_pairs:
            continue
        found = accepted(model, dict(sorted(pair)), usable)
        if isinstance(found, str):
            kept.refused[pair] = found
            open_pairs.remove(pair)
            continue
        row = fill(model, found, open_pairs)
        assert pair <= set(row.items())
        try:
            train(model, row)
        except Exception as error:
            error.add_note(f"model={model} with {row}")
            raise
        kept.rows.append(row)
        kept.trained |= pairs_of(row)
        open_pairs -= pairs_of(row)
    return kept
