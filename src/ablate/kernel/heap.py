"""Holes in glibc's heap, given back to the system.

glibc keeps freed tensors of up to 32 MB for the next ones; but an aligned block does not fit where
one of its size was, once anything small stands behind that (_int_memalign asks for a little more).
What a loop keeps of each turn so leaves a hole in each, with nothing alive in it.
"""

import ctypes
import sys
from functools import cache

# Between two times, of the largest tensors; each time the next tensors have to be mapped anew.
BYTES = 2**27


class Holes:
    """Counts what is made and freed again, and gives free memory back after every `BYTES` of it."""

    def __init__(self) -> None:
        self.made = 0

    def after(self, made: int) -> None:
        """made: bytes of one large tensor."""
        self.made += made
        if self.made > BYTES:
            self.made = 0
            give_back()


def give_back() -> None:
    """Nothing where there is no glibc, whose way this is."""
    if sys.platform == "linux" and (trim := getattr(libc(), "malloc_trim", None)):
        trim(0)


@cache
def libc() -> ctypes.CDLL:
    return ctypes.CDLL(None)
