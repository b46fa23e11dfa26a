"""Print the table of the report and the paths of its files."""

import sys

from rich.table import Column, Table

from ablate.machine.terminal.console import Console
from ablate.machine.terminal.say import say
from ablate.study.analysis.offline import sync_command
from ablate.study.metric_words import direction
from ablate.study.report import Written, blocks, sentences
from ablate.study.report.claims import remarks
from ablate.study.report.crossed import in_short

CLAIMS = {"confirmed": "green", "refuted": "red"}
WIDE = 100  # columns of a terminal that shows relative differences as well
LONGEST_NAME = 32  # of an arm that is not broken, in columns
STYLES = {"better": "green", "worse": "red", "equivalent": "cyan", "excluded": "yellow"}


def show(written: Written) -> None:
    """Print to standard output; the rules that kept arms from comparison go to standard error."""
    report = written.report
    console = Console(highlight=False, markup=False)
    is_wide = console.width >= WIDE
    longest = max(len(row.arm.name) for row in report.rows)
    most = min(LONGEST_NAME, console.width // 3)  # `min_width` would push the verdicts off a screen
    table = Table(
        Column("arm", overflow="fold", width=longest if longest <= most else None),
        Column("n", justify="right", overflow="fold"),
        Column(report.metric, justify="right", overflow="fold"),
        Column("difference (95% interval)", justify="right", overflow="fold"),
        *([Column("relative", justify="right")] if is_wide else []),
        Column("verdict", overflow="fold"),
        title=f"{report.study.name}: {report.metric}, {direction(report.mode)}",
        caption=sentences.reference(report),
        title_justify="left",
        caption_justify="left",
    )
    for row in report.rows:
        table.add_row(
            row.arm.name,
            str(row.summary.n),
            sentences.mean_words(row, report),
            sentences.difference_words(row, report),
            *([sentences.relative(row, report)] if is_wide else []),
            row.short_verdict,
            style="bold" if row.arm.is_baseline else STYLES.get(row.kind),
        )
    console.print(table)
    if report.measures:
        heads, rows = blocks.measured(report)
        measures = Table(*(Column(head, overflow="fold") for head in heads))
        for cells in rows:
            measures.add_row(*cells)
        console.print(measures)
    for entry in report.claims:
        line = f"{entry.scaled_verdict}: {entry.sentence}: {entry.evidence}"
        console.print(line, style=CLAIMS.get(entry.verdict))
    lines = [*remarks(report.dropped), *blocks.lines(report)]
    lines += [
        f"{arm}: {words} over {examples} examples, better on {better} of them"
        for arm, words, better, examples, _ in sentences.example_rows(report)
    ]
    lines += [f"{line}." for line in in_short(report, written.crossed)]
    for line in [*lines, *report.marks, *sentences.sure(report)[1:]]:
        console.print(line)
    console.print("Output:", style="bold")
    for path in written.files:
        console.print(f"  {path}", soft_wrap=True)
    if command := sync_command(report.study):
        console.print("To upload its runs to W&B:", style="bold")
        console.print(f"  {command}", soft_wrap=True)
    for line in written.refusals:
        say(line, file=sys.stderr)
