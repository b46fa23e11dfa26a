"""Main effects and interactions of crossed designs, and their figures."""

from collections.abc import Collection, Sequence
from html import escape

from ablate.study.analysis.confounding import varied
from ablate.study.analysis.effects import Effect, Effects, effects
from ablate.study.numbers import listed
from ablate.study.report.charts import Look
from ablate.study.report.points import CROSSED
from ablate.study.report.rows import Report
from ablate.study.report.svg import Axis, axis, figure, line, rungs, tag, text

WIDTH, HEIGHT, LEFT = 300.0, 220.0, 56.0
MOST_FIGURES = 6


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


def draw_interactions(pairs: Sequence[Effect], look: Look) -> list[str]:
    """Draw the means of every pair of options; lines that are not parallel are an interaction."""
    shown = list(pairs[:MOST_FIGURES])
    means = [mean for effect in shown for mean in effect.means.values()]
    if not means:
        return []
    y = axis(means, HEIGHT - 40, 12)
    return [_interaction(effect, y, look) for effect in shown]


def _interaction(effect: Effect, y: Axis, look: Look) -> str:
    (first, second), (along, apart) = effect.factors, effect.options
    x = Axis(-0.35, len(along) - 0.65 + 0.6, LEFT, WIDTH - 8)
    parts = rungs(x, y, 4)
    for n, option in enumerate(along):
        parts.append(text(option, x(n), HEIGHT - 22, class_="tick", text_anchor="middle"))
    for m, other in enumerate(apart):
        kind = "base" if m == 0 else f"c{(m - 1) % 7 + 1}"
        at = [
            (n, effect.means[o, other]) for n, o in enumerate(along) if (o, other) in effect.means
        ]
        if not at:
            continue
        body = tag("path", class_="line", d=line((x(n), y(mean)) for n, mean in at))
        for n, mean in at:
            tip = f"{first}={along[n]}\n{second}={other}\nmean {look.number(mean)}"
            body += tag("circle", class_="dot", cx=x(n), cy=y(mean), r=4, data_tip=tip)
        last, mean = at[-1]
        body += text(other, x(last) + 8, y(mean) + 4, class_="name")
        parts.append(tag("g", body, class_=kind))
    chart = figure(WIDTH, HEIGHT - 10, f"{look.name} by {effect.name}", *parts)
    words = f"{tag('code', escape(first))} along, {tag('code', escape(second))} as lines"
    return tag("figure", chart, tag("figcaption", words), class_="panel")
