"""Compare two configurations without training: parameters, FLOPs, outputs at initialization.

python -m ablate.diff "model.attention=dot" "model.attention=cosine"
python -m ablate.diff "model=vit" "model=vit model.norm=post"
python -m ablate.diff RUN_DIR RUN_DIR

Each argument is a list of overrides, separated by spaces, or a run directory. Models are built as
at the start of training, each from its seed.
"""

from __future__ import annotations

import shlex
from collections.abc import Collection
from pathlib import Path
from typing import TYPE_CHECKING

from rich.table import Column, Table

from ablate.cli.command import Arguments, add_allow, command
from ablate.config.composition import compose
from ablate.config.overrides import value_text
from ablate.config.saved import read_config
from ablate.errors import UserError
from ablate.machine.terminal.console import Console
from ablate.run_files import named_folder, require_run

if TYPE_CHECKING:
    from omegaconf import DictConfig

    from ablate.training.difference import Difference


def show(difference: Difference) -> None:
    from ablate.training.cache import CacheBytes

    table = Table(*(Column(name, overflow="fold") for name in ("", "first", "second")))
    for key, (before, after) in difference.keys.items():
        table.add_row(key, value_text(before), value_text(after))
    table.add_section()
    table.add_row("parameters", *(f"{count:,}" for count in difference.parameters))
    table.add_row("FLOPs per step", *(f"{count:,}" for count in difference.flops))
    if any(difference.cache):
        first, second = (cache or CacheBytes(0, 0) for cache in difference.cache)
        for unit, *sizes in zip(("bytes per token", "fixed bytes"), first, second, strict=True):
            table.add_row(f"decoding state, {unit}", *(f"{n:,}" for n in sizes))
    table.add_row("kernels", *(", ".join(names) or "-" for names in difference.kernels))
    console = Console(soft_wrap=True, highlight=False, markup=False)
    console.print(table)
    for what, names in (
        ("parameters only in the first", difference.only_first),
        ("parameters only in the second", difference.only_second),
        ("shared parameters with other initial values", difference.other_values),
    ):
        if names:
            more = f" and {len(names) - 4} more" if len(names) > 4 else ""
            console.print(f"{what}: {', '.join(names[:4])}{more}", markup=False)
    if difference.none:
        console.print("No effect: the same parameters, initial values and function.")
    elif difference.output is None:
        console.print("Initial outputs cannot be compared: shapes or data differ.")
    else:
        console.print(f"Initial outputs differ by at most {difference.output:.3g}.")


def main() -> None:
    parser = Arguments(prog="python -m ablate.diff", description=__doc__.split("\n")[0])
    parser.add_argument(
        "first", help='overrides in one string, "model=vit pos_enc=none", or a run directory'
    )
    parser.add_argument("second", help="overrides or run directory of the second configuration")
    add_allow(parser)
    parser.add_argument("--config-dir", metavar="DIR", help="directory with your own options")
    args = parser.parse_args()
    from ablate.training.difference import difference

    both = (configuration(text, args.allow, args.config_dir) for text in (args.first, args.second))
    (first, second), files = zip(*both, strict=True)
    show(difference(first, second, files))


def configuration(
    text: str, allow: Collection[str] = (), config_dir: str | None = None
) -> tuple[DictConfig, Path | None]:
    """The configuration of a run's folder, with its file, or composed of overrides. Raises
    UserError.

    allow: modules besides ablate whose classes a run's config may name. Their code is executed.
    config_dir: of custom options, as for `compose`.
    """
    folder = named_folder(Path(text).expanduser())
    if text and ("=" not in text or folder.is_dir()):
        require_run(folder, text)
        return read_config(file := folder / "config.yaml", allow), file
    return compose(*words(text), config_dir=config_dir), None


def words(text: str) -> list[str]:
    try:
        return shlex.split(text)
    except ValueError as error:
        raise UserError(f"cannot split {text!r} into overrides: {error}") from error


if __name__ == "__main__":
    command(main)
