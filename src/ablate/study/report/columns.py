"""The columns of numbers in the table of the arms, in every format of the report."""

from collections.abc import Callable
from dataclasses import dataclass, replace
from itertools import islice

from ablate.study.analysis.rows import Report, Row
from ablate.study.metric_words import direction
from ablate.study.numbers import NOTHING, amount, duration, interval, number, probability, signed
from ablate.study.report import sentences

LISTED = 20  # seeds of an arm that a tip lists


@dataclass(frozen=True)
class TableCell:
    """A value in words. value: to sort by. Of the page: soft: after it; small: details below it;
    tip: its explanation; link: to the folder of a run, page: to that at W&B. plain, latex: the
    words of the other formats, and of LaTeX, if not `text`."""

    text: str
    value: float | None = None
    small: str = ""
    tip: str | None = None
    soft: str = ""
    plain: str = ""
    latex: str = ""
    link: str | None = None
    page: str | None = None

    @property
    def words(self) -> str:
        return self.plain or self.text


@dataclass(frozen=True)
class Column:
    """A column of the table of the arms. cell: of a row. page, markdown, latex, terminal: its head
    in each format; "": it is not shown there. small: below its head in the page. {metric} is the
    name of the metric, {direction} whether lower or higher is better. align: in Markdown. is_wide:
    only if the terminal has room."""

    cell: Callable[[Row, Report], TableCell]
    page: str = ""
    small: str = ""
    markdown: str = ""
    align: str = "---:"
    latex: str = ""
    terminal: str = ""
    is_wide: bool = False

    def of(self, report: Report) -> "Column":
        """The column with the heads of a report."""
        words = {"metric": report.metric, "direction": direction(report.mode)}
        forms = ("page", "small", "markdown", "latex", "terminal")
        return replace(self, **{form: getattr(self, form).format(**words) for form in forms})


def metric(row: Row, report: Report) -> TableCell:
    summary, digits = row.summary, report.decimals
    first = islice(row.values.items(), LISTED)
    lines = [f"seed {seed}: {number(value, digits)}" for seed, value in first]
    tip = "\n".join(lines) or "no finished run"
    mean = number(summary.mean, digits)
    small = "" if summary.sd is None else f"± {number(summary.sd, digits)}, n = {summary.n}"
    return TableCell(mean, summary.mean, small, tip, plain=summary.words(digits))


def difference(row: Row, report: Report) -> TableCell:
    digits = report.digits
    if (comparison := row.comparison) is None:
        return TableCell(NOTHING)
    reach = interval(comparison.interval, digits)
    pairs = zip(comparison.pairs.seeds, comparison.pairs.differences.tolist(), strict=True)
    lines = [
        "arm minus baseline",
        *(f"seed {seed}: {signed(value, digits)}" for seed, value in islice(pairs, LISTED)),
        f"95 % interval, adjusted for the number of arms: {reach}",
    ]
    text, small = signed(row.difference, digits), reach if comparison.interval else ""
    return TableCell(
        text,
        row.difference,
        small,
        "\n".join(lines),
        soft=sentences.relative(row, report),
        plain=f"{text} ({small})" if small else "",
        latex=f"{text} [{small.replace(' to ', ', ')}]" if small else "",
    )


def p_value(row: Row, report: Report) -> TableCell:
    if (comparison := row.comparison) is None:
        return TableCell(NOTHING)
    error, p = comparison.tests.error, probability(comparison.p)
    t = comparison.difference / error.se if error.se else None
    tip = (
        f"t = {number(t, 2)} with {error.df:.3g} degrees of freedom\nstandard error {error.se:.3g}"
        f"\nafter Holm: {p}"
    )
    return TableCell(p, comparison.p, tip=tip)


def effect_size(row: Row, report: Report) -> TableCell:
    if (comparison := row.comparison) is None:
        return TableCell(NOTHING)
    tip = "mean difference in standard deviations of an arm between its seeds"
    return TableCell(number(comparison.size, 1), comparison.size, tip=tip)


def cost(row: Row, report: Report) -> TableCell:
    if row.cost is None:
        return TableCell(NOTHING)
    parameters = row.cost.parameters
    tip = f"{parameters:,.0f} parameters" if parameters is not None else "unknown"
    tip += f"\n{amount(row.cost.flops)}FLOP for the training" if row.cost.flops else ""
    return TableCell(amount(parameters), parameters, duration(row.cost.seconds), tip)


# Between the name of the arm and its verdict; in the page after both.
COLUMNS = (
    Column(lambda row, _: TableCell(str(row.summary.n)), markdown="n", latex="n", terminal="n"),
    Column(metric, page="{metric}", small="{direction}", markdown="{metric}", latex="{metric}",
           terminal="{metric}"),
    Column(difference, page="difference", small="95 % interval",
           markdown="difference (95 % interval)", latex="difference [95 % interval]",
           terminal="difference (95% interval)"),
    Column(lambda row, report: TableCell(sentences.relative(row, report)), markdown="relative",
           terminal="relative", is_wide=True),
    Column(p_value, page="p", small="after Holm", markdown="p (Holm)", align=":---", latex="p"),
    Column(effect_size, page="effect", small="size"),
    Column(cost, page="parameters", small="training time"),
)  # fmt: skip
