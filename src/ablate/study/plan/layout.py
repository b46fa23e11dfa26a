"""Expand a study request into arms, composed and checked before anything is launched."""

from collections.abc import Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass, field
from math import prod

from omegaconf import DictConfig

from ablate.errors import UserError, few
from ablate.study.plan import design
from ablate.study.plan.cells import (
    Composed,
    Composer,
    NoComposition,
    own_option,
    with_baseline_options,
)
from ablate.study.plan.design import Factor, PlannedArm, Row
from ablate.study.plan.request import StudyRequest
from ablate.training.transfer import check_start

LARGE = 1000  # more runs than this need study.confirm_large=true
SHOWN = 20  # rejected arms that one message names


@dataclass
class Layout:
    """The arms that can be run, the baseline first, and the reasons for those left out."""

    arms: list[Composed]
    factors: list[Factor]
    baseline_options: dict[str, str]  # by factor
    seeds: tuple[int, ...]
    invalid: dict[str, str] = field(default_factory=dict)  # arm -> reason
    excluded: dict[str, Row] = field(default_factory=dict)  # arm -> entry of study.exclude

    @property
    def baseline(self) -> Composed:
        return self.arms[0]


def lay_out(request: StudyRequest, composer: Composer) -> Layout:
    """Compose and check every arm. Raises a UserError that lists everything wrong."""
    factors, baseline = _factors(request, composer)
    _refuse_large(request, factors, baseline)
    cells = list(design.rows(request.design, factors, baseline))
    design.check_exclude(request.exclude, factors, baseline, cells)
    layout = Layout([], factors, baseline, ())
    legal = _legal(request, layout, composer, cells)
    if request.grid and legal:
        layout.baseline_options = legal[0]  # in a grid, the first legal cell is the baseline
    for row in legal:
        arm = _arm(request, row, layout)
        config = composer(arm.overrides)
        layout.arms.append(Composed(arm, composer.all_of(arm.overrides), config))
    _refuse_empty(layout)
    layout.seeds = request.seeds or (int(layout.baseline.config.seed),)
    return layout


def _factors(request: StudyRequest, composer: Composer) -> tuple[list[Factor], dict[str, str]]:
    """Return the factors and the baseline's option of each, which is their first: in a grid, the
    one that the composition has, if that is among the values."""
    if request.grid:
        factors = [_own_first(factor, composer) for factor in request.factors]
        return factors, {f.name: next(iter(f.options)) for f in factors}
    base = _baseline(composer)
    assert request.seeds is not None
    if base.seed and base.seed not in request.seeds:
        raise UserError(f"seed={base.seed}: the seeds of a study are study.seeds=[..]")
    return with_baseline_options(request.factors, base)


def _own_first(factor: Factor, composer: Composer) -> Factor:
    with suppress(NoComposition):
        if (option := own_option(factor, composer(()))) is not None:
            return Factor(factor.name, {option: factor.options[option], **factor.options})
    return factor


def _baseline(composer: Composer) -> DictConfig:
    try:
        return composer.checked(())
    except NoComposition:
        raise
    except UserError as error:
        raise UserError(f"the baseline is invalid: {error}") from error


def _arm(request: StudyRequest, row: Row, layout: Layout) -> PlannedArm:
    all_set = request.design == "factorial"  # as that of values after commas is
    return design.arm(
        row, layout.factors, layout.baseline_options, all_set=all_set, named=request.grid
    )


def _legal(
    request: StudyRequest, layout: Layout, composer: Composer, cells: Sequence[Row]
) -> list[Row]:
    """Return the legal cells; record the others in the layout, or raise UserError for them."""
    legal: list[Row] = []
    lost: list[tuple[Row, str]] = []  # no composition
    for row in cells:
        arm = _arm(request, row, layout)
        if by := next((each for each in request.exclude if each.items() <= row.items()), None):
            layout.excluded[arm.name] = by
            continue
        try:
            check_start(composer.checked(arm.overrides))
            legal.append(row)
        except NoComposition as error:
            lost.append((row, str(error)))
            layout.invalid[arm.name] = str(error)
        except UserError as error:
            layout.invalid[arm.name] = str(error)
    _refuse_mistakes(lost, [row for row in cells if not any(row is other for other, _ in lost)])
    if layout.invalid and request.node["on_invalid"] == "error":
        raise UserError(refusal(layout.invalid, len(cells)))
    return legal


def _refuse_mistakes(lost: Sequence[tuple[Row, str]], composed: Sequence[Row]) -> None:
    """Raise UserError for an option that composes in no cell, for any study.on_invalid."""
    works = {option for row in composed for option in row.items()}
    lines = [line for row, line in lost if not row or any(o not in works for o in row.items())]
    if lines:
        raise UserError(*dict.fromkeys(lines))


def refusal(invalid: Mapping[str, str], arms: int) -> str:
    """List the invalid arms with their reasons in one line."""
    named = few((f"[{name}] {reason}" for name, reason in invalid.items()), "; ", SHOWN)
    return (
        f"{len(invalid)} of {arms} arms cannot be run: {named}; study.on_invalid=skip leaves such"
        " arms out"
    )


def _refuse_large(
    request: StudyRequest, factors: Sequence[Factor], baseline: Mapping[str, str]
) -> None:
    node = request.node
    arms = design.count(request.design, factors, baseline)
    grid = prod(len(v) if isinstance(v, list) else 1 for v in (node["tune"] or {}).values())
    tune_seeds = node["tune_seeds"]
    each = tune_seeds if isinstance(tune_seeds, int) else len(tune_seeds)
    blocks = len(next(iter((node["blocks"] or {"": [""]}).values())))
    runs = blocks * arms * (len(request.seeds or (0,)) + (grid * each if node["tune"] else 0))
    if runs > LARGE and not node["confirm_large"]:
        raise UserError(
            f"the plan has {runs:,} runs ({arms:,} arms); if that is meant, add"
            " study.confirm_large=true"
        )


def _refuse_empty(layout: Layout) -> None:
    baseline = [composed for composed in layout.arms if composed.arm.is_baseline]
    if not baseline:
        raise UserError(f"the baseline is not among the cells that can be run: {_left_out(layout)}")
    if layout.factors and len(layout.arms) == 1:
        raise UserError(f"no arm is left to compare with the baseline: {_left_out(layout)}")


def _left_out(layout: Layout) -> str:
    excluded = {
        name: f"excluded by study.exclude: {design.entry_text(entry)}"
        for name, entry in layout.excluded.items()
    }
    return "; ".join(f"[{name}] {why}" for name, why in {**layout.invalid, **excluded}.items())
