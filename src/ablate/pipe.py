"""Output that nobody reads to its end, as that of `ablate --help | head -3`.

Python raises BrokenPipeError at the next line that is printed, by a library too, and again when it
ends. Here the rest goes nowhere instead, and the command runs to its end: a training run is worth
more than the terminal it was started from.
"""

import io
import os
import sys
from typing import Any

UNREAD = 141  # what a shell says of a program that SIGPIPE ended


class Output(io.FileIO):
    """The file of standard output or standard error, which goes nowhere once its reader has left.

    trains: whether the command does more than answer, and says so when its reader leaves.
    """

    trains = False
    unread = False

    def write(self, data: Any) -> int:
        try:
            return super().write(data)
        except BrokenPipeError:
            nowhere = os.open(os.devnull, os.O_WRONLY)
            os.dup2(nowhere, self.fileno())  # for what other languages print, too
            os.close(nowhere)
            Output.unread = True
            if Output.trains:
                print("ablate: nobody reads the output any more; training goes on", file=sys.stderr)
            return super().write(data)


def survive_readers() -> None:
    """From now on, in this process, where its output is that of the process and not captured."""
    for name in ("stdout", "stderr"):
        stream = getattr(sys, name)
        if stream is None or stream is not getattr(sys, f"__{name}__"):
            continue  # closed, or somebody else's
        stream.flush()
        raw = Output(stream.fileno(), "w", closefd=False)
        unbuffered = isinstance(stream.buffer, io.RawIOBase)  # python -u
        wrapped = io.TextIOWrapper(
            raw if unbuffered else io.BufferedWriter(raw),
            encoding=stream.encoding,
            errors=stream.errors,
            line_buffering=stream.line_buffering,
            write_through=stream.write_through,
        )
        setattr(sys, name, wrapped)


def exit_code(code: Any) -> Any:
    """The code of a command that ends with `code`: another where it only answers, unread."""
    for stream in (sys.stdout, sys.stderr):
        if stream is not None:
            stream.flush()
    return UNREAD if not code and Output.unread and not Output.trains else code
