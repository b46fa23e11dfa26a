"""A refusal is one line that names what is wrong."""

from collections.abc import Iterator
from contextlib import contextmanager

import pytest

from ablate.errors import UserError


@contextmanager
def refused(
    *parts: str, by: type[Exception] = UserError
) -> Iterator[pytest.ExceptionInfo[Exception]]:
    """What the block does is refused in one line that has these parts."""
    with pytest.raises(by) as caught:
        yield caught
    line = str(caught.value)
    assert "\n" not in line
    assert [part for part in parts if part not in line] == [], line


def refusal(ended: tuple[int, str, str], *parts: str, code: int = 2) -> str:
    """The same of a command, by its exit code, stdout and stderr; returns the line."""
    ended_with, out, err = ended
    assert (ended_with, err.count("\n"), "Traceback" in out) == (code, 1, False), err
    assert err.startswith("ablate: ")
    assert [part for part in parts if part not in err] == [], err
    return err
