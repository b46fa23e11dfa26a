"""report.html: one self-contained page; the order of its sections, and their texts."""

from base64 import b64encode
from collections.abc import Mapping, Sequence
from hashlib import sha256
from pathlib import Path
from string import Template

from markupsafe import Markup

from ablate.study.analysis.collect import Run
from ablate.study.analysis.effects import Effects
from ablate.study.report import blocks, claims, grid, runs, sentences, trouble
from ablate.study.report.crossed import TESTS, in_short, ranked
from ablate.study.report.figures import BEYOND
from ablate.study.report.grid import tag
from ablate.study.report.points import Points
from ablate.study.report.rows import Report
from ablate.study.report.tables import latex

HERE = Path(__file__).parent
OF_KEYS = "Config keys that differ from the baseline; all others are equal."


Charts = Mapping[str, Sequence[Markup]]


def page(report: Report, points: Points, crossed: Effects | str | None, charts: Charts) -> str:
    """Make the whole page. crossed: effects of crossed factors, or why there are none. charts: the
    SVG of each figure that has data.
    """
    examples, troubles = sentences.example_rows(report), trouble.troubles(report)
    differing = trouble.differing(report)
    sections = [
        _head(report),
        _claims(report),
        tag("div", _answer(report, crossed), _overview(report, points, charts), class_="glance"),
        _blocks(report),
        _table(report, charts),
        _copies(report),
        _measures(report),
        _also(report),
        _listed("Over examples", sentences.OF_EXAMPLES, sentences.EXAMPLES, examples),
        _plan(report),
        _effects(report, crossed, charts),
        _cost(charts.get("cost", ())),
        _pictures(report),
        _listed("Failed, rejected and excluded runs", "", trouble.TROUBLES, troubles),
        _listed("Config differences", OF_KEYS, trouble.DIFFERING, differing),
        _listed(trouble.TUNED, trouble.tuned(report), trouble.TUNING, trouble.tuning(report)),
        "" if report.study.source else _section("Environment", grid.versions(report)),
    ]
    style, script = ((HERE / f"page.{kind}").read_text(encoding="utf-8") for kind in ("css", "js"))
    texts = {
        "policy": _policy(style, script),
        "title": tag("title", f"{report.study.name}: ablation report"),
        "style": style,
        "script": script,
        "body": "\n".join(filter(None, sections)),
    }
    return Template((HERE / "page.html").read_text(encoding="utf-8")).substitute(texts)


def _policy(style: str, script: str) -> str:
    """Return the Content-Security-Policy under which nothing is requested, and no script or style
    sheet counts but these two. Attributes `style` remain: charts need them."""
    sheet, code = (b64encode(sha256(text.encode()).digest()).decode() for text in (style, script))
    return (
        f"default-src 'none'; script-src 'sha256-{code}'; style-src 'sha256-{sheet}'; "
        "style-src-attr 'unsafe-inline'; img-src data:; base-uri 'none'; form-action 'none'"
    )


def _head(report: Report) -> Markup:
    lines = [*sentences.purpose(report), sentences.plan_sentence(report)]
    kinds = ["question", *["soft"] * (len(lines) - 1)]
    paragraphs = [tag("p", line, class_=kind) for line, kind in zip(lines, kinds, strict=True)]
    return Markup("").join([tag("h1", report.study.name), *paragraphs])


def _answer(report: Report, crossed: Effects | str | None) -> Markup:
    """Write the results and their certainty, before any table."""
    points = [
        tag("li", tag("b", head, class_=kind), ": ", arms, ".")
        for kind, head, arms in sentences.answers(report)
    ]
    points.append(tag("li", sentences.reference(report)))
    points = [*(tag("li", f"{line}.") for line in in_short(report, crossed)), *points]
    remarks = [*map(_warning, report.marks), *map(_note, sentences.sure(report))]
    return _section("Results", tag("ul", *points), *remarks, class_="answer")


def _claims(report: Report) -> Markup:
    if not report.claims and not report.dropped:
        return Markup()
    table = grid.plain(claims.HEADS, claims.rows(report.claims), kinds=claims.kinds(report.claims))
    lines = [_warning(line) for line in claims.remarks(report.dropped)]
    words = "Positive effects support the claim; p values are Holm-corrected across claims."
    if not report.study.source:
        words = f"Registered before the first run unless marked post hoc. {words}"
    return _section("Claims", _note(words), table, *lines)


def _blocks(report: Report) -> Markup:
    if not report.blocks:
        return Markup()
    pages = [
        tag("a", block, href=f"{part.study.folder.name}/report.html")
        for block, part in report.blocks.items()
    ]
    parts = [_note(blocks.NOTE), grid.plain(*blocks.by_block(report))]
    if not report.study.source:
        parts.append(tag("p", "Reports: ", Markup(", ").join(pages), class_="note"))
    if climbed := blocks.climbs(report):
        parts += [_note(blocks.CLIMB), grid.plain(*blocks.on_ladder(climbed))]
    return _section(blocks.title(report), *parts)


def _also(report: Report) -> Markup:
    if not report.also:
        return Markup()
    table = grid.plain(*blocks.by_metric(report))
    return _section("Other metrics", _note(blocks.ALSO), table)


def _measures(report: Report) -> Markup:
    if not report.measures:
        return Markup()
    return _section("Measures", _note(blocks.MEASURED), grid.plain(*blocks.measured(report)))


def _plan(report: Report) -> Markup:
    rows = [tag("dt", what) + tag("dd", is_) for what, is_ in sentences.plan_lines(report)]
    typed = tag("pre", "\n".join(sentences.commands(report)))
    more = tag("details", tag("summary", "Commands"), typed)
    return _section(
        "The results" if report.study.source else "The plan", tag("dl", *rows, class_="plan"), more
    )


def _table(report: Report, charts: Charts) -> Markup:
    words = (
        "Click a column header to sort. Hover over or tap a value for details; arrow keys move"
        " between values. In the forest plot a dot is the mean difference, its line the 95 %"
        " interval; a triangle marks a value outside the axis."
    )
    parts = [_note(words), grid.table(report)]
    if "all_arms" in charts:
        plot = tag("figure", *charts["all_arms"])
        parts.append(tag("details", tag("summary", "Forest plot of all arms"), plot))
    rules = sorted({objection.rule for objection in report.objections if not objection.allowed})
    if rules:
        again = f"{sentences.commands(report)[-1]} --allow {' '.join(rules)}"
        parts.append(tag("p", "To include the excluded arms: ", tag("code", again)))
    return _section("Comparison with the baseline", *parts)


def _copies(report: Report) -> Markup:
    """Write the value of every run, and the table for a paper, both folded."""
    seeds = tag("details", tag("summary", "Every seed"), *grid.seeds(report), id="seeds")
    source = tag("pre", latex(report), class_="copied")
    return seeds + tag("details", tag("summary", "LaTeX table"), source)


def _pictures(report: Report) -> Markup:
    """Show side by side the figures and the samples of the first run of each arm."""
    chosen = runs.shown(report)
    parts = []
    for name in runs.figures([*chosen.values()]):
        drawn = [_picture(report, arm, run, name) for arm, run in chosen.items()]
        if any(drawn):
            parts += [tag("h3", name), tag("div", *drawn, class_="panels")]
    written = [
        tag("div", _caption(report, arm, run.folder / "sample.txt"), tag("pre", text))
        for arm, run, text in runs.samples(chosen)
    ]
    if written:
        parts += [tag("h3", "sample.txt"), tag("div", *written, class_="samples")]
    if not parts:
        return Markup()
    words = "Thumbnails from the first finished seed of each arm; click a name for the full file."
    return _section("Figures and samples by arm", _note(words), *parts, id="pictures")


def _picture(report: Report, arm: str, run: Run, name: str) -> Markup:
    path = run.folder / "figures" / name
    if (small := runs.embedded(path)) is None:
        return Markup()
    words = f"{name} of {report.labels[arm]}"
    caption = tag("figcaption", _caption(report, arm, path))
    return tag("figure", caption, tag("img", src=small, alt=words))


def _caption(report: Report, arm: str, path: Path) -> Markup:
    return tag("a", report.labels[arm], href=runs.link(report, path))


def _overview(report: Report, points: Points, charts: Charts) -> Markup:
    """Draw the charts next to the verdicts: the forest plot and the learning curves."""
    figures = [tag("figure", *charts[name]) for name in ("forest", "curves") if name in charts]
    return tag("div", *figures, _note(sentences.curve_words(report, points)))


def _charts(charts: Sequence[Markup]) -> Markup:
    return tag("div", *(tag("figure", chart) for chart in charts), class_="panels")


def _triangles(charts: Sequence[Markup]) -> str:
    """Explain the marks of outliers, if there are any."""
    return f" A triangle marks a value {BEYOND}." if any(BEYOND in c for c in charts) else ""


def _effects(report: Report, crossed: Effects | str | None, charts: Charts) -> Markup:
    if "effects" not in charts:
        return Markup()
    several = isinstance(crossed, Effects) and len(ranked(crossed)[0]) > 1
    over = " over all settings of the other factors" if several else ""
    words = (
        f"Vertical: {sentences.metric_name(report)}. Each dot is a run, each bar the mean of an"
        f" option{over}; * marks the baseline's option.{_triangles(charts['effects'])}"
    )
    parts = [_note(words), _charts(charts["effects"])]
    if isinstance(crossed, str):
        parts.append(_warning(f"Effects are {crossed}."))
    elif crossed is not None:
        main, pairs = ranked(crossed)
        parts += [_warning(f"{line}.") for line in crossed.warnings]
        parts.append(_note(TESTS))
        parts.append(tag("ul", *(tag("li", f"{effect.words()}.") for effect in main)))
        if pairs:
            note = "Interactions: non-parallel lines indicate an interaction. Sorted by p value."
            note += _triangles(charts["interactions"])
            lines = [tag("li", f"{effect.words()}.") for effect in pairs]
            parts += [_note(note), _charts(charts["interactions"])]
            parts.append(tag("ul", *lines))
    return _section("Runs by option" if crossed is None else "Main effects", *parts)


def _cost(charts: Sequence[Markup]) -> Markup:
    if not charts:
        return Markup()
    words = (
        "Means over the finished seeds ± one standard deviation, in the colors of the table."
        f"{_triangles(charts)}"
    )
    return _section("Cost and quality", _note(words), _charts(charts))


def _listed(
    title: str, note: str, heads: Sequence[str], rows: Sequence[Sequence[str]]
) -> Markup | str:
    """Make a section of one table, with a note on it; nothing without rows."""
    if not rows:
        return ""
    return _section(title, *([_note(note)] if note else []), grid.plain(heads, rows))


def _section(title: str, *parts: str, **attributes: object) -> Markup:
    return tag("section", tag("h2", title), *parts, **attributes)


def _note(words: str) -> Markup:
    return tag("p", words, class_="note")


def _warning(words: str) -> Markup:
    return tag("p", words, class_="warn")
