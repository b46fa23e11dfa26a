"""Errors for the user: one line that says what, where, what is allowed, and the nearest name."""

from collections.abc import Iterable
from difflib import get_close_matches


class UserError(Exception):
    """A mistake in the command that the user can correct.

    The message is one line; the command line prints it without a traceback and exits with code 2.
    """


class RunFailed(Exception):
    """A run that started but could not continue, such as one whose loss became NaN.

    The message is one line that says at which step and what to try; the exit code is 1.
    """


class Interrupted(Exception):
    """A run stopped on request, with a checkpoint; the same command resumes. Exit code 130."""


def suggest(name: str, allowed: Iterable[str]) -> str:
    """The end of an error line that offers the nearest allowed name, or nothing."""
    near = get_close_matches(name, list(allowed), n=1, cutoff=0.6)
    return f"; did you mean '{near[0]}'?" if near else ""


def unwrap(error: BaseException) -> UserError | RunFailed | Interrupted | None:
    """Our own error behind those that Hydra and OmegaConf wrap around it, if there is one."""
    current: BaseException | None = error
    passed: set[int] = set()
    while current is not None and id(current) not in passed:
        if isinstance(current, UserError | RunFailed | Interrupted):
            return current
        passed.add(id(current))
        current = current.__cause__
    return None
