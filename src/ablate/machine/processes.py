"""The processes of one run on a machine, which Lightning starts for trainer=ddp: the first starts
the others. If one of them is lost, the others wait for it, for half an hour or forever, or get
an obscure error of torch."""

import os
import signal
import sys
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from subprocess import Popen

from ablate.errors import LostProcess, unwrap
from ablate.machine.terminal.say import say

AGAIN = " (perhaps out of memory); the same command resumes"
FIRST = "ABLATE_FIRST_PROCESS"  # the pid of the process that started this one
LOOK = 0.5  # seconds between checks of the other processes
GRACE = 15.0  # seconds until a process must have ended by itself after another was lost
ALIKE = 3.0  # seconds until the first process has ended if it has the same error


def speaks(error: BaseException) -> bool:
    """Whether this process reports how the run ended: the first one, in general."""
    rank = os.environ.get("LOCAL_RANK", "0")
    if rank == "0" or FIRST not in os.environ:  # without a number of processes there is one
        return rank == "0" or "WORLD_SIZE" not in os.environ
    if isinstance(error, LostProcess):
        return rank == "1" and _orphaned()
    end = time.monotonic() + ALIKE
    while not _orphaned() and time.monotonic() < end:
        time.sleep(0.1)
    return not _orphaned()  # then the error is only of this process


@contextmanager
def watching(
    children: Callable[[], list[Popen[bytes]]], fail: Callable[[str], None]
) -> Iterator[None]:
    """Raise LostProcess for another process that ended within the block. If this one waits for it,
    and cannot raise anything, record that by `fail`, print it and end. children: those that this
    process has started so far."""
    rank = os.environ.get("LOCAL_RANK", "0")
    if rank == "0":
        os.environ[FIRST] = str(os.getpid())
    over = threading.Event()
    threading.Thread(target=_watch, args=(over, children, fail), daemon=True).start()
    try:
        yield
    except Exception as error:
        if not isinstance(unwrap(error), LostProcess):
            raise
        end = time.monotonic() + GRACE
        # The connection may break before the system tells that the process is gone.
        while (line := _lost(children())) is None and time.monotonic() < end:
            if rank == "0" and not children():
                break
            time.sleep(0.1)
        if line is None:
            raise
        raise LostProcess(line) from error
    finally:
        over.set()


def _watch(
    over: threading.Event,
    children: Callable[[], list[Popen[bytes]]],
    fail: Callable[[str], None],
) -> None:
    while not over.wait(LOOK):
        if (line := _lost(children())) and not over.wait(GRACE):
            fail(line)
            for child in children():
                child.kill()
            if speaks(LostProcess(line)):
                say(line, file=sys.stderr)
            os._exit(1)


def _lost(children: list[Popen[bytes]]) -> str | None:
    """A message on a process that has ended before the others."""
    for number, child in enumerate(children, 1):
        if code := child.poll():
            ended = f"process {number} of {len(children) + 1}"
            if code > 0:
                return f"{ended} ended with code {code}; see its output for the reason"
            return f"{ended} was killed by {signal.Signals(-code).name}{AGAIN}"
    return f"the first process of this run was killed{AGAIN}" if _orphaned() else None


def _orphaned() -> bool:
    """Whether the process that started this one is gone."""
    return os.environ.get("LOCAL_RANK", "0") != "0" and os.environ.get(FIRST) not in (
        None,
        str(os.getppid()),
    )
