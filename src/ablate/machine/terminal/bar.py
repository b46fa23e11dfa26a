"""Bars for work that may take long before the first step; nothing is shown in the first second."""

import sys
from collections.abc import Iterable, Iterator, Sized
from typing import Any, TypeVar

from lightning.pytorch.utilities import rank_zero_only
from tqdm import tqdm

Item = TypeVar("Item")


def bar(what: str, **options: Any) -> "tqdm[Any]":
    """An empty bar on standard error, only of the first process. In a file it is written rarely."""
    hidden = getattr(rank_zero_only, "rank", 0) != 0
    pause = 0.5 if sys.stderr.isatty() else 30
    return tqdm(desc=f"ablate: {what}", delay=1, mininterval=pause, disable=hidden, **options)


def progress(items: Iterable[Item], what: str, unit: str) -> Iterator[Item]:
    """The items, counted in a bar."""
    total = len(items) if isinstance(items, Sized) else None
    with bar(what, total=total, unit=f" {unit}") as shown:
        for item in items:
            yield item
            shown.update()
