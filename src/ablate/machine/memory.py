"""The memory of this machine, and rejection of anything that cannot fit into it.

A need is a lower bound and the memory an upper bound, so that nothing is rejected that would fit.
"""

import atexit
import gc
import os
from pathlib import Path

from ablate.errors import UserError

GB = 1e9


def freeze_imports() -> None:
    """Collect garbage again, which is off while modules are imported, and leave these out: they
    stay in memory, and looking through them takes a second."""
    gc.freeze()
    # Else modules bound by nanobind, such as Triton's, report everything as leaked.
    atexit.register(gc.unfreeze)
    gc.enable()


def total() -> int:
    """Return the bytes that this process can have: main memory and swap, or the limit of its
    control group or of `ulimit`."""
    import resource  # Windows has none

    limits = [os.sysconf("SC_PHYS_PAGES") * os.sysconf("SC_PAGE_SIZE") + _swap(), *_groups()]
    for kind in (resource.RLIMIT_AS, resource.RLIMIT_DATA):
        if (limit := resource.getrlimit(kind)[0]) != resource.RLIM_INFINITY:
            limits.append(limit)
    return min(limits)


def require(needed: float, what: str) -> None:
    """Raise UserError if `needed` bytes are more than there are. what: the key and the object, such
    as "data.batch_size=8: a batch"."""
    if needed > (available := total()):
        raise UserError(
            f"{what} takes at least {written(needed)}, and this machine has {written(available)}"
        )


def written(size: float) -> str:
    """Write a number of bytes, in GB with as many digits as distinguish it from zero, or in MB."""
    if size < GB / 10:
        return f"{size / 1e6:.3g} MB"
    return f"{size / GB:,.{0 if size >= 10 * GB else 2}f} GB"


def _swap() -> int:
    try:
        lines = Path("/proc/meminfo").read_text(encoding="ascii").splitlines()
    except OSError:  # not Linux
        return 0
    return sum(1024 * int(line.split()[1]) for line in lines if line.startswith("SwapTotal:"))


def _groups() -> list[int]:
    """Return the limits of the control groups (version 2) around this process."""
    try:
        lines = Path("/proc/self/cgroup").read_text(encoding="utf-8").splitlines()
    except OSError:
        return []
    group_path = next((line[3:] for line in lines if line.startswith("0::")), "/")
    folder, limits = Path("/sys/fs/cgroup"), []
    for group in (group_path, *map(str, Path(group_path).parents)):
        try:
            limit = (folder / group.strip("/") / "memory.max").read_text(encoding="ascii").strip()
        except OSError:  # the root has no limit, nor has a group outside of this container
            continue
        if limit.isdigit():
            limits.append(int(limit))
    return limits
