"""Print text that may contain third-party strings, such as names of files: control characters would
reach the terminal, which can hide or change lines by them."""

import logging
import shlex
import sys
import unicodedata
from typing import TextIO

HIDDEN = ("Cc", "Cs")  # Unicode's control characters, and halves of surrogate pairs


def printable(text: str) -> str:
    r"""Write control characters but newlines and tabs as Python does, such as \x1b."""
    if text.isprintable():
        return text
    return "".join(
        character.encode("unicode_escape").decode()
        if character not in "\n\t" and unicodedata.category(character) in HIDDEN
        else character
        for character in text
    )


class Formatter(logging.Formatter):
    """Escape control characters in logged lines (conf/config.yaml)."""

    def format(self, record: logging.LogRecord) -> str:
        return printable(super().format(record))


def say(line: str, *, file: TextIO | None = None) -> None:
    """Print a message; file: standard output by default."""
    print(f"ablate: {printable(line)}", file=file or sys.stdout, flush=True)


def command_line(module: str, *words: object) -> str:
    """An ablate command for a shell, with quotes around words that need them."""
    return shlex.join(["python", "-m", module, *map(str, words)])


def put(text: str) -> None:
    """Print the output of a command: as it is, but on a terminal printable."""
    print(printable(text) if sys.stdout.isatty() else text)
