"""Generate output with a finished run: python -m ablate.generate RUN_DIR --prompt "...".

The options are those of the kind of model; python -m ablate.generate RUN_DIR --help lists them."""

from __future__ import annotations

import sys
from argparse import SUPPRESS
from collections.abc import Sequence
from typing import TYPE_CHECKING, Any

from ablate.cli.command import Arguments, add_run_dir, command
from ablate.config.keys import parts_in
from ablate.config.parts import class_attribute
from ablate.errors import UserError, suggest
from ablate.machine.terminal.say import put

if TYPE_CHECKING:
    from ablate.training.load import Run

PROG = "python -m ablate.generate"


def parser_of(presenter: Any) -> Arguments:
    """Parses the options of a kind of model."""
    parser = Arguments(prog=f"{PROG} RUN_DIR", argument_default=SUPPRESS)
    group = parser.add_argument_group(f"{presenter.family} models")
    for name, keywords in presenter.options.items():
        group.add_argument(option(name), **keywords)
    return parser


def families() -> dict[str, Any]:
    """A presenter of each kind of model that generates, by `family`."""
    every = [class_attribute(task["_target_"], "presenter") for task in parts_in("task")]
    return {presenter.family: presenter for presenter in every if presenter.family}


def options_for(run: Run, words: Sequence[str]) -> dict[str, Any]:
    """The options that the words set. UserError for one of another kind of model."""
    presenter = run.task.presenter
    parser = parser_of(presenter)
    parsed, unknown = parser.parse_known_args(words)
    strange = [word.partition("=")[0] for word in unknown if word.startswith("--")]
    known = [option(name) for name in presenter.options]
    if strange:
        raise UserError(
            f"{', '.join(strange)}: {run.path} is a {presenter.family} model, and its options are "
            f"{', '.join(known) or 'none'}{suggest(strange[0], known)}"
        )
    if unknown:
        parser.error(f"unrecognized arguments: {' '.join(unknown)}")
    return vars(parsed)


def option(name: str) -> str:
    return f"--{name.replace('_', '-')}"


def main() -> None:
    usage = f"{PROG} RUN_DIR [options]"
    parser = Arguments(prog=PROG, usage=usage, description=__doc__, add_help=False)
    add_run_dir(parser)
    if sys.argv[1:2] in (["-h"], ["--help"]):
        put(parser.format_help())
        return
    if sys.argv[1:2] and sys.argv[1].startswith("-") and sys.argv[1] != "--allow":
        parser.error(f"RUN_DIR goes first, then {sys.argv[1]}")
    known, words = parser.parse_known_args()
    from ablate.training.load import load

    run = load(known.run_dir, allow=known.allow)
    presenter = run.task.presenter(run.task)
    if not presenter.generates:
        raise UserError(
            f"{run.path}: this model does not support generation (supported:"
            f" {', '.join(families())} models)"
        )
    for text in presenter.generate(options_for(run, words), run.path):
        put(text)


if __name__ == "__main__":
    command(main)
