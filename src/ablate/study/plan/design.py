"""Turn factors and a design into the arms of a study, without composing them.

The baseline's own option of every factor is one of the factor's options, listed or not: the arm
with all of them is the baseline.

    one_factor     the baseline, and every other option of every factor, one at a time
    leave_one_out  the same, if every factor has one other option, the ablated one
    pairs          the same, and every two such changes together
    factorial      every combination of options
"""

import math
from collections.abc import Collection, Iterator, Mapping, Sequence
from dataclasses import dataclass
from itertools import combinations, product

from ablate.config.overrides import in_full, key_of
from ablate.errors import UserError, suggest
from ablate.study.numbers import listed

BASELINE = "baseline"
Row = dict[str, str]  # factor -> option, for every factor


@dataclass(frozen=True)
class Factor:
    """A factor. options: option -> its overrides, in the order they were written."""

    name: str
    options: Mapping[str, tuple[str, ...]]

    @property
    def keys(self) -> set[str]:
        """The keys that its options set."""
        return {key_of(text) for texts in self.options.values() for text in texts}


@dataclass(frozen=True)
class PlannedArm:
    """changes: factor -> option, of those that differ from the baseline. overrides: set them."""

    name: str
    changes: Mapping[str, str]
    overrides: tuple[str, ...] = ()

    @property
    def is_baseline(self) -> bool:
        return not self.changes


def arm_named(name: str, arms: Collection[str], where: str) -> str:
    """The arm of this name, or the only one of this option: model.attention=dot of dot. Raises
    UserError with the prefix `where`."""
    name = name if name in arms else in_full(name)  # arms of other programs have any name
    options = [arm for arm in arms if arm.partition("=")[2] == name]
    if name in arms:
        return name
    if len(options) == 1:
        return options[0]
    near = suggest(name, [*(arm.partition("=")[2] for arm in arms), *arms])
    if options:
        near = f"; it is the option of {listed(options)}"
    raise UserError(f"{where}: unknown arm {name}{near} (there: {listed(arms, 12)})")


def count(design: str, factors: Sequence[Factor], baseline: Mapping[str, str]) -> int:
    """Count the arms of a design without making them."""
    others = [len(_others(factor, baseline)) for factor in factors]
    single = 1 + sum(others)
    if design == "factorial":
        return math.prod(other + 1 for other in others)
    if design == "pairs":
        return single + sum(a * b for a, b in combinations(others, 2))
    return single


def rows(design: str, factors: Sequence[Factor], baseline: Mapping[str, str]) -> Iterator[Row]:
    """Yield the cells of a design, the baseline first. baseline: its options."""
    others = {factor.name: _others(factor, baseline) for factor in factors}
    if design == "leave_one_out":
        _require_two_options(others, baseline)
    if design == "factorial":
        for options in product(*([baseline[name], *others[name]] for name in others)):
            yield dict(zip(others, options, strict=True))
    else:
        yield dict(baseline)
        for together in (1, 2) if design == "pairs" else (1,):
            for names in combinations(others, together):
                for options in product(*(others[name] for name in names)):
                    yield dict(baseline) | dict(zip(names, options, strict=True))


def arm(
    row: Row, factors: Sequence[Factor], baseline: Mapping[str, str], *, all_set: bool, named: bool
) -> PlannedArm:
    """Make an arm from a cell. all_set: also set the options that the baseline has already. named:
    put every option into the name, not only the changes."""
    changes = {name: option for name, option in row.items() if option != baseline[name]}
    shown = row if named else changes
    overrides: dict[str, tuple[str, str]] = {}
    for factor in factors:
        if factor.name in changes or all_set:
            for text in factor.options.get(row[factor.name], ()):
                first, _ = overrides.setdefault(key_of(text), (factor.name, text))
                if first != factor.name:
                    raise UserError(
                        f"study.factors: {first} and {factor.name} both set {key_of(text)}; put"
                        " their combinations into one factor, or use design=one_factor"
                    )
                overrides[key_of(text)] = (factor.name, text)
    name = " ".join(f"{factor}={option}" for factor, option in shown.items()) or BASELINE
    return PlannedArm(name, changes, tuple(text for _, text in overrides.values()))


def entry_text(entry: Row) -> str:
    """Write an entry of study.exclude as "pos_enc=none model.norm=post"."""
    return " ".join(f"{factor}={option}" for factor, option in entry.items())


def check_exclude(
    exclude: Sequence[Row],
    factors: Sequence[Factor],
    baseline: Mapping[str, str],
    cells: Sequence[Row],
) -> None:
    """Raise UserError for an unknown factor or option in study.exclude, or an entry that is empty
    or has no cell."""
    known = {factor.name: {baseline[factor.name], *factor.options} for factor in factors}
    if not all(exclude):
        raise UserError("study.exclude: {} would leave out every cell; name factor: option")
    for name, option in (pair for entry in exclude for pair in entry.items()):
        if name not in known:
            raise UserError(
                f"study.exclude: no factor {name}; there are: {', '.join(known)}"
                + suggest(name, known)
            )
        if option not in known[name]:
            allowed = sorted(known[name])
            raise UserError(
                f"study.exclude: {name} has no option {option}; it has: {', '.join(allowed)}"
                + suggest(option, allowed)
            )
    for entry in exclude:
        if not any(entry.items() <= cell.items() for cell in cells):
            raise UserError(
                f"study.exclude: {entry_text(entry)}: no cell of the design has these options;"
                " leave the entry out"
            )


def _others(factor: Factor, baseline: Mapping[str, str]) -> list[str]:
    others = [option for option in factor.options if option != baseline[factor.name]]
    if not others:
        raise UserError(
            f"study.factors: {factor.name} has no option other than {baseline[factor.name]}, the"
            " baseline's"
        )
    return others


def _require_two_options(others: Mapping[str, Sequence[str]], baseline: Mapping[str, str]) -> None:
    for name, options in others.items():
        if len(options) > 1:
            raise UserError(
                f"study.design=leave_one_out: {name} has {len(options)} options beside the"
                f" baseline's {baseline[name]} ({', '.join(options)}), and one is needed; use"
                " design=one_factor"
            )
