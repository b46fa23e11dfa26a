"""Signals that request a stop: Ctrl-C, SIGTERM, a closed terminal, and those that a queue can be
told to send before a job's time is over (SIGUSR1, SIGUSR2)."""

import os
import signal
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from typing import NoReturn, TypeVar

from ablate.errors import Interrupted

STOPS = (signal.SIGINT, signal.SIGTERM, signal.SIGHUP, signal.SIGUSR1, signal.SIGUSR2)
STARTED = "while it started"
RARE = STOPS[3:]  # a program may use them for itself


@dataclass
class Stop:
    """The first signal that asked to stop, and whether a second one came."""

    signal: str | None = None
    at_once: bool = False

    def note(self, number: int) -> None:
        self.at_once = self.signal is not None
        self.signal = self.signal or signal.Signals(number).name


@dataclass
class StopOfRun(Stop):
    """The request to stop a run. While it trains the request is noted, and training ends with a
    checkpoint; at any other moment, and at a second Ctrl-C, Interrupted is raised at once.

    moment: the present one, for the message; None: training, so the request is noted.
    """

    moment: str | None = STARTED

    def note(self, number: int) -> None:
        super().note(number)
        if self.moment is not None:
            self.interrupt(self.moment)
        if self.at_once and number == signal.SIGINT:
            self.signal = "SIGINT"
            self.interrupt("at once")

    def enter(self, moment: str) -> None:
        """Raise Interrupted at once from here on, for a request that was only noted too."""
        self.moment = moment
        if self.signal:
            self.interrupt(moment)

    def interrupt(self, moment: str) -> NoReturn:
        where = "" if moment == STARTED else " from the last checkpoint"  # there may be none yet
        raise Interrupted(f"stopped by {self.signal} {moment}; the same command resumes{where}")


S = TypeVar("S", bound=Stop)


@contextmanager
def stopping(stop: S) -> Iterator[S]:
    """Tell `stop` of signals within the block; restore the handlers afterwards."""
    process = os.getpid()

    def note(number: int, frame: object) -> None:
        if os.getpid() == process:
            stop.note(number)
        elif number != signal.SIGINT:  # a fork, such as one that loads data; Ctrl-C reaches all
            signal.signal(number, signal.SIG_DFL)
            os.kill(os.getpid(), number)

    in_main_thread = threading.current_thread() is threading.main_thread()  # the only one that may
    before = {number: signal.getsignal(number) for number in STOPS if in_main_thread}
    for number, handler in list(before.items()):
        # SIGHUP is ignored under nohup, SIGINT in the background of a shell.
        if handler == signal.SIG_IGN or (number in RARE and handler != signal.SIG_DFL):
            del before[number]
        else:
            signal.signal(number, note)
    try:
        yield stop
    finally:
        for number, handler in before.items():
            signal.signal(number, handler)
