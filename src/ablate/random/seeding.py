"""Common random numbers: every random stream has a name, and depends on it and the seed alone.

Two runs that differ in one part draw the same numbers for everything else, because no stream
depends on how often another was used before it.
"""

from hashlib import sha256


def derive(seed: int, *names: str | int) -> int:
    """A seed for the stream called `names`, in 0 .. 2**63 - 1."""
    text = "/".join(str(part) for part in (seed, *names))
    return int.from_bytes(sha256(text.encode()).digest()[:8]) >> 1
