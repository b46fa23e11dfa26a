"""Main effects and interactions of crossed designs."""

from __future__ import annotations

from typing import TYPE_CHECKING

from ablate.study.analysis.confounding import varied
from ablate.study.analysis.effects import Effect, Effects, effects
from ablate.study.numbers import listed

if TYPE_CHECKING:
    from ablate.study.analysis.rows import Report, Row


def crossed_effects(report: Report) -> Effects | str | None:
    """Estimate the effects; a string if nothing can be estimated. None without crossed factors: the
    effect of a single one is in the table."""
    study = report.study
    baseline = study.plan.get("own", {})
    cells = {arm.name: baseline | dict(arm.changes) for arm in study.arms if arm.same_as is None}
    factors = varied(list(cells.values()), baseline)
    if study.plan.get("design") != "factorial" or len(factors) == 1:
        return None
    hindering = (o for o in report.objections if not o.allowed and o.rule != "seeds")
    if first := next(hindering, None):
        return f"not estimated: {first.arm}: {first.reason} (rule '{first.rule}')"
    runs = [
        (cell, seed, study.by_seed(name, report.metric).get(seed))
        for name, cell in cells.items()
        for seed in study.plan["seeds"][: next(iter(study.looks), None)]
    ]
    allowed = any(o.allowed and o.rule == "seeds" for o in report.objections)
    return effects(runs, factors=factors, mode=report.mode, allow_missing=allowed)


def ranked(estimates: Effects) -> tuple[list[Effect], list[Effect]]:
    """Return main effects in the order of the plan, and interactions in the order of their p."""
    main = [effect for effect in estimates.effects if len(effect.factors) == 1]
    pairs = [effect for effect in estimates.effects if len(effect.factors) == 2]
    return main, sorted(pairs, key=lambda e: 2.0 if e.p is None else e.p)


TESTS = (
    "These p values differ from those of the table: they are of effects averaged over all arms,"
    " Holm-corrected over these effects; those of the table compare one arm with the baseline,"
    " Holm-corrected over the arms."
)


def in_short(report: Report) -> list[str]:
    """Describe the effects that are shown, also against the arms, and list the factors without a
    main effect."""
    crossed = report.crossed
    if not isinstance(crossed, Effects) or not crossed.effects:
        return []
    main, pairs = ranked(crossed)
    sentences = [effect.words() for effect in [*main, *pairs] if effect.shown]
    own = report.study.plan.get("own", {})
    base = {**own, **report.baseline.arm.changes}

    def changed(row: Row) -> set[str]:
        """The factors whose options differ from those of the baseline of the report."""
        options = {**own, **row.arm.changes}
        return {name for name in {*base, *options} if base.get(name) != options.get(name)}

    alone = {
        effect.name: {row.kind for row in report.others if changed(row) == {effect.name}}
        for effect in main
    }
    sentences += [
        f"{effect.name}: its options differ, although no arm that changes only {effect.name} is"
        " shown to differ from the baseline. This is not a contradiction: the test of a factor"
        " averages over all arms; a verdict compares one arm with the baseline, and is corrected"
        " for several arms"
        for effect in main
        if effect.shown and alone[effect.name] == {"inconclusive"}
    ]
    if rest := listed(effect.name for effect in main if not effect.shown):
        sentences.append(f"No main effect detected for {rest}")
    shown = [{*effect.factors} for effect in crossed.effects if effect.shown]
    arms = [
        report.labels[row.arm.name]
        for row in report.others
        if row.kind in ("better", "worse") and not any(factors <= changed(row) for factors in shown)
    ]
    if arms:
        sentences.append(
            f"{listed(arms, 4)}: different from the baseline, although no effect of the factors is"
            " shown. This is not a contradiction: a verdict compares one combination with the"
            " baseline, an effect averages over all combinations"
        )
    return sentences
