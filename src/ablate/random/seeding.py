"""Common random numbers: every random stream has a name, and depends only on it and the seed.

Two runs that differ in one part draw the same numbers for everything else, because no stream
depends on how often another was used before it.
"""

from hashlib import sha256
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    import torch


def derive(seed: int, *names: str | int) -> int:
    """A seed for the stream called `names`, in 0 .. 2**63 - 1."""
    text = "/".join(str(part) for part in (seed, *names))
    return int.from_bytes(sha256(text.encode()).digest()[:8]) >> 1


def seed_torch(seed: int, device: "torch.device") -> None:
    """Seed torch's generator of a device. torch.manual_seed seeds all devices, and takes a stack
    trace for each kind that is not in use: a millisecond."""
    import torch

    if device.type == "cpu":
        torch.default_generator.manual_seed(seed)
    else:
        torch.manual_seed(seed)
