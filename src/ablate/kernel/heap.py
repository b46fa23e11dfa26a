"""Returns free memory in glibc's heap to the system.

glibc keeps freed tensors of up to 32 MB for reuse; but an aligned block does not fit into the gap
of one of its size once a small allocation follows the gap (_int_memalign requests a little more). A
loop that keeps something from every iteration thus leaves an unused hole in each.
"""

import ctypes
import sys
from functools import cache

# Of the largest tensors, between two trims; after each trim tensors have to be mapped again.
BYTES = 2**27


class HeapTrimmer:
    """Trims the heap after every `BYTES` that were allocated and freed again."""

    def __init__(self) -> None:
        self.n_bytes = 0  # since the last trim

    def record(self, n_bytes: int) -> None:
        """Count the bytes of one large tensor."""
        self.n_bytes += n_bytes
        if self.n_bytes > BYTES:
            self.n_bytes = 0
            give_back()


def give_back() -> None:
    """Trim the heap; without glibc this does nothing."""
    if sys.platform == "linux" and (trim := getattr(libc(), "malloc_trim", None)):
        trim(0)


@cache
def libc() -> ctypes.CDLL:
    return ctypes.CDLL(None)
