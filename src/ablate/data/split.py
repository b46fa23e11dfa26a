"""Fixed splits by a hash of each example's name or content, independent of any seed.

Reordering examples leaves them in their splits, and so does adding others, but for the few of
`stratified` whose hashes are next to a bound.
"""

import logging
import re
import unicodedata
from collections.abc import Hashable, Iterable, Mapping, Sequence
from hashlib import sha256
from itertools import islice

import numpy as np
from lightning.pytorch.utilities import rank_zero_only as on_first_process
from numpy.typing import NDArray

from ablate.errors import UserError

log = logging.getLogger(__name__)

SPOKEN = {"train": "training", "val": "validation", "test": "test"}
INVISIBLE = re.compile("[\u00ad\u200b-\u200f\u2060\ufeff]")  # soft hyphen, zero-width characters
# Upper ends of the hash interval of each split: about 70, 15 and 15 of 100.
BOUNDS = {"train": 0.70, "val": 0.85, "test": 1.0}
# One training example in so many is for validation, if a data set has only a test split.
VALIDATION = 12
# Shares of each class, by rank of the hash.
SHARES = {"train": 0.70, "val": 0.15, "test": 0.15}
HELD_OUT = {"val": 1 / VALIDATION, "train": 1 - 1 / VALIDATION}


def text_key(text: str) -> bytes:
    """The key of a text: the same for texts that differ only in letter case, spaces, invisible
    characters or Unicode form (NFC, NFD, full width), which are then in one split."""
    visible = INVISIBLE.sub("", unicodedata.normalize("NFKC", text))
    return " ".join(visible.casefold().split()).encode()


def position(key: bytes) -> float:
    """A number in [0, 1) that looks random and depends only on `key`."""
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


def warn_of_shared(texts: Mapping[str, Iterable[str]], what: str) -> None:
    """Warn of texts of the other splits that are also in training. what: the noun for them."""
    keys = {split: list(map(text_key, of_split)) for split, of_split in texts.items()}
    warn_of_copies(keys, what, " (ignoring letter case, spaces and Unicode form)")


def warn_of_copies(keys: Mapping[str, Sequence[Hashable]], what: str, how: str = "") -> None:
    """Warn of examples of the other splits with the key of a training example."""
    training = set(keys.get("train", ()))
    for split, of_split in keys.items():
        if split != "train" and (copies := sum(key in training for key in of_split)):
            on_first_process(log.warning)(
                "ablate: %d of the %d %s %s are also in the training split%s",
                *(copies, len(of_split), SPOKEN[split], what, how),
            )


def hold_out(keys: list[bytes]) -> tuple[list[int], list[int]]:
    """Training and validation numbers: the keys with the smallest hashes validate."""
    by_hash = sorted(range(len(keys)), key=lambda number: position(keys[number]))
    held = set(by_hash[: len(keys) // VALIDATION])
    return [n for n in range(len(keys)) if n not in held], sorted(held)


def stratified(
    keys: Sequence[bytes], classes: Sequence[str], shares: Mapping[str, float] = SHARES
) -> dict[str, list[int]]:
    """Numbers of the keys in each split, in order: the same shares of every class, and at least one
    example in every split if a class has as many. Equal keys share a split."""
    class_of = dict(zip(reversed(keys), reversed(classes), strict=True))  # of the first of equals
    by_class: dict[str, list[bytes]] = {}
    for key in sorted(class_of, key=position):
        by_class.setdefault(class_of[key], []).append(key)
    place: dict[bytes, str] = {}
    for own in by_class.values():
        left = iter(own)
        for name, count in _counts(len(own), shares).items():
            place |= dict.fromkeys(islice(left, count), name)
    split: dict[str, list[int]] = {name: [] for name in shares}
    for number, key in enumerate(keys):
        split[place[key]].append(number)
    return split


def _counts(total: int, shares: Mapping[str, float]) -> dict[str, int]:
    """How many of a class each split has; the first ones go to training, then to validation."""
    counts = dict.fromkeys(shares, 0)
    left = total - 1
    for name in (name for name in ("val", "test") if name in shares):
        counts[name] = min(max(1, round(shares[name] * total)), left)
        left -= counts[name]
    counts["train"] = total - sum(counts.values())
    return counts


def chosen(count: int, wanted: int | None, what: str) -> NDArray[np.int64]:
    """Numbers of the `data.train_examples` that are used of `count`: fewer are among more, and the
    order does not depend on the seed of the run. Raises UserError if there are not as many."""
    if wanted is None:
        return np.arange(count)
    if wanted > count:
        raise UserError(f"data.train_examples={wanted}: the training split has {count:,} {what}")
    order: NDArray[np.int64] = np.random.default_rng(0).permutation(count)
    return order[:wanted]
