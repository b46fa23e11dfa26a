"""Evaluate a run on other data or lengths: python -m ablate.evaluate RUN_DIR data.seq_len=32

The weights, the tokenizer and the split stay as in training. Other keys of data, of generation
(task.beam) and of the extrapolation of positions (pos_enc.scaling) may be overridden. A list
(data.seq_len=16,32,64) produces one column per value.
"""

from __future__ import annotations

import json
from typing import TYPE_CHECKING, Any

from rich.table import Column, Table

from ablate.cli.command import Arguments, add_run_dir, command
from ablate.config.overrides import value_text, values_of, variants
from ablate.errors import UserError
from ablate.machine.terminal.console import Console

if TYPE_CHECKING:
    from ablate.training.load import Run

WIDEST = 4  # variants side by side


def evaluate(run: Run, changes: dict[str, Any]) -> dict[str, float]:
    """Validation and test of a run's best weights with some keys of its data or search changed."""
    from ablate.training.measure import measured_with, require_effect

    require_effect(run.task, run.data, run.config, changes)
    return measured_with(run.task, run.data, run.config, changes)


def main() -> None:
    parser = Arguments(prog="python -m ablate.evaluate", description=__doc__)
    add_run_dir(parser)
    parser.add_argument(
        "changes",
        nargs="*",
        default=[],
        metavar="KEY=VALUE[,VALUE...]",
        help="overrides to evaluate under, such as data.seq_len=128",
    )
    parser.add_argument("--json", action="store_true", help="print JSON lines, not a table")
    parser.add_argument(
        "--predictions",
        action="store_true",
        help="write RUN_DIR/predictions.csv: the loss and predictions for each example of the test"
        " split (without one: validation)",
    )
    args = parser.parse_intermixed_args()  # options may come between the changes
    from ablate.training.load import load

    run = load(args.run_dir, allow=args.allow)
    if args.predictions:
        from ablate.training.predictions import write_predictions

        if args.changes:
            raise UserError("--predictions are of the run as it was trained; leave KEY=VALUE out")
        if args.json:
            raise UserError("--predictions writes a CSV file; leave --json out")
        print(write_predictions(run))
        return
    rows, refused = [], []
    for row in variants(values_of(args.changes)):
        try:
            rows.append((row, evaluate(run, row)))
        except UserError as error:  # the other rows are still worth having
            refused.append(str(error))
    if args.json:
        for row, metrics in rows:
            print(json.dumps({**row, **metrics}))
    elif rows:
        show(rows)
    if refused:
        raise UserError(*dict.fromkeys(refused))


def show(rows: list[tuple[dict[str, Any], dict[str, float]]]) -> None:
    """A table with a row for each measure and a column for each variant; of more than `WIDEST`, a
    row for each variant."""
    # Not every variant has every measure.
    measures = sorted({name for _, values in rows for name in values if name.count("/") == 1})
    if len(rows) > WIDEST:
        keys = [*rows[0][0]]
        table = Table(*(Column(key, justify="right") for key in [*keys, *measures]))
        for row, values in rows:
            changed_keys = (value_text(row[key]) for key in keys)
            table.add_row(*changed_keys, *(cell(values, name) for name in measures))
        Console(soft_wrap=True).print(table)
        return
    heads = [" ".join(f"{k}={value_text(v)}" for k, v in row.items()) or "value" for row, _ in rows]
    columns = (Column(head, justify="right") for head in heads)
    table = Table(Column("measure", no_wrap=True), *columns)
    for name in measures:
        table.add_row(name, *(cell(values, name) for _, values in rows))
    Console(soft_wrap=True).print(table)


def cell(values: dict[str, float], name: str) -> str:
    return f"{values[name]:.4f}" if name in values else ""


if __name__ == "__main__":
    command(main)
