"""What a study found: python -m ablate.report outputs/attention_scores.

Writes report.html, report.md, table.tex, runs.csv and figures/ into the study's folder, and prints
the table. --wandb sends the report to Weights & Biases, too. --status only says how far a study is,
from anywhere.
"""

from pathlib import Path

from ablate.cli.command import Arguments, command
from ablate.errors import UserError
from ablate.study.analysis.collect import PLAN, not_a_study
from ablate.study.analysis.comparable import RULES
from ablate.terminal.console import Console


def main() -> None:
    parser = Arguments(prog="python -m ablate.report", description=__doc__)
    parser.add_argument("study_dir", type=Path, help="folder of a study, outputs/NAME")
    group = parser.add_mutually_exclusive_group()
    group.add_argument("--status", action="store_true", help="progress of the runs, no report")
    group.add_argument("--wandb", action="store_true", help="send the report to Weights & Biases")
    parser.add_argument("--metric", help="another than the study's, such as val/perplexity")
    parser.add_argument("--mode", choices=("min", "max"), help="which value of --metric is better")
    parser.add_argument(
        "--allow",
        nargs="+",
        action="extend",
        default=[],
        metavar="RULE",
        help=f"compare arms in spite of a rule, and mark them: {', '.join(RULES)}",
    )
    args = parser.parse_args()
    if args.status:
        from ablate.study.launch.live import status_table

        if not (args.study_dir / PLAN).exists():
            raise UserError(not_a_study(args.study_dir))
        Console().print(status_table(args.study_dir))
        return
    from ablate.study import publish
    from ablate.study.report import write_report

    if args.wandb:
        publish.require_workspaces()
    written = write_report(args.study_dir, allow=args.allow, metric=args.metric, mode=args.mode)
    if args.wandb:
        publish.publish(written)


if __name__ == "__main__":
    command(main)
