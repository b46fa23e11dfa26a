"""Entry point shared by all commands: one-line error messages and exit codes."""

import logging
import os
import re
import sys
import traceback
from argparse import ArgumentParser, RawDescriptionHelpFormatter
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any, NoReturn

from ablate.errors import (
    Interrupted,
    RunFailed,
    UserError,
    ended_by,
    one_line,
    suggest,
    unwrap,
)
from ablate.machine import processes
from ablate.machine.terminal import pipe
from ablate.machine.terminal.say import printable, say
from ablate.run_files import named_folder

FULL_ERROR = "HYDRA_FULL_ERROR"


class Arguments(ArgumentParser):
    """An argument parser that raises UserError instead of printing its usage, and prints its
    description as it is written, lists too."""

    def __init__(self, **kwargs: Any) -> None:
        super().__init__(formatter_class=RawDescriptionHelpFormatter, **kwargs)

    def error(self, message: str) -> NoReturn:
        raise UserError(f"{message}{near_flag(message, self)}; see {self.prog} --help")


def near_flag(message: str, parser: ArgumentParser) -> str:
    """The end of an error line that offers the nearest option for an unknown one, or nothing."""
    wrong = re.search(r"unrecognized arguments: (?:[^-]\S* )*(-[^\s=]+)", message)
    return suggest(wrong[1], parser._option_string_actions) if wrong else ""


def add_run_dir(parser: ArgumentParser) -> None:
    """Add the folder of a finished run, and `--allow`."""
    parser.add_argument(
        "run_dir",
        type=lambda text: named_folder(Path(text)),
        help="directory of a finished run, or its name in outputs/ or outputs/runs/",
    )
    add_allow(parser)


def add_allow(parser: ArgumentParser) -> None:
    """Add `--allow`: modules of custom components that the config of a run may name."""
    parser.add_argument(
        "--allow",
        action="append",
        default=[],
        metavar="MODULE",
        help="allow importing this module, which the run's config references (repeatable)",
    )


def command(main: Callable[[], None]) -> NoReturn:
    """Run a command's `main`, and exit as `exit_codes` does."""
    with exit_codes():
        main()
    raise AssertionError  # it has exited


@contextmanager
def exit_codes() -> Iterator[None]:
    """Exit after the block: 0 done, 1 failed, 2 rejected, 130 interrupted, 141 done, with a broken
    output pipe."""
    pipe.survive_readers()
    logging.raiseExceptions = False  # else a full disk is a traceback for each line of a log
    # On a new machine matplotlib announces its font cache.
    logging.getLogger("matplotlib.font_manager").setLevel(logging.ERROR)
    code: str | int | None = 0
    try:
        _refuse_windows()
        _add_working_directory()
        yield
    except (KeyboardInterrupt, SystemExit) as stop:
        # Lightning turns Ctrl-C into an exit with 1.
        if isinstance(stop, SystemExit) and not isinstance(stop.__context__, KeyboardInterrupt):
            code = stop.code
            if line := ended_by(stop):
                say(line, file=sys.stderr)
                code = 1
        else:
            say("interrupted", file=sys.stderr)
            code = 130
    except (Exception, Interrupted) as error:
        code = report(error)
    sys.exit(pipe.exit_code(code))


def report(error: BaseException) -> int:
    """Print an error and return the exit code."""
    ours = unwrap(error)
    if ours is None or os.environ.get(FULL_ERROR) == "1":
        print(printable("".join(traceback.format_exception(error))), end="", file=sys.stderr)
    if ours is None:
        return 1
    if processes.speaks(ours):
        say(one_line(ours), file=sys.stderr)
    codes = {UserError: 2, RunFailed: 1, Interrupted: 130}
    return next(code for kind, code in codes.items() if isinstance(ours, kind))


def _refuse_windows() -> None:
    if sys.platform == "win32":
        raise UserError(
            "Windows is not supported (POSIX file locks, symbolic links in conf/); use WSL"
        )


def _add_working_directory() -> None:
    """Put the current folder at the end of the path, so that custom components are found and hide
    nothing; Python's -P disables this, also for the processes of the runs."""
    if sys.flags.safe_path:
        os.environ["PYTHONSAFEPATH"] = "1"
        return
    try:
        working_directory = os.getcwd()
    except FileNotFoundError:
        raise UserError("the current folder was removed: go to another one") from None
    if working_directory not in sys.path:
        sys.path.append(working_directory)
