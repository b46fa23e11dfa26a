"""Judge results of other programs: python -m ablate.judge results.csv --baseline NAME

Reads a table with the columns arm, seed and value (or a column for each metric; also metric, block,
step, item), a CSV export of Weights & Biases, a directory of Hydra or Lightning runs with
metrics.csv, or a directory of results of lm-eval. Writes report.html, report.json and table.tex.
In Python: ablate.judge(frame, baseline="NAME", better="lower").
"""

from __future__ import annotations

import sys
from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from types import ModuleType
from typing import TYPE_CHECKING, Any

import yaml

from ablate.cli.command import Arguments, command
from ablate.config.saved import names_file
from ablate.errors import UserError
from ablate.run_files import PLAN, read_mapping, read_text
from ablate.run_files.shape import schema_error
from ablate.study.analysis.comparable import RULES
from ablate.study.analysis.results import (
    MODES,
    Foreign,
    over_items,
    read_results,
    read_rows,
    study_of,
)
from ablate.study.analysis.rows import Report, assemble
from ablate.study.numbers import listed
from ablate.study.report import FOREIGN, write_report
from ablate.study.report.terminal import show
from ablate.study.report.to_json import to_json

if TYPE_CHECKING:
    import pandas as pd

FRAME = Path("the frame")


@dataclass(frozen=True)
class Judged:
    """An arm. verdict: better, worse, equivalent, inconclusive (no difference shown),
    too_few_seeds, excluded or baseline; difference from the baseline, its interval and p: None
    without a comparison."""

    name: str
    verdict: str
    difference: float | None
    interval: tuple[float, float] | None
    p: float | None


class Judgment(dict[str, Any]):
    """The content of report.json."""

    @property
    def arms(self) -> tuple[Judged, ...]:
        return tuple(
            Judged(
                arm["name"],
                arm["verdict"],
                arm["difference"],
                arm["interval"] and tuple(arm["interval"]),
                arm["p"],
            )
            for arm in self["arms"]
        )


def judge(
    frame: pd.DataFrame,
    *,
    baseline: str,
    better: str | None = None,
    metric: str | None = None,
    claims: Sequence[Mapping[str, Any]] = (),
    allow: Collection[str] = (),
) -> Judgment:
    """Compare every arm of a table with the baseline, and write nothing.

    frame: columns arm, seed and value, or one for each metric; also metric, block, step, item.
    better: "lower" or "higher", if the metric's name does not tell. claims: as study.claims. allow:
    comparability rules to ignore. UserError for a table that cannot be judged.
    """
    if better not in (None, *MODES):
        raise UserError(f"better={better}: must be lower or higher")
    frame = frame.rename(columns=str)
    if not frame.columns.is_unique:  # to_dict would keep the last
        raise UserError(f"{FRAME}: has a column twice: {listed(frame.columns, 12)}")
    rows = [(f"row {n}", cells) for n, cells in enumerate(frame.to_dict("records"))]
    results = read_rows(rows, [*frame.columns], FRAME, metric)
    study = study_of(
        results, Path(), baseline=str(baseline), metric=metric, better=better, claims=claims
    )
    return judged(study, allow)


def judged(study: Foreign, allow: Collection[str] = ()) -> Judgment:
    """The content of report.json for a study of read results."""
    return Judgment(to_json(_report(study, allow)))


def _report(study: Foreign, allow: Collection[str]) -> Report:
    return replace(assemble(study, allow=allow), examples=over_items(study))


def main() -> None:
    parser = Arguments(prog="python -m ablate.judge", description=__doc__)
    parser.add_argument("results", type=Path, help="a CSV file, or a directory of runs or results")
    parser.add_argument("--baseline", required=True, metavar="ARM", help="arm to compare with")
    parser.add_argument("--metric", help="metric to judge, if there are several")
    parser.add_argument(
        "--better", choices=[*MODES], help="better values of the metric, if its name does not tell"
    )
    parser.add_argument(
        "--arm",
        type=lambda text: text.split(","),
        default=[],
        metavar="COLUMN[,COLUMN]",
        help="columns that name the arms of a table (default: arm; of W&B: Name without the seed)",
    )
    parser.add_argument("--claims", type=Path, metavar="FILE", help="YAML file with study.claims")
    parser.add_argument(
        "--to", type=Path, metavar="DIR", help="output directory (default: that of the results)"
    )
    parser.add_argument(
        "--allow",
        nargs="+",
        action="extend",
        default=[],
        metavar="RULE",
        help=f"ignore a comparability rule and flag the affected arms: {', '.join(RULES)}",
    )
    args = parser.parse_args()
    results = read_results(args.results, args.metric, args.arm)
    folder = args.to or (args.results if args.results.is_dir() else args.results.parent)
    study = study_of(
        results,
        folder,
        baseline=args.baseline,
        metric=args.metric,
        better=args.better,
        claims=_claims(args.claims) if args.claims else (),
        command=sys.argv[1:],
    )
    report = _report(study, args.allow)
    _require_own(folder)
    folder.mkdir(parents=True, exist_ok=True)
    show(write_report(report))


def _claims(file: Path) -> list[dict[str, Any]]:
    """Read a list of claims, or a mapping with study.claims or claims."""
    with names_file(file):
        content = yaml.safe_load(read_text(file))
        for key in ("study", "claims"):
            content = content.get(key, content) if isinstance(content, dict) else content
        if wrong := schema_error(content, [dict]):
            raise UserError(f"{wrong}: a file of claims is a list of mappings")
    claims: list[dict[str, Any]] = content
    return claims


def _require_own(folder: Path) -> None:
    """Raise UserError if the report would take the place of files that are not those of a report of
    this command."""
    there = [name for name in FOREIGN if (folder / name).exists()]
    ours = read_mapping(folder / "report.json").keys() >= {"version", "study", "arms"}
    if there and (not ours or (folder / PLAN).exists()):
        raise UserError(
            f"{folder / there[0]} exists, and is not of ablate.judge: add --to DIR, another folder"
        )


class _Callable(ModuleType):
    """`import ablate.judge` puts this module in the place of the function of the same name."""

    __call__ = staticmethod(judge)


sys.modules[__name__].__class__ = _Callable

if __name__ == "__main__":
    command(main)
