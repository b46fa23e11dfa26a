"""Output that cannot be written: its reader has exited, as in `ablate --help | head -3`, its disk
is full, its terminal is gone, or it was closed from the start (`>&-`).

Python raises an error at the next print, also in libraries, and again at exit. Here such output is
discarded and the command completes: a training run outlives its terminal.
"""

import io
import os
import sys
from typing import Any, ClassVar

UNREAD = 141  # a shell's exit status for a program killed by SIGPIPE


class Output(io.FileIO):
    """Standard output or standard error; discards output after a broken pipe or on a full disk.

    trains: whether the command trains, and therefore continues with a message.
    lost: the first error.
    """

    trains = False
    lost: ClassVar[OSError | None] = None

    def write(self, data: Any) -> int:
        try:
            return super().write(data)
        except OSError as error:
            if isinstance(error, BrokenPipeError):
                nowhere = os.open(os.devnull, os.O_WRONLY)
                os.dup2(nowhere, self.fileno())  # for output of C and C++ libraries as well
                os.close(nowhere)
            if Output.lost is None:
                Output.lost = error
                if Output.trains and self.fileno() != 2:  # not from its own write
                    print(f"ablate: {_why(error)}; training continues", file=sys.stderr)
            return memoryview(data).nbytes


def _why(error: OSError) -> str:
    if isinstance(error, BrokenPipeError):
        return "the output pipe is closed"
    return f"the output cannot be written ({error.strerror})"


def survive_readers() -> None:
    """Replace stdout and stderr by `Output`, unless they are captured. Open those that are closed:
    the next files would get their numbers, and with them the output of libraries."""
    for name, mode in (("stdin", "r"), ("stdout", "w"), ("stderr", "w")):
        if getattr(sys, name) is None:
            nowhere = os.open(os.devnull, os.O_RDWR)  # gets the lowest free number
            os.set_inheritable(nowhere, True)
            setattr(sys, name, os.fdopen(nowhere, mode, encoding="utf-8"))
    for name in ("stdout", "stderr"):
        stream = getattr(sys, name)
        if stream is not getattr(sys, f"__{name}__"):
            continue
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
    """Return the exit code. Of a command that does not train, 0 becomes 141 if the pipe broke, and
    1 with a message if the output could not be written otherwise."""
    for stream in (sys.stdout, sys.stderr):
        if stream is not None:
            stream.flush()
    if code or Output.trains or Output.lost is None:
        return code
    if isinstance(Output.lost, BrokenPipeError):
        return UNREAD
    print(f"ablate: {_why(Output.lost)}", file=sys.stderr)
    return 1
