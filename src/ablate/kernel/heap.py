"""Returns free memory in glibc's heap to the system.

glibc keeps freed tensors of up to 32 MB for reuse; but an aligned block does not fit into the gap
of one of its size once a small allocation follows the gap (_int_memalign asks for a little more). A
loop that keeps something from every iteration thus leaves an unused hole in each.
"""

import ctypes
import sys
from functools import cache

# Of the largest tensors, between two trims; after each trim tensors have to be mapped anew.
BYTES = 2**27


class Holes:
    """Counts the bytes allocated and freed again, and trims the heap every `BYTES` of them."""

    def __init__(self) -> None:
        self.made = 0

    def after(self, made: int) -> None:
        """made: bytes of one large tensor."""
        self.made += made
        if self.made > BYTES:
            self.made = 0
            give_back()


def give_back() -> None:
    """Trim the heap; without glibc this does nothing."""
    if sys.platform == "linux" and (trim := getattr(libc(), "malloc_trim", None)):
        trim(0)


@cache
def libc() -> ctypes.CDLL:
    return ctypes.CDLL(None)
