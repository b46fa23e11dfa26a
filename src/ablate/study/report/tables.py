"""The tables as text: report.md for GitHub, table.tex for a paper, runs.csv for everything else."""

import csv
import io
import re
import unicodedata
from collections.abc import Collection, Iterable, Mapping, Sequence
from pathlib import Path
from typing import Any

from ablate.machine.terminal.say import printable
from ablate.study.analysis.collect import Run, Study
from ablate.study.analysis.effects import Effects
from ablate.study.numbers import MINUS, NOTHING, probability, signed
from ablate.study.report import blocks, claims, sentences, trouble
from ablate.study.report.crossed import TESTS, in_short, ranked
from ablate.study.report.points import Points
from ablate.study.report.rows import Report, Row

# Numbers of quotes and grave accents, which ligatures and babel's languages take for others.
TEX = {
    '"': r"\char34{}", "`": r"{}\char96{}", "|": r"\textbar{}",
    "\\": r"\textbackslash{}", "&": r"\&", "%": r"\%", "$": r"\$", "#": r"\#", "_": r"\_",
    "{": r"\{", "}": r"\}", "~": r"\textasciitilde{}", "^": r"\textasciicircum{}",
    "<": r"\textless{}", ">": r"\textgreater{}", MINUS: "$-$", "±": r"$\pm$",
    NOTHING: r"\textendash{}", "→": r"$\rightarrow$", "…": r"\ldots{}", "\u00d7": r"$\times$",
    "≥": r"$\geq$", "≤": r"$\leq$",
}  # fmt: skip
# Letters and signs that LaTeX prints in every document.
PLAIN = re.compile(
    "[ -~À-ÏÑ-ÝßŁłŒœà-ïñ-ýÿĆćČčĎďĚěĞğİıŃńŇňŐőŘřŚśŞşŠšŤťŮůŰűŹźŻżŽž\u2014\u2018\u2019\u201c\u201d]"
)
# Any other character if the document can print it; else its code point.
UNICODE = r"""\makeatletter
\DeclareRobustCommand\unicodechar[2]{\ifdefined\Umathchar#1\else\def\@tempa{OT1}%
  \ifx\@tempa\f@encoding#2\else\ifcsname u8:\detokenize{#1}\endcsname#1\else#2\fi\fi\fi}
\makeatother"""
FIGURES = {
    "forest.png": "difference from the baseline",
    "curves.png": "learning curves",
}
HEADS = ("arm", "n", "metric", "difference (95 % interval)", "relative", "p (Holm)", "verdict")


def _cells(row: Row, report: Report) -> list[str]:
    """Return the columns of report.md."""
    return [
        row.arm.name + _badges(row),
        str(row.summary.n),
        sentences.mean_words(row, report),
        sentences.difference_words(row, report),
        sentences.relative(row, report) or NOTHING,
        probability(row.comparison.p if row.comparison else None),
        row.short_verdict,
    ]


def _badges(row: Row) -> str:
    return "".join(f" ({badge})" for badge in row.badges if badge != row.arm.name)


def markdown(
    report: Report,
    crossed: Effects | str | None = None,
    points: Points | None = None,
    figures: Collection[str] = (),
) -> str:
    """Write the report as GitHub's Markdown. figures: files next to it, to be shown with
    the caption of the curves in `points`."""
    heads = [report.metric if head == "metric" else head for head in HEADS]
    lines = [f"# {_escaped(report.study.name)}", ""]
    lines += [f"{_escaped(line)}\n" for line in sentences.purpose(report)]
    lines += [_escaped(sentences.plan_sentence(report)), ""]
    if report.claims or report.dropped:
        lines += ["## Claims", "", *_grid(claims.HEADS, claims.rows(report.claims)), ""]
        lines += [f"{_escaped(line)}\n" for line in claims.remarks(report.dropped)]
    lines += ["## Results", ""]
    lines += [f"- {_escaped(line)}." for line in in_short(report, crossed)]
    lines += [f"- **{head}:** {_escaped(arms)}." for _, head, arms in sentences.answers(report)]
    lines += [f"- {_escaped(sentences.reference(report))}", ""]
    lines += [f"Metric: {_escaped(sentences.metric_name(report))}.", ""]
    lines += _grid(heads, [_cells(row, report) for row in report.rows], ":--- ---: ---: ---: ---:")
    lines += ["", *(f"{_escaped(line)}\n" for line in [*report.marks, *sentences.sure(report)])]
    if report.also:
        lines += ["## Other metrics", "", _escaped(blocks.ALSO), ""]
        lines += [*_grid(*blocks.by_metric(report)), ""]
    if report.measures:
        lines += ["## Measures", "", _escaped(blocks.MEASURED), ""]
        lines += [*_grid(*blocks.measured(report)), ""]
    lines += _blocks(report)
    for name, words in FIGURES.items():
        file = f"figures/{report.named(name)}"
        lines += [f"![{words}]({file})", ""] if file in figures else []
    lines += [_escaped(sentences.curve_words(report, points)), ""] if points else []
    lines += [*_factors(crossed), "## The plan", ""]
    lines += [f"- {what}: {_escaped(words)}" for what, words in sentences.plan_lines(report)]
    lines += ["", *_fenced("\n".join(sentences.commands(report))), "", "## Config differences", ""]
    lines += _grid(trouble.DIFFERING, trouble.differing(report))
    if rows := trouble.tuning(report):
        lines += ["", f"## {trouble.TUNED}", "", _escaped(trouble.tuned(report)), ""]
        lines += _grid(trouble.TUNING, rows)
    if rows := trouble.troubles(report):
        lines += ["", "## Problems", "", *_grid(trouble.TROUBLES, rows)]
    return "\n".join(lines) + "\n"


def _blocks(report: Report) -> list[str]:
    if not report.blocks:
        return []
    lines = [f"## {_escaped(blocks.title(report))}", "", blocks.NOTE, ""]
    lines += [*_grid(*blocks.by_block(report)), ""]
    if climbed := blocks.climbs(report):
        lines += [_escaped(blocks.CLIMB), "", *_grid(*blocks.on_ladder(climbed)), ""]
    return lines


def _factors(crossed: Effects | str | None) -> list[str]:
    """Write main effects and interactions, if factors are crossed."""
    if crossed is None:
        return []
    if isinstance(crossed, str):
        lines = [f"Effects are {crossed}."]
    else:
        main, pairs = ranked(crossed)
        lines = [TESTS, "", *(f"- {effect.words()}." for effect in [*main, *pairs])]
        lines += [f"- {line}." for line in crossed.warnings]
    return ["## Main effects", "", *map(_escaped, lines), ""]


def _grid(heads: Sequence[str], rows: Sequence[Sequence[str]], align: str = "") -> list[str]:
    marks = [*align.split(), *([":---"] * len(heads))][: len(heads)]
    lines = [[_escaped(cell.replace("\n", "; ")) for cell in line] for line in (heads, *rows)]
    return ["| " + " | ".join(line) + " |" for line in (lines[0], marks, *lines[1:])]


def _escaped(words: str) -> str:
    """Escape a text, so that it stays in its cell and is not read as markup."""
    return " ".join(re.sub(r"[\\|*_<`\[~$]", r"\\\g<0>", words).split())


def _fenced(words: str) -> list[str]:
    """Show a text as it is, between fences that are longer than any in it."""
    fence = "`" * max(3, *(len(run) + 1 for run in re.findall("`+", words)), 3)
    return [fence, words, fence]


def latex(report: Report) -> str:
    """Write a table with the width of an article's text. Its first column wraps; verdicts are a
    word each, since the other columns have their evidence."""
    heads = ["arm", "n", report.metric, r"difference [95 % interval]", "p", "verdict"]
    lines = [
        r"% needs \usepackage{booktabs,tabularx}; generated by ablate",
        r"\begin{table}",
        r"\centering\small\setlength{\tabcolsep}{4pt}",
        rf"\caption{{{tex(f'{sentences.plan_sentence(report)} {OF_TABLE}')}}}",
        rf"\label{{tab:{_label(report.study.name)}}}",
        r"\begin{tabularx}{\linewidth}{@{}>{\raggedright\arraybackslash}Xrrrrl@{}}",
        r"\toprule",
        " & ".join(map(tex, heads)) + r" \\",
        r"\midrule",
        *(" & ".join(_cells_of_tex(row, report)) + r" \\" for row in report.rows),
        r"\bottomrule",
        r"\end{tabularx}",
        r"\end{table}",
    ]
    if any(r"\unicodechar" in line for line in lines):
        lines.insert(1, UNICODE)
    notes = [rf"% {' '.join(line.split())}" for line in [*report.marks, *sentences.sure(report)]]
    return "\n".join([*lines, *notes]) + "\n"


OF_TABLE = (
    "Means ± standard deviation over n seeds, differences from the baseline with 95 % intervals,"
    " and p of the difference, both adjusted by Holm."
)
VERDICTS = {
    "inconclusive": "not shown",
    "too_few_seeds": "too few seeds",
    "excluded": "not compared",
    "baseline": NOTHING,
}


def _cells_of_tex(row: Row, report: Report) -> list[str]:
    name = re.sub(r"[=.,/]|\\_", r"\g<0>\\allowbreak{}", tex(report.labels[row.arm.name]))
    name = re.sub(r"^[*\[]", r"{\g<0>}", name)  # behind \\ and \midrule these are arguments
    reach = row.comparison.interval if row.comparison else None
    difference = signed(row.difference, report.decimals)
    if reach is not None:
        low, high = (signed(end, report.decimals) for end in (reach.low, reach.high))
        difference += f" [{low}, {high}]"
    p = probability(row.comparison.p if row.comparison else None)
    cells = [str(row.summary.n), sentences.mean_words(row, report), difference, p]
    allowed = f" [{', '.join(row.allowed)}]" if row.allowed else ""
    verdict = VERDICTS.get(row.kind, row.kind) + allowed
    return [" ".join(filter(None, [name, tex(_badges(row))])), *map(tex, [*cells, verdict])]


def tex(words: str) -> str:
    """Escape every character that TeX takes for a command, part of a ligature or an error."""
    line = " ".join(printable(unicodedata.normalize("NFC", words)).split())
    escaped = "".join(map(_tex_character, line))
    return re.sub(r"([-',])(?=\1)", r"\1{}", escaped)


def _tex_character(character: str) -> str:
    if character in TEX or PLAIN.match(character):
        return TEX.get(character, character)
    return rf"\unicodechar{{{character}}}{{U+{ord(character):04X}}}"


def _label(name: str) -> str:
    return re.sub(r"[^a-zA-Z0-9:]", "-", name)


def runs_csv(report: Report) -> str:
    """Write one row per run, tuning runs included: factors, folder, state, every number. The arm is
    the one that trained it; `same_as` names the others that share the run."""
    study = report.study
    rows = [*_rows("run", study.runs, study), *_rows("tune", study.tuning, study)]
    columns = list(dict.fromkeys(name for row in rows for name in row))
    text = io.StringIO()
    writer = csv.DictWriter(text, columns, lineterminator="\n")
    writer.writeheader()
    writer.writerows(rows)
    return text.getvalue()


def _rows(kind: str, runs: Iterable[Run], study: Study) -> list[dict[str, Any]]:
    """Return a row per folder; of several cells, the first one's arm trained there (cells.py)."""
    cells: dict[Path, list[Run]] = {}
    for run in runs:
        cells.setdefault(run.folder, []).append(run)
    return [
        _flat(kind, run, [other.arm for other in others], study.options(run.arm, run.block))
        for run, *others in cells.values()
    ]


def _flat(kind: str, run: Run, others: Sequence[str], options: Mapping[str, Any]) -> dict[str, Any]:
    head: dict[str, Any] = {
        "arm": run.arm,
        "same_as": "; ".join(others),
        "seed": run.seed,
        "kind": kind,
        "state": run.state,
        "run_id": run.run_id,
        "folder": run.folder.name,
        "detail": run.detail,
    }
    for name in (
        *("flops_per_step", "steps", "best_step", "train_seconds", "wall_seconds"),
        "peak_memory_bytes",
    ):
        head[name] = run.result.get(name)
    head["rate"] = run.number("throughput", "value")
    for name in ("total", "trainable", "non_embedding"):
        head[f"parameters/{name}"] = run.number("parameters", name)
    choices, metrics = (run.result.get(key, {}) for key in ("choices", "metrics"))
    head = {"arm": run.arm, "same_as": "", "seed": run.seed, **options} | head
    return head | {f"choice/{key}": option for key, option in choices.items()} | metrics
