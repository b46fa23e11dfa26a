"""Bars for work that may take long before the first step; nothing is shown in the first second."""

from collections.abc import Iterable, Iterator, Sized
from typing import Any, TypeVar

from lightning.pytorch.utilities import rank_zero_only
from tqdm import tqdm

Item = TypeVar("Item")


def bar(what: str, **options: Any) -> "tqdm[Any]":
    """An empty bar on standard error, only of the first process."""
    hidden = getattr(rank_zero_only, "rank", 0) != 0
    return tqdm(desc=f"ablate: {what}", delay=1, mininterval=0.5, disable=hidden, **options)


def progress(items: Iterable[Item], what: str, unit: str) -> Iterator[Item]:
    """The items, counted in a bar."""
    total = len(items) if isinstance(items, Sized) else None
    with bar(what, total=total, unit=f" {unit}") as shown:
        for item in items:
            yield item
            shown.update()
