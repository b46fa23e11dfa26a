"""Write the report of a study: python -m ablate.report outputs/attention_scores.

Writes report.html, report.md, report.json, table.tex, runs.csv and figures/ into the study's
directory, and prints the table; with --metric or --baseline the names have a suffix, such as
report-val_perplexity.html. --wandb also uploads the report to Weights & Biases. --status only shows
the progress of a study, from any machine. --check exits with 1 if one of its claims is refuted. For
a directory of runs without a plan, such as outputs/runs, prints a comparison table of the runs.
--wandb with the directory of one run uploads that run.
"""

from __future__ import annotations

from argparse import Namespace
from pathlib import Path
from typing import TYPE_CHECKING

from ablate.cli.command import Arguments, command
from ablate.errors import RunFailed, UserError
from ablate.machine.terminal.console import Console
from ablate.run_files import PLAN, RESULT, named_folder
from ablate.study.analysis.collect import not_a_study
from ablate.study.analysis.comparable import RULES

if TYPE_CHECKING:
    from ablate.study.analysis.rows import Report


def main() -> None:
    args = _arguments()
    folder, planned = args.study_dir, (args.study_dir / PLAN).exists()
    if args.status or (args.wandb and not planned):
        names = ("metric", "baseline", "mode", "allow", "examples")
        if unused := ", ".join(f"--{name}" for name in names if getattr(args, name)):
            raise UserError(
                f"{unused}: no effect with --status, or with --wandb of a run; leave it out"
            )
    if args.status:
        from ablate.study.launch.live import status_table

        if not planned:
            raise UserError(not_a_study(folder))
        Console().print(status_table(folder))
        return
    if args.wandb and not planned and (folder / RESULT).is_file():
        from ablate.training.record import send_run

        send_run(folder)
        return
    from ablate.study.any_runs import has_runs, show_runs

    if not planned and has_runs(folder):
        if args.wandb or args.check or args.baseline or args.allow or args.examples:
            raise UserError(not_a_study(folder))
        show_runs(folder, args.metric, args.mode)
        return
    _report(args)


def _report(args: Namespace) -> None:
    """Write the report of a study, print it, and upload or check it if that is wanted."""
    from ablate.study.report import write
    from ablate.study.report.terminal import show

    if args.wandb:
        from ablate.study import publish

        publish.require_workspaces()
    if args.examples:
        from ablate.training.predictions import losses
    written = write(
        args.study_dir,
        allow=args.allow,
        metric=args.metric,
        mode=args.mode,
        baseline=args.baseline,
        losses=(lambda run: losses(run.folder)) if args.examples else None,
    )
    show(written)
    if args.wandb:
        publish.publish(written)
    if args.check:
        check(written.report)


def _arguments() -> Namespace:
    parser = Arguments(prog="python -m ablate.report", description=__doc__)
    parser.add_argument("study_dir", type=Path, help="directory of a study, outputs/NAME or NAME")
    group = parser.add_mutually_exclusive_group()
    group.add_argument(
        "--status", action="store_true", help="show the progress of the runs, without a report"
    )
    group.add_argument("--wandb", action="store_true", help="upload the report to Weights & Biases")
    group.add_argument(
        "--check", action="store_true", help="exit with 1 if a claim of the study is refuted"
    )
    parser.add_argument(
        "--examples",
        action="store_true",
        help="also compare the arms per example of the test split (without one: validation);"
        " writes the missing predictions.csv of the runs (custom components: set"
        " ABLATE_ALLOW=MODULE)",
    )
    parser.add_argument(
        "--metric", help="metric to report instead of the study's, e.g. val/perplexity"
    )
    parser.add_argument("--baseline", metavar="ARM", help="use this arm as the baseline")
    parser.add_argument(
        "--mode",
        choices=("min", "max"),
        help="whether lower or higher values of --metric are better",
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
    args.study_dir = named_folder(args.study_dir, PLAN)
    return args


def check(report: Report) -> None:
    """Raise RunFailed, which ends the command with 1, if a claim is refuted."""
    from ablate.study.analysis.claims import REFUTED

    if not report.claims:
        raise UserError(f"--check: {report.study.folder} has no claims (study.claims)")
    refuted = [entry.sentence for entry in report.claims if entry.verdict == REFUTED]
    if refuted:
        raise RunFailed(f"refuted: {'; '.join(refuted)}")


if __name__ == "__main__":
    command(main)
