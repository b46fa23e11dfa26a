"""Put the claims of finished studies into docs/claims.md; those of other studies stay.

python benchmarks/claims.py outputs/recall_mixers outputs/claims/*
"""

import re
import sys
from collections.abc import Iterator
from pathlib import Path

import yaml

from ablate.study.analysis.collect import Study, collect
from ablate.study.report.claims import entries

PAGE = Path(__file__).parents[1] / "docs" / "claims.md"
HEAD = """# Claims

What papers and lectures say of attention models, said before the first run of a study
(`study.claims`) and judged by it: confirmed, the effect is larger than what counts; refuted, it is
smaller; undecided, more seeds would be needed. Small models on a laptop: a verdict is on these
settings, not on the paper's. Effects are positive in the sense of the claim, with 95 % intervals; p
after Holm over the claims of the study. Made by `python benchmarks/claims.py STUDIES`.
"""


def rows(study: Study) -> Iterator[tuple[str, ...]]:
    """A row for each claim."""
    found, _ = entries(study)
    code = {str(run.provenance.get("git", {}).get("commit") or "")[:7] for run in study.runs} - {""}
    for entry in found:
        claim = entry.settled.claim
        yield (
            claim.says.rstrip("."),
            claim.source,
            f"`python -m ablate sweep={study.plan['sweep']}`",
            f"**{entry.verdict}**",
            entry.evidence,
            f"{str(study.plan['written'])[:10]}, {', '.join(sorted(code)) or 'no commit'}",
        )


def earlier(text: str) -> Iterator[tuple[str, ...]]:
    """The rows of a page that was made before."""
    for line in text.splitlines():
        if line.startswith("| ") and "`python -m ablate sweep=" in line:
            cells = re.split(r" (?<!\\)\| ", line.removeprefix("| ").removesuffix(" |"))
            yield tuple(cell.replace("\\|", "|") for cell in cells)


def page(studies: list[Study], before: str) -> str:
    by_command: dict[str, list[tuple[str, ...]]] = {}
    for row in earlier(before):
        by_command.setdefault(row[2], []).append(row)
    for study in studies:
        made = [*rows(study)]
        by_command[made[0][2]] = made
    every = [row for of_study in by_command.values() for row in of_study]
    verdicts = [row[3].strip("*") for row in every]
    counts = ", ".join(f"{verdicts.count(kind)} {kind}" for kind in dict.fromkeys(verdicts))
    heads = ("claim", "source", "command", "verdict", "evidence", "date, commit")
    lines = [heads, ("---",) * len(heads), *every]
    cells = [[cell.replace("|", "\\|") for cell in line] for line in lines]
    table = "\n".join(f"| {' | '.join(line)} |" for line in cells)
    return f"{HEAD}\n{len(every)} claims: {counts}.\n\n{table}\n{reasons(every)}"


def reasons(every: list[tuple[str, ...]]) -> str:
    """What is known about claims that came out otherwise: claims_why.yaml, by their sentences."""
    known = yaml.safe_load(Path(__file__).with_name("claims_why.yaml").read_text())
    refuted = {row[0]: row for row in every if row[3] == "**refuted**"}
    if gone := known.keys() - refuted.keys():
        raise SystemExit(f"claims_why.yaml: not refuted: {', '.join(sorted(gone))}")
    lines = [f"- {says} ({refuted[says][2]}): {why.strip()}" for says, why in known.items()]
    return "\n## What is known about those refuted\n\n" + "\n".join(lines) + "\n"


if __name__ == "__main__":
    studies = [collect(Path(name)) for name in sys.argv[1:]]
    PAGE.write_text(page(studies, PAGE.read_text()))
