"""Errors for the user: one line with the problem, its place, the valid values and the nearest
name."""

import errno
import os
import re
from collections.abc import Iterable
from difflib import get_close_matches
from traceback import walk_tb

from ablate.machine.redact import redact
from ablate.machine.terminal.say import printable

SCREEN = 400  # characters that are printed of a message: two lines of a terminal of 200 columns
ENDS_PROCESSES = {"__main__", "ablate", "argparse", "hydra", "lightning"}
SHOWN = 4  # mistakes that are printed of a longer message


class UserError(Exception):
    """A mistake in the command that the user can correct, or several, an argument each.

    The message is one line; the command line prints it without a traceback and exits with code 2.
    """

    def __init__(self, *mistakes: str) -> None:
        super().__init__(*(redact(str(mistake)) for mistake in mistakes))

    def __str__(self) -> str:
        return "; ".join(map(str, self.args))


class RunFailed(Exception):
    """A run that started but could not continue, such as one whose loss became NaN.

    The message is one line with the step and a remedy; the exit code is 1.
    """

    def __init__(self, message: str) -> None:
        super().__init__(redact(message))


class LostProcess(RunFailed):
    """A process of a run of several has ended or cannot be reached."""


class Interrupted(BaseException):
    """A run stopped on request; the same command resumes. Exit code 130.

    Like KeyboardInterrupt no Exception, since a signal may come in the middle of any code.
    """


def one_line(error: BaseException, most: int = SCREEN) -> str:
    """Return the message in one line of at most `most` characters, with every mistake in it: if it
    is longer, each is `shortened`."""
    lines = [printable(" ".join(str(line).split())) for line in error.args] or [""]
    message = "; ".join(lines)
    if len(message) <= most:
        return message
    more = [f"and {len(lines) - SHOWN} more"] if len(lines) > SHOWN else []
    share = (most - len("; ".join(more)) - 2 * SHOWN) // min(len(lines), SHOWN)
    return "; ".join([*(shortened(line, share) for line in lines[:SHOWN]), *more])


def first_line(error: BaseException) -> str:
    """The first line of the message of another library's error, or the name of its class."""
    return str(error).strip().partition("\n")[0] or type(error).__name__


def shortened(text: str, most: int) -> str:
    """Cut a text that is longer than `most` characters: at the end if that is a list of valid
    values after the nearest name, else in the middle."""
    if len(text) <= most:
        return text
    if 0 <= text.find("); allowed: ") < most:
        return f"{text[: most - 4]} ..."
    half = (most - 5) // 2
    return f"{text[:half]} ... {text[-half:]}"


def few(texts: Iterable[str], joined: str, most: int = 8) -> str:
    """Join the first strings, and count the rest."""
    every = list(texts)
    more = [f"and {len(every) - most} more"] if len(every) > most else []
    return joined.join([*every[:most], *more])


def suggest(name: str, allowed: Iterable[str]) -> str:
    """The end of an error line that offers the nearest allowed name in any case, or nothing."""
    names = {one.lower(): one for one in allowed}
    near = get_close_matches(name.lower(), names, n=1, cutoff=0.6)
    return f"; did you mean '{names[near[0]]}'?" if near else ""


def ended_by(stop: SystemExit) -> str | None:
    """A line that names the third-party code that ended the process; None if it was ablate's, or
    a library that ends processes on purpose."""
    raised = [(frame.f_globals.get("__name__", ""), frame.f_code.co_filename, line)
              for frame, line in walk_tb(stop.__traceback__)]  # fmt: skip
    raised = [one for one in raised if one[0] != "_sitebuiltins"]  # of exit()
    if not raised or raised[-1][0].partition(".")[0] in ENDS_PROCESSES:
        return None
    _, file, line = raised[-1]
    code = shortened(repr(stop.code), 80)
    return redact(f"{file}, line {line}, ends the process by sys.exit({code})")


# A machine without room for more, with any file; and a file or folder that cannot be used.
FULL = (
    errno.EDQUOT, errno.EFBIG, errno.EIO, errno.EMFILE, errno.ENFILE, errno.ENOSPC, errno.EROFS,
    errno.ESTALE,
)  # fmt: skip
CLOSED = (*FULL, errno.EACCES, errno.EEXIST, errno.EISDIR, errno.ENOTDIR, errno.EPERM)
# The same in the words of torch and of the linker, whose errors have no number.
NO_ROOM = re.compile("|".join([*map(os.strerror, FULL), "can't start new thread"]))
# Messages of torch, numpy, the C library and the linker for failed allocations and overflowing
# sizes.
NO_MEMORY = re.compile(
    r"DefaultCPUAllocator|out of memory|bad_alloc|ALLOC_FAILED|[Cc]annot allocate memory"
    r"|failed to map segment|Storage size calculation overflowed|integer multiplication overflow"
    r"|array is too big|Maximum allowed (size|dimension) exceeded"
)
LOST_WORKER = (
    "a data-loading worker was killed (out of memory, or manually); rerun the command to resume,"
    " or set data.workers=0"
)
# Errors of torch's backends for a lost process: gloo, and NCCL by types of torch.
GLOO = "third_party/gloo/"
OF_BACKENDS = ("DistBackendError", "DistNetworkError", "DistStoreError")
# The linker's, and torch's when it is imported again after that.
NO_TORCH = re.compile(r"^lib(torch|c10)\S*: |`torch` can only be initialized once")
AMOUNT = re.compile(r"(?:[Tt]ried to|Unable to) allocate ([\d.]+ (?:bytes|[KMGTPE]iB))")


def unwrap(error: BaseException) -> UserError | RunFailed | Interrupted | None:
    """Our own error behind those that Hydra and OmegaConf wrap around it, if there is one.

    A file that cannot be used is also a UserError, and other failures of the machine (memory, a
    killed process that loads data) are a RunFailed.
    """
    current: BaseException | None = error
    passed: set[int] = set()
    while current is not None and id(current) not in passed:
        if isinstance(current, UserError | RunFailed | Interrupted):
            return current
        if refused := _by_the_machine(current):
            return refused
        passed.add(id(current))
        current = current.__cause__
    return None


def _by_the_machine(error: BaseException) -> UserError | RunFailed | None:
    text = str(error)
    if isinstance(error, OSError) and error.errno in (CLOSED if error.filename else FULL):
        name = " -> ".join(str(file) for file in (error.filename, error.filename2) if file)
        return UserError(f"{name or 'a file'}: cannot be read or written here ({error.strerror})")
    if isinstance(error, RuntimeError) and text.startswith("DataLoader worker"):
        return RunFailed(LOST_WORKER)
    if isinstance(error, RuntimeError) and (GLOO in text or type(error).__name__ in OF_BACKENDS):
        why = shortened(" ".join(text.partition("]")[2].split()) or text, 120)
        return LostProcess(
            f"another process of this run ended or cannot be reached ({why}); the same command"
            " resumes"
        )
    if isinstance(error, ImportError) and NO_TORCH.search(text):
        return RunFailed("torch cannot be imported; run `python -c 'import torch'` for the reason")
    if NO_ROOM.search(text):
        return RunFailed(f"out of memory or disk space: {text.strip().partition(chr(10))[0]}")
    known = isinstance(error, RuntimeError | ImportError | OSError | ValueError)
    if not isinstance(error, MemoryError) and not (known and NO_MEMORY.search(text)):
        return None
    amount = AMOUNT.search(text)
    return RunFailed(
        f"out of memory{f' ({amount[1]} more needed)' if amount else ''}: reduce data.batch_size,"
        " the model or the sequence length"
    )
