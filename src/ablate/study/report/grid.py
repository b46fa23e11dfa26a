"""The page's tables: the one with intervals and verdicts, and plain ones. All of them sort."""

from collections.abc import Iterable, Sequence
from itertools import islice

from markupsafe import Markup, escape

from ablate.study.analysis.collect import Seed
from ablate.study.analysis.comparable import versions as made_with
from ablate.study.metric_words import direction
from ablate.study.numbers import (
    NOTHING,
    amount,
    duration,
    interval,
    listed,
    number,
    probability,
    signed,
)
from ablate.study.report import runs
from ablate.study.report.rows import Report, Row
from ablate.study.report.sentences import relative

LISTED = 20  # seeds of an arm that a tip lists
LONG = 14  # letters from which a word may be broken
WORDS = {
    "better": "▲ better",
    "worse": "▼ worse",
    "equivalent": "≈ equivalent",
    "inconclusive": "no difference shown",
    "too_few_seeds": "too few seeds",
    "excluded": "not compared",
    "baseline": "baseline",
}


def tag(name: str, *body: str, **attributes: object) -> Markup:
    """Make an element; `class_` and `data_tip` become class and data-tip.

    Any content that is not Markup is a string and is escaped, here and nowhere else.
    """
    rendered = (
        Markup(' {}="{}"').format(key.rstrip("_").replace("_", "-"), value)
        for key, value in attributes.items()
        if value is not None
    )
    template = Markup("<{0}{1}>{2}</{0}>")
    return template.format(name, Markup("").join(rendered), Markup("").join(body))


def table(report: Report) -> Markup:
    """Make a row per arm, the baseline marked."""
    heads = [
        _head("arm"),
        _head("verdict"),
        _head(report.metric, direction(report.mode), number=True),
        _head("difference", "95 % interval", number=True),
        _head("p", "after Holm", number=True),
        _head("effect", "size", number=True),
        _head("parameters", "training time", number=True),
    ]
    body = [_row(row, report) for row in report.rows]
    return _table(heads, body, id="arms")


def _head(words: str, more: str = "", *, number: bool = False) -> Markup:
    button = tag("button", words, type="button")
    button += tag("span", more, class_="small") if more else ""
    return tag("th", button, class_="number" if number else None, scope="col")


def _row(row: Row, report: Report) -> Markup:
    cells = [
        _name(row, report),
        _verdict(row),
        _value(row, report),
        _difference(row, report),
        *_statistics(row),
        _cost(row),
    ]
    kind = "base" if row.arm.is_baseline else None
    return tag("tr", *cells, class_=kind, data_arm=row.arm.name)


def _name(row: Row, report: Report) -> Markup:
    color = report.colors.get(row.arm.name)
    kind = "base" if row.arm.is_baseline else f"c{color}" if color else "rest"
    swatch = tag("span", class_=f"swatch {kind}")
    badges = [tag("span", badge, class_="badge") for badge in row.badges]
    # Break before a value, not in it.
    name = Markup("=<wbr>").join(map(breakable, row.arm.name.split("=")))
    shown = "" if row.arm.name == "baseline" else tag("span", name, " ")
    return tag(
        "td", tag("div", swatch, tag("div", shown, *badges)), class_="arm", data_value=row.arm.name
    )


def _verdict(row: Row) -> Markup:
    words = WORDS[row.kind]
    comparison = row.comparison
    small = ""
    if comparison is None and not row.arm.is_baseline:
        small = "; ".join(row.why)
    elif comparison is not None and row.kind == "inconclusive":
        needed = comparison.verdict.seeds_needed
        small = f"about {needed:,} seeds needed" if needed else ""
    if comparison is not None and comparison.look:
        small = ", ".join(filter(None, [comparison.look.words(), small]))
    if row.allowed:
        small = f"allowed: {', '.join(row.allowed)}" + (f"; {small}" if small else "")
    body = tag("span", words, class_=f"verdict {row.kind}")
    body += tag("span", small, class_="small") if small else ""
    return tag("td", body, class_="words", data_value=words, data_tip=row.verdict)


def _value(row: Row, report: Report) -> Markup:
    summary = row.summary
    first = list(row.values.items())[:LISTED]
    seeds = "\n".join(f"seed {s}: {number(v, report.decimals)}" for s, v in first)
    body = number(summary.mean, report.decimals)
    if summary.sd is not None:
        body += tag(
            "span", f"± {number(summary.sd, report.decimals)}, n = {summary.n}", class_="small"
        )
    return _number(body, summary.mean, seeds or "no finished run")


def _difference(row: Row, report: Report) -> Markup:
    comparison, share = row.comparison, relative(row, report)
    body = signed(row.difference, report.decimals)
    body += tag("span", f" ({share})", class_="soft") if share else ""
    tip = None
    if comparison:
        reach = interval(comparison.interval, report.decimals)
        body += tag("span", reach, class_="small") if comparison.interval else ""
        pairs = zip(comparison.pairs.seeds, comparison.pairs.differences.tolist(), strict=True)
        lines = ["arm minus baseline"]
        lines += [f"seed {s}: {signed(v, report.decimals)}" for s, v in islice(pairs, LISTED)]
        lines.append(f"95 % interval, adjusted for the number of arms: {reach}")
        tip = "\n".join(lines)
    return _number(body, row.difference, tip)


def _statistics(row: Row) -> list[Markup]:
    """Make the cells of p and effect size."""
    comparison = row.comparison
    if comparison is None:
        return [_number(NOTHING, None)] * 2
    error = comparison.tests.error
    t = comparison.difference / error.se if error.se else None
    tip = (
        f"t = {number(t, 2)} with {error.df:.3g} degrees of freedom\nstandard error {error.se:.3g}"
        f"\nafter Holm: {probability(comparison.p)}"
    )
    size = "mean difference in standard deviations of an arm between its seeds"
    return [
        _number(probability(comparison.p), comparison.p, tip),
        _number(number(comparison.size, 1), comparison.size, size),
    ]


def _cost(row: Row) -> Markup:
    if row.cost is None:
        return _number(NOTHING, None)
    parameters, seconds = row.cost.parameters, row.cost.seconds
    tip = f"{parameters:,.0f} parameters" if parameters is not None else "unknown"
    tip += f"\n{amount(row.cost.flops)}FLOP for the training" if row.cost.flops else ""
    body = amount(parameters) + tag("span", duration(seconds), class_="small")
    return _number(body, parameters, tip)


def _number(body: str, value: float | None, tip: str | None = None) -> Markup:
    key = "" if value is None else repr(value)
    return tag("td", body, class_="number", data_value=key, data_tip=tip)


MOST_SEEDS = 8  # columns that fit on paper


def seeds(report: Report) -> list[Markup]:
    """Make tables of every run's value by arm and seed, each a link to the run's folder."""
    every = report.study.seeds
    parts = [every[at : at + MOST_SEEDS] for at in range(0, len(every), MOST_SEEDS)]
    return [_of_seeds(report, part) for part in parts]


def _of_seeds(report: Report, part: Sequence[Seed]) -> Markup:
    heads = [_head("arm"), *(_head(f"seed {seed}", number=True) for seed in part)]
    body = [
        tag("tr", _name(row, report), *(_of_run(row, seed, report) for seed in part),
            class_="base" if row.arm.is_baseline else None, data_arm=row.arm.name)
        for row in report.rows
    ]  # fmt: skip
    return _table(heads, body)


def _of_run(row: Row, seed: Seed, report: Report) -> Markup:
    if (run := report.study.runs_of(row.arm.name).get(seed)) is None:
        return _number(NOTHING, None)
    value = row.values.get(seed)
    words = run.state if value is None else number(value, report.decimals)
    body = tag("a", words, href=runs.link(report, run.folder)) if run.result else words
    if page := runs.wandb_page(run):
        body += tag("span", tag("a", "W&B", href=page, rel="noreferrer"), class_="small")
    return _number(body, value)


def breakable(words: str) -> Markup:
    """Let a long name break between its parts rather than inside one."""
    lines = [[_part(part) for part in line.split()] for line in words.splitlines()]
    return Markup("\n").join(Markup(" ").join(line) for line in lines)


def _part(word: str) -> Markup:
    return escape(word) if len(word) < LONG else tag("span", word)


def plain(heads: Sequence[str], rows: Sequence[Sequence[str]], kinds: Sequence[str] = ()) -> Markup:
    """Make a sortable table of texts. kinds: the color of each row's first cell."""
    body = []
    for n, row in enumerate(rows):
        first = f"plain {kinds[n]}" if kinds else "plain"
        cells = [
            tag("td", breakable(cell), class_=first if at == 0 else "plain")
            for at, cell in enumerate(row)
        ]
        body.append(tag("tr", *cells, data_arm=row[0]))
    return _table(map(_head, heads), body)


def _table(heads: Iterable[str], rows: Iterable[str], **attributes: object) -> Markup:
    """Make a table that scrolls if it is wider than the page, also with the keyboard."""
    table = tag("table", tag("thead", tag("tr", *heads)), tag("tbody", *rows), **attributes)
    return tag("div", table, class_="wide", tabindex=0)


def versions(report: Report) -> Markup:
    """Show code, data and machines of the finished runs, by arm if there is more than one value."""
    rows = []
    for head, values in made_with(report.study).items():
        for value, arms in values.items():
            whose = "every run" if len(values) == 1 else listed(arms)
            rows.append([head, value, whose])
    rows.append(["plan written", str(report.study.plan.get("written")), "every run"])
    return plain(("property", "value", "runs"), rows)
