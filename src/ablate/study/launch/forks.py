"""A fork server: runs are separate processes that need not import torch again.

`Forks` starts the server, `python -m ablate.study.launch.forks`. It imports the modules of a run,
computes nothing, and forks for every run; the fork runs the module worker.py by runpy.
If forking after imports is not safe (macOS), the server imports nothing and every run starts a new
interpreter. When the client dies, the server tells its runs to stop with a checkpoint.

Not multiprocessing's fork server, which leaves the children of a killed client running, and whose
children have neither a session to be killed with all that it started nor a separate log.
"""

import atexit
import ctypes
import gc
import io
import os
import runpy
import signal
import subprocess
import sys
import threading
import time
import traceback
from collections.abc import Mapping, Sequence
from contextlib import suppress
from importlib import import_module
from multiprocessing.connection import Connection, Pipe
from pathlib import Path
from typing import Any, NamedTuple, NoReturn

from ablate.study.launch.state import LOG, WORKER

PRELOADED = sys.platform == "linux"
ALWAYS = ("ablate.cli.job", "ablate.training.train", "ablate.cli.summary", "ablate.figures")
POLL = 0.05  # seconds between checks for ended runs
PR_SET_PDEATHSIG = 1  # option of Linux's prctl


class Start(NamedTuple):
    """The process of a run. arguments: of `WORKER`; typed: the first line of its log."""

    arguments: list[str]
    typed: str
    folder: str


class Event(NamedTuple):
    """A run started (`code` is None) or ended. reason: why, if the run itself cannot know."""

    run: int
    pid: int | None = None
    code: int | None = None
    reason: str | None = None


class ParentDied(Exception):
    """The fork server was killed; its runs have no parent any more."""


class Forks:
    """The client of the fork server. modules: to preload in addition to those that every run
    imports."""

    def __init__(self, modules: Sequence[str], *, environment: Mapping[str, str], grace: float):
        self._connection, server_end = Pipe()
        parent = [sys.executable, "-m", "ablate.study.launch.forks"]
        command = [*parent, str(server_end.fileno()), str(grace)]
        self._process = subprocess.Popen(
            [*command, *(ALWAYS if PRELOADED else ()), *(modules if PRELOADED else ())],
            stdin=subprocess.DEVNULL,
            pass_fds=[server_end.fileno()],
            env=dict(environment),
            start_new_session=True,  # only the launcher gets Ctrl-C, and tells the runs to stop
        )
        server_end.close()
        self._pids: dict[int, int] = {}  # run -> pid

    def start(self, number: int, run: Start, environment: Mapping[str, str]) -> None:
        """Start a run; an event with its number and pid follows. environment: additions for it."""
        request = run._asdict() | {"run": number, "environment": dict(environment)}
        with suppress(OSError):  # the server died: `events` will raise ParentDied
            self._connection.send(request)

    def events(self, seconds: float) -> list[Event]:
        """Return the next events, waiting at most `seconds`."""
        events: list[Event] = []
        try:
            while self._connection.poll(0 if events else seconds):
                events.append(Event(**self._connection.recv()))
        except (EOFError, OSError):
            if not events:
                raise ParentDied from None
        self._pids |= {event.run: event.pid for event in events if event.pid is not None}
        return events

    def ask(self, run: int) -> None:
        """Tell a run to stop with a checkpoint."""
        send(self._pids[run], signal.SIGTERM)

    def kill(self, run: int) -> None:
        """Kill a run and all processes that it has started."""
        send(self._pids[run], signal.SIGKILL, group=True)

    def close(self) -> None:
        self._connection.close()
        self._process.wait()


def main() -> NoReturn:
    """Run the fork server. The code after `serve` is executed in a fork, as a run."""
    descriptor, grace, *modules = sys.argv[1:]
    connection = Connection(int(descriptor))
    os.set_inheritable(connection.fileno(), False)
    if modules:
        _preload(modules)
    request = serve(connection, float(grace))
    if request is None:
        os._exit(0)  # nothing to clean up
    try:
        detach_into(request)
        if not modules:
            os.execv(sys.executable, [sys.executable, "-m", WORKER, *request["arguments"]])
    except OSError as error:
        sys.exit(f"ablate: output_dir: cannot write there ({error})")
    sys.argv = [WORKER, *request["arguments"]]
    code: str | int | None = 1
    try:
        runpy.run_module(WORKER, run_name="__main__", alter_sys=True)
        code = 0
    except SystemExit as end:
        code = end.code
    except BaseException:
        traceback.print_exc()
    _end(code)


def _end(code: str | int | None) -> NoReturn:
    """Exit as Python does, but without tearing down modules, which takes seconds in a fork."""
    if isinstance(code, str):
        print(code, file=sys.stderr)
    threading._shutdown()  # type: ignore[attr-defined]  # waits for threads, as multiprocessing does
    atexit._run_exitfuncs()
    sys.stdout.flush()
    sys.stderr.flush()
    os._exit(code if isinstance(code, int) else int(code is not None))


def _preload(modules: Sequence[str]) -> None:
    for name in modules:
        # A run reports its own import errors.
        with suppress(Exception, SystemExit):
            import_module(name)
    gc.collect()
    gc.freeze()  # keep pages shared: no collection writes to them


def serve(connection: Connection, grace: float) -> dict[str, Any] | None:
    """Fork for every request. Returns the request in the fork; None in the server, at the end."""
    runs: dict[int, int] = {}  # pid -> run
    client_alive = True
    deadline = float("inf")
    while client_alive or runs:
        if not client_alive:
            time.sleep(POLL)
        elif connection.poll(POLL):
            try:
                request: dict[str, Any] = connection.recv()
            except (EOFError, OSError):
                client_alive, deadline = False, time.monotonic() + grace
                for pid in runs:
                    send(pid, signal.SIGTERM)
                continue
            pid = os.fork()
            if pid == 0:
                connection.close()
                return request
            runs[pid] = request["run"]
            _send_event(connection, run=request["run"], pid=pid)
        if time.monotonic() > deadline:
            for pid in runs:
                send(pid, signal.SIGKILL, group=True)
        _reap(runs, connection)
    return None


def _reap(runs: dict[int, int], connection: Connection) -> None:
    while runs:
        pid, status = os.waitpid(-1, os.WNOHANG)
        if pid == 0:
            return
        code = os.waitstatus_to_exitcode(status)
        if code:  # processes that it has started would wait for it
            send(pid, signal.SIGKILL, group=True)
        _send_event(connection, run=runs.pop(pid), code=code)


def _send_event(connection: Connection, **event: int) -> None:
    with suppress(OSError):  # the client has gone; `serve` notices at the next check
        connection.send(event)


def send(pid: int, number: int, *, group: bool = False) -> None:
    """Send a signal to a process that may have ended."""
    with suppress(ProcessLookupError, PermissionError):
        if group:
            os.killpg(pid, number)
        else:
            os.kill(pid, number)


def detach_into(request: Mapping[str, Any]) -> None:
    """Make this fork a process in its own session, with its output in the run's folder."""
    os.setsid()
    if sys.platform == "linux":  # also stop when the server is killed
        ctypes.CDLL(None).prctl(PR_SET_PDEATHSIG, signal.SIGTERM)
    log = os.open(Path(request["folder"], LOG), os.O_WRONLY | os.O_CREAT | os.O_APPEND, 0o666)
    null_device = os.open(os.devnull, os.O_RDONLY)
    for descriptor, target in ((null_device, 0), (log, 1), (log, 2)):
        os.dup2(descriptor, target)
    os.close(log)
    os.close(null_device)
    assert isinstance(sys.stdout, io.TextIOWrapper)
    sys.stdout.reconfigure(line_buffering=True)
    os.environ.update(request["environment"])
    print(request["typed"], flush=True)


if __name__ == "__main__":
    main()
