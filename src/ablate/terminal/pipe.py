"""Broken pipes: output whose reader has exited, as in `ablate --help | head -3`.

Python raises BrokenPipeError at the next print, in libraries too, and again at exit. Here the rest
of the output is discarded and the command completes: a training run outlives its terminal.
"""

import io
import os
import sys
from typing import Any

UNREAD = 141  # a shell's exit status for a program killed by SIGPIPE


class Output(io.FileIO):
    """Standard output or standard error; discards what is written after a broken pipe.

    trains: whether the command trains, and therefore continues with a message.
    unread: whether a pipe has broken.
    """

    trains = False
    unread = False

    def write(self, data: Any) -> int:
        try:
            return super().write(data)
        except BrokenPipeError:
            nowhere = os.open(os.devnull, os.O_WRONLY)
            os.dup2(nowhere, self.fileno())  # for output of C and C++ libraries, too
            os.close(nowhere)
            Output.unread = True
            if Output.trains:
                print("ablate: the output pipe is closed; training continues", file=sys.stderr)
            return super().write(data)


def survive_readers() -> None:
    """Replace stdout and stderr by `Output`, unless they are closed or captured."""
    for name in ("stdout", "stderr"):
        stream = getattr(sys, name)
        if stream is None or stream is not getattr(sys, f"__{name}__"):
            continue  # closed, or captured
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
    """Return the exit code: 141 instead of 0 if the pipe broke and the command does not train."""
    for stream in (sys.stdout, sys.stderr):
        if stream is not None:
            stream.flush()
    return UNREAD if not code and Output.unread and not Output.trains else code
