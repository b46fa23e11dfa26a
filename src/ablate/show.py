"""Attention maps of a finished run, or the gates of its LSTM: python -m ablate.show RUN_DIR."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Any

from ablate.cli.command import Arguments, add_run_dir, command
from ablate.errors import UserError
from ablate.figures.save import FORMATS, saved_as

if TYPE_CHECKING:
    from ablate.training.load import Run


def text_example(run: Run, text: str) -> dict[str, Any]:
    """A user's text for a language model, as a batch of size 1."""
    if not run.data.reads_text:
        raise UserError(f"--text: {run.path} was not trained on text; use --index")
    if not text:
        raise UserError("--text is empty: pass at least one character")
    return run.data.from_text(text)


def source_example(run: Run, source: str) -> dict[str, Any]:
    """A user's source and the model's output for it, as a batch of size 1."""
    if not run.task.takes_source:
        raise UserError(f"--source: {run.path} was not trained on pairs; use --text or --index")
    if not source.strip():
        raise UserError("--source is empty: pass at least one character")
    return run.task.answered(source)


def main() -> None:
    parser = Arguments(
        prog="python -m ablate.show",
        description="Plot the attention maps of a finished run, one file per layer\n(the gates for"
        " model=rnn_lm model.cell=lstm).",
    )
    add_run_dir(parser)
    parser.add_argument("--layer", type=int, help="plot only this layer, counted from 1")
    parser.add_argument("--head", type=int, help="plot only this head, counted from 1")
    chosen = parser.add_mutually_exclusive_group()
    chosen.add_argument("--text", help="input text (default: an example of the validation split)")
    chosen.add_argument("--source", help="source sequence to decode; its attention is plotted")
    chosen.add_argument("--index", type=int, help="index of the validation example, from 0")
    parser.add_argument(
        "--raw", action="store_true", help="also write the attention weights to attention.npz"
    )
    parser.add_argument(
        "--out", type=Path, help="directory for the figures (default: RUN_DIR/figures)"
    )
    parser.add_argument(
        "--format",
        choices=FORMATS,
        default="png",
        help="file format; pdf or svg for a paper (default: png)",
    )
    args = parser.parse_args()
    from ablate.task.attention import attention_figures
    from ablate.task.experts import expert_figures
    from ablate.training.load import load

    run = load(args.run_dir, allow=args.allow)
    options: dict[str, Any] = {"layer": args.layer, "head": args.head}
    if args.text is not None:
        options["examples"] = [text_example(run, args.text)]
    elif args.source is not None:
        options["examples"] = [source_example(run, args.source)]
        options["caption"] = "the target is what the model wrote"
    elif args.index is not None:
        options["examples"] = [run.task.numbered(args.index)]
    folder = args.out or run.path / "figures"
    with saved_as(args.format):
        paths = attention_figures(run.task, folder, run=run.title, raw=args.raw, **options)
        if all(value is None for value in options.values()):
            paths += expert_figures(run.task, folder)
    if not paths:
        raise UserError(f"{run.path}: no attention maps or LSTM gates to plot for this model")
    for path in paths:
        print(path)


if __name__ == "__main__":
    command(main)
