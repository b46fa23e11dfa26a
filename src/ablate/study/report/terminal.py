"""Print the tables of the report and the paths of its files."""

import sys
from typing import Any

from rich.table import Column
from rich.table import Table as RichTable

from ablate.machine.terminal.console import Console
from ablate.machine.terminal.say import say
from ablate.study.analysis.comparable import lines
from ablate.study.analysis.offline import sync_command
from ablate.study.report import WrittenReport
from ablate.study.report.sentences import CLAIM_COLORS, VERDICT_WORDS

WIDE = 100  # columns of a terminal that shows relative differences as well
LONGEST_NAME = 32  # columns of an unbroken name; `min_width` would push verdicts off a screen


def show(written: WrittenReport) -> None:
    """Print to standard output; the rules that kept arms from comparison go to standard error."""
    report, content = written.report, written.content
    console = Console(highlight=False, markup=False)
    is_wide = console.width >= WIDE
    columns = [each for each in content["columns"] if each.terminal and is_wide >= each.is_wide]
    longest = max(len(line.name) for line in content["arms"])
    width = longest if longest <= min(LONGEST_NAME, console.width // 3) else None

    def titled(*columns: Column, **words: Any) -> RichTable:
        of_arm = Column("arm", overflow="fold", width=width)
        return RichTable(of_arm, *columns, **words, title_justify="left", caption_justify="left")

    table = titled(
        *(Column(each.terminal, justify="right", overflow="fold") for each in columns),
        Column("verdict", overflow="fold"),
        title=f"{content['name']}: {content['metric']}, {content['direction']}",
        caption=content["reference"],
    )
    for arm in content["arms"]:
        words = [cell.words for column, cell in arm.cells if column in columns]
        style = VERDICT_WORDS[arm.row.kind].style
        table.add_row(arm.name, *words, arm.row.short_verdict, style=style)
    console.print(table)
    for claims in content["claims"]:
        for cells, entry in zip(claims.rows, report.claims, strict=True):
            console.print(": ".join(cells), style=CLAIM_COLORS[entry.verdict][1])
        for remark in claims.remarks:
            console.print(remark)
    for other in [*content["blocks"], *content["metrics"]]:
        heads = (Column(head, overflow="fold") for head in other.heads[1:])
        table = titled(*heads, title=other.title)
        for cells in other.rows:
            table.add_row(*cells)
        console.print(table)
        console.print(other.note)
    for line in [*(f"{line}." for line in content["shown_effects"]), *content["remarks"],
                 *content["certainty"][1:]]:  # fmt: skip
        console.print(line)
    console.print("Output:", style="bold")
    for path in written.files:
        console.print(f"  {path}", soft_wrap=True)
    if command := sync_command(report.study):
        console.print("To upload its runs to W&B:", style="bold")
        console.print(f"  {command}", soft_wrap=True)
    for line in lines(report.objections):
        say(line, file=sys.stderr)
