"""Let a launcher record Ctrl-C, SIGTERM and a closed terminal instead of ending at once."""

import signal
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass


@dataclass
class Stop:
    """The first signal that asked to stop, and whether a second one came."""

    signal: str | None = None
    at_once: bool = False


@contextmanager
def stopping() -> Iterator[Stop]:
    """Record signals in a `Stop` within the block; restore the handlers afterwards."""
    stop = Stop()

    def note(number: int, frame: object) -> None:
        stop.at_once = stop.signal is not None
        stop.signal = stop.signal or signal.Signals(number).name

    numbers = [signal.SIGINT, signal.SIGTERM]
    if signal.getsignal(signal.SIGHUP) != signal.SIG_IGN:  # not under nohup
        numbers.append(signal.SIGHUP)
    in_main_thread = threading.current_thread() is threading.main_thread()  # the only one that may
    before = {number: signal.signal(number, note) for number in numbers if in_main_thread}
    try:
        yield stop
    finally:
        for number, handler in before.items():
            signal.signal(number, handler)
