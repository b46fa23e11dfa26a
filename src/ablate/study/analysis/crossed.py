"""Main effects and interactions of crossed designs, in sentences."""

from ablate.study.analysis.rows import Report, Row
from ablate.study.numbers import listed

TESTS = (
    "These p values differ from those of the table: they are of effects averaged over all arms,"
    " Holm-corrected over these effects; those of the table compare one arm with the baseline,"
    " Holm-corrected over the arms."
)


def in_short(report: Report) -> list[str]:
    """Describe the effects that are shown, also against the arms, and list the factors without a
    main effect."""
    crossed = report.crossed
    if crossed is None or not crossed.effects:
        return []
    main = crossed.main
    sentences = [effect.words() for effect in [*main, *crossed.interactions] if effect.shown]
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
        for row in report.shown
        if not any(factors <= changed(row) for factors in shown)
    ]
    if arms:
        sentences.append(
            f"{listed(arms, 4)}: different from the baseline, although no effect of the factors is"
            " shown. This is not a contradiction: a verdict compares one combination with the"
            " baseline, an effect averages over all combinations"
        )
    return sentences
