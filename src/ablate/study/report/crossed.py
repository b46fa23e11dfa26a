"""Main effects and interactions of crossed designs."""

from collections.abc import Collection

from ablate.study.analysis.confounding import varied
from ablate.study.analysis.effects import Effect, Effects, effects
from ablate.study.numbers import listed
from ablate.study.report.points import CROSSED
from ablate.study.report.rows import Report


def crossed_effects(report: Report, allow: Collection[str] = ()) -> Effects | str | None:
    """Estimate the effects; None without crossed factors, a text if nothing can be estimated."""
    study = report.study
    if study.plan.get("design") not in CROSSED:
        return None
    hindering = [o for o in report.objections if not o.allowed and o.rule != "seeds"]
    if hindering:
        first = hindering[0]
        return f"not estimated: {first.arm}: {first.reason} (rule '{first.rule}')"
    own = study.plan["own"]
    cells = {arm.name: own | dict(arm.changes) for arm in study.arms if arm.same_as is None}
    runs = [
        (cell, seed, study.values(name, report.metric).get(seed))
        for name, cell in cells.items()
        for seed in study.seeds
    ]
    factors = varied(list(cells.values()), own)
    return effects(runs, factors=factors, mode=report.mode, allow_missing="seeds" in allow)


def ranked(found: Effects) -> tuple[list[Effect], list[Effect]]:
    """Return main effects in the order of the plan, and interactions in the order of their p."""
    main = [effect for effect in found.effects if len(effect.factors) == 1]
    pairs = [effect for effect in found.effects if len(effect.factors) == 2]
    return main, sorted(pairs, key=lambda e: 2.0 if e.p is None else e.p)


def in_short(crossed: Effects | str | None) -> list[str]:
    """Describe the effects that are shown, and list the factors without a main effect."""
    if not isinstance(crossed, Effects) or not crossed.effects:
        return []
    main, pairs = ranked(crossed)
    said = [effect.words() for effect in [*main, *pairs] if effect.shown]
    rest = listed(effect.name for effect in main if not effect.shown)
    return [*said, *([f"No main effect is shown of {rest}"] if rest else [])]
