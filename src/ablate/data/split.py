"""Fixed splits by a hash of each example's name or content, independent of any seed.

Adding or reordering examples leaves the others in their splits.
"""

from collections.abc import Mapping
from hashlib import sha256

import numpy as np
from numpy.typing import NDArray

from ablate.errors import UserError

# Upper ends of the hash interval of each split: about 70, 15 and 15 of 100.
BOUNDS = {"train": 0.70, "val": 0.85, "test": 1.0}
# One training example in so many is for validation, if a data set has only a test split.
VALIDATION = 12


def position(key: bytes) -> float:
    """A number in [0, 1) that looks random and depends on `key` alone."""
    return int.from_bytes(sha256(key).digest()[:6]) / 2**48


def split_of(key: bytes, bounds: Mapping[str, float] = BOUNDS) -> str:
    """The split of a key. bounds: upper ends of the hash interval of each."""
    at = position(key)
    return next(name for name, bound in bounds.items() if at < bound)


def three_way(keys: list[bytes]) -> dict[str, list[int]]:
    """Numbers of the keys in each split, in order."""
    split: dict[str, list[int]] = {name: [] for name in BOUNDS}
    for number, key in enumerate(keys):
        split[split_of(key)].append(number)
    return split


def hold_out(keys: list[bytes]) -> tuple[list[int], list[int]]:
    """Training and validation numbers: the keys with the smallest hashes validate."""
    by_hash = sorted(range(len(keys)), key=lambda number: position(keys[number]))
    held = set(by_hash[: len(keys) // VALIDATION])
    return [n for n in range(len(keys)) if n not in held], sorted(held)


def chosen(count: int, wanted: int | None, what: str) -> NDArray[np.int64]:
    """Numbers of the `data.train_examples` that are used of `count`: fewer are among more, and the
    order does not depend on the seed of the run. Raises UserError if there are not as many."""
    if wanted is None:
        return np.arange(count)
    if wanted > count:
        raise UserError(f"data.train_examples={wanted}: the training split has {count:,} {what}")
    order: NDArray[np.int64] = np.random.default_rng(0).permutation(count)
    return order[:wanted]
