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
