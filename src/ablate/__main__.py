"""The command line: `python -m ablate GROUP=OPTION KEY=VALUE ...`, also installed as `ablate`.

`ablate show RUN_DIR` is `python -m ablate.show RUN_DIR`, and so for each of COMMANDS.
"""

import atexit
import gc
import os
import sys
from argparse import ArgumentParser, Namespace
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from functools import partial
from hashlib import sha256
from importlib import import_module
from pathlib import Path
from traceback import extract_tb
from typing import NoReturn

from hydra._internal.hydra import Hydra
from hydra._internal.utils import get_args_parser
from hydra.core.global_hydra import GlobalHydra
from hydra.types import RunMode

import ablate.config.tree
from ablate.cli.command import exit_codes, near_flag
from ablate.cli.job import failures, job
from ablate.config.override_errors import explain, refuse_swept, refuse_unread
from ablate.config.overrides import key_of, quote_override
from ablate.config.tree import COMPOSITION_ERRORS, Tree, open_tree
from ablate.errors import RunFailed, UserError, suggest, unwrap
from ablate.machine.terminal.pipe import Output
from ablate.machine.version import described

NO_TRIAL = "No trials are completed yet."  # Optuna's, of a search for the best
COMMANDS = (
    "coordinates",
    "diff",
    "evaluate",
    "export",
    "generate",
    "judge",
    "lm_eval",
    "prepare",
    "report",
    "show",
)


def main() -> None:
    # Imports leave no garbage, and the search for it takes a fifth of the start-up time.
    gc.disable()
    try:
        with exit_codes():
            if (args := _arguments_of_run()) is not None:
                tree = open_tree(args.config_dir, args.config_name or "config")
                if not args.shell_completion:
                    refuse_unread(args.overrides, tree)
                with _explained_errors(args, tree), _opened(tree) as hydra:
                    if (start := _action(hydra, args, tree)) is not None:
                        start()
    finally:
        gc.enable()


def _arguments_of_run() -> Namespace | None:
    """The arguments of a command that composes; None after another command, or help."""
    word = sys.argv[1] if len(sys.argv) > 1 else ""
    if word in COMMANDS:
        run = import_module(f"ablate.{word}").main
        gc.enable()
        del sys.argv[1]
        run()
        return None
    if "--version" in sys.argv:
        print(described())
        return None
    if word.isidentifier() and word != "help":  # an override contains "="
        allowed = [*COMMANDS, "help"]
        raise UserError(
            f"unknown command '{word}' (overrides are KEY=VALUE without spaces); commands:"
            f" {', '.join(allowed)}{suggest(word, allowed)}"
        )
    if word == "help":
        sys.argv[1] = "--help"
    args = _arguments()
    if args.help:
        from ablate.cli.help import help_text

        print(help_text(args.config_dir, args.overrides))
        return None
    if args.config_path:
        raise UserError("--config-path: use --config-dir, which adds options to the built-in ones")
    return args


def _arguments() -> Namespace:
    """Hydra's own flags, parsed here before Hydra parses them, so that mistakes are reported in one
    line.

    They may be mixed with the overrides, which Hydra wants together: sys.argv is reordered.
    """
    parser = get_args_parser()
    parser.error = partial(_refuse_flag, parser)  # type: ignore[method-assign]
    args = parser.parse_intermixed_args()
    flags = [word for word in sys.argv[1:] if word not in args.overrides]
    args.overrides = named_search([*map(quote_override, map(_run_dir, args.overrides))])
    sys.argv[1:] = [*args.overrides, *flags]
    return args


def _run_dir(override: str) -> str:
    """hydra.run.dir=DIR as run_dir=DIR: Hydra would create it before the run is checked."""
    key, equals, folder = override.partition("=")
    return f"run_dir={folder}" if key == "hydra.run.dir" and equals else override


def named_search(overrides: list[str]) -> list[str]:
    """The overrides with a name for a search by Optuna or the like, unless one was typed, so that
    every search has its own folder, and the same command the same. An Optuna search continues after
    a failed trial (its default is to end). Raises UserError for several seeds of a trial, which are
    one job, with a launcher that starts a run as a job."""
    typed = {key_of(text): text.partition("=")[2] for text in overrides}
    sweeper = typed.get("hydra/sweeper")
    if sweeper in (None, "ablation", "basic"):
        return overrides
    failures = "hydra.sweeper.max_failure_rate"
    more = [f"{failures}=1"] if sweeper == "optuna" and failures not in typed else []
    if "study.seeds" in typed:
        if typed.setdefault("hydra/launcher", "basic") != "basic":
            raise UserError(
                f"hydra/launcher={typed['hydra/launcher']} with study.seeds={typed['study.seeds']}"
                f" and hydra/sweeper={sweeper}: the seeds of a trial are trained by one process;"
                " use hydra/launcher=basic"
            )
        overrides = [*overrides, "hydra/launcher=basic"]
    if "study.name" in typed:
        return [*overrides, *more]
    search = sha256(" ".join(sorted(overrides)).encode()).hexdigest()[:6]
    return [*overrides, *more, f"study.name={sweeper}-{search}"]


def _refuse_flag(parser: ArgumentParser, message: str) -> NoReturn:
    raise UserError(f"{message}{near_flag(message, parser)}; see python -m ablate --help")


@contextmanager
def _explained_errors(args: Namespace, tree: Tree) -> Iterator[None]:
    """Raise the errors of Hydra, and of the runs of a sweep, as one line."""
    try:
        yield
    except (RunFailed, UserError) as error:
        raise _summary(error) from error
    except Exception as error:
        raise _explained(error, args, tree) from error


@contextmanager
def _opened(tree: Tree) -> Iterator[Hydra]:
    """Hydra with our tree, as hydra.main has it, and without its handling of errors."""
    hydra = Hydra("ablate", tree)
    GlobalHydra.instance().initialize(hydra)
    try:
        yield hydra
    finally:
        GlobalHydra.instance().clear()


def _action(hydra: Hydra, args: Namespace, tree: Tree) -> Callable[[], object] | None:
    """The start of a run or of several; None after another action of Hydra, such as --cfg."""
    actions = [a for a in ("run", "multirun", "cfg", "info", "shell_completion") if vars(args)[a]]
    if len(actions) > 1:
        raise UserError(f"--{' and --'.join(actions)} exclude each other; leave one out")
    if args.resolve and not args.cfg:
        raise UserError("--resolve: add --cfg job, whose values it resolves")
    Output.trains = actions in ([], ["run"], ["multirun"]) and not args.hydra_help
    name, overrides = tree.config_name, args.overrides
    if args.hydra_help:
        hydra.hydra_help(name, get_args_parser(), args)
    elif args.cfg:
        hydra.show_cfg(name, overrides, args.cfg, args.package, args.resolve)
    elif args.info:
        hydra.show_info(args.info, name, overrides)
    elif args.shell_completion:
        hydra.shell_completion(name, overrides)
    else:
        mode = hydra.get_mode(name, overrides)
        if mode is None or args.multirun:
            mode = RunMode.MULTIRUN if args.multirun else RunMode.RUN
            overrides = [*overrides, f"hydra.mode={mode.name}"]
        if mode == RunMode.MULTIRUN:
            refuse_swept(args.overrides, tree)
        start = hydra.run if mode == RunMode.RUN else hydra.multirun
        return partial(start, name, job, overrides)
    return None


def _explained(error: Exception, args: Namespace, tree: Tree) -> Exception:
    if isinstance(error, OSError) and not isinstance(error, COMPOSITION_ERRORS):
        return UserError(f"output_dir: cannot write there ({error}); choose another folder")
    if str(error) == NO_TRIAL:
        failed = "no trial of the search finished; see their directories for the errors"
        return _summary(RunFailed(failed))
    if unwrap(error) is not None:
        return error
    if not isinstance(_origin(error), COMPOSITION_ERRORS):
        return _of_hydra(error, args)
    return explain(error, args.overrides, tree, many=args.multirun)


def _of_hydra(error: Exception, args: Namespace) -> Exception:
    """Make the error of a key of Hydra's own that Hydra cannot use; `error` itself if there is
    none, or if it was raised in our code."""
    typed = [text for text in args.overrides if key_of(text).startswith("hydra")]
    package = str(Path(__file__).parent)
    files = {frame.filename for frame in extract_tb(error.__traceback__)}
    files -= {__file__, ablate.config.tree.__file__}  # which Hydra calls to read a file
    if not typed or any(name.startswith(package) for name in files):
        return error
    why = f"{type(error).__name__}: {_origin(error)}; HYDRA_FULL_ERROR=1 prints the traceback"
    return UserError(f"{' '.join(typed)}: Hydra cannot use it ({why})")


def _origin(error: BaseException) -> BaseException:
    return error if error.__cause__ is None else _origin(error.__cause__)


def _summary(error: RunFailed | UserError) -> Exception:
    """All failed runs of a sweep in one line; the error itself for a single run."""
    if len(failures) < 2:
        return error
    runs: dict[str, list[str]] = {}
    for overrides, failed in failures:
        runs.setdefault(str(failed), []).append(overrides)
    lines = [
        f"{line} ({len(names)} runs)" if len(names) > 1 else f"[{names[0]}] {line}"
        for line, names in runs.items()
    ]
    kind = RunFailed if any(isinstance(e, RunFailed) for _, e in failures) else UserError
    return kind(f"{len(failures)} runs went wrong: {'; '.join(lines)}")


def program() -> None:
    """Run `main` as a whole process. A rejected command ends at once: freeing the imported modules
    takes a second with torch."""
    try:
        main()
    except SystemExit as stop:
        if stop.code != 2:
            raise
        atexit._run_exitfuncs()
        os._exit(2)


if __name__ == "__main__":
    program()
