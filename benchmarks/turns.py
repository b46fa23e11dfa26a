"""Measurements that take turns, so that a slow moment of the machine meets all of them."""

import statistics
import time
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import TypeVar

Way, Found = TypeVar("Way"), TypeVar("Found")


def in_turns(ways: Mapping[Way, Callable[[], Found]], rounds: int) -> dict[Way, list[Found]]:
    """The measurements of each way, by round; every second round has the reverse order."""
    found: dict[Way, list[Found]] = {way: [] for way in ways}
    for round_ in range(rounds):
        for way in reversed(ways) if round_ % 2 else ways:
            found[way].append(ways[way]())
    return found


def seconds(run: Callable[[], object], clock: Callable[[], float] = time.perf_counter) -> float:
    start = clock()
    run()
    return clock() - start


def cuda_clock() -> float:
    """Seconds, when a GPU has done what it was told to."""
    import torch

    torch.cuda.synchronize()
    return time.perf_counter()


def ratio(times: Sequence[float], of_first: Sequence[float]) -> float:
    """The median over the rounds."""
    return statistics.median(a / b for a, b in zip(times, of_first, strict=True))


def memory(key: str) -> float:
    """MB of this process: VmRSS now, VmHWM at the highest, VmData allocated."""
    for line in Path("/proc/self/status").read_text().splitlines():
        if line.startswith(f"{key}:"):
            return int(line.split()[1]) / 1024
    raise RuntimeError("on a CPU this reads /proc/self/status, which only Linux has")
