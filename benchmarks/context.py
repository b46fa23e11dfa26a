"""The largest context that trains, for each score, with and without activation checkpointing.

    python benchmarks/context.py                                    # a GPU: all of its memory
    python benchmarks/context.py --scores scaled_dot additive --kernels auto reference
    python benchmarks/context.py --device cpu --memory 0.25 --small # a quarter of a GB: does it run
    python benchmarks/context.py --device cpu --lengths 512 1024    # time and memory at these alone

A training step of a GPT (learned positions, causal, one text at a time, AdamW; bfloat16 products on
a GPU). The length is doubled until it no longer fits, then halved in between until the next try
would be less than an eighth longer. On a CPU each try is a process of its own, which may take
`--memory` GB beside what it has before the first step; on a GPU one process, which starts and
compiles once, tries them all. `ms` is the fastest of `--steps` steps; with `--lengths` the ways
take turns, and `ratio` is over the first of them.
"""

import argparse
import contextlib
import gc
import json
import resource
import subprocess
import sys
import time
from functools import partial
from types import SimpleNamespace
from typing import Any, NamedTuple

from tables import head, row
from turns import cuda_clock, in_turns, memory, seconds

SIZES = ["model.dim=512", "model.depth=8", "model.heads=8"]
SMALL = ["model.dim=32", "model.depth=2", "model.heads=2"]
VOCABULARY, LIMIT = 256, 300  # tokens, seconds for one process
NO_ROOM = 3  # exit code


class Way(NamedTuple):
    score: str
    kernel: str
    checkpoint: bool


def measure(
    way: Way, length: int, sizes: list[str], device: str, gigabytes: float, steps: int
) -> Any:
    """Milliseconds of a step, peak memory in MB, and the kernel that ran."""
    import torch
    import torch.nn.functional as F

    import ablate
    from ablate.data.interface import Sizes
    from ablate.model.layers.stack import kernels

    chosen = [f"model.attention={way.score}", f"kernel={way.kernel}"]
    if device == "cuda":
        chosen.append("trainer=gpu")  # which kernels for a GPU are refused without
    cfg = ablate.compose(
        *chosen, f"model.activation_checkpointing={str(way.checkpoint).lower()}", *sizes
    )
    data: Any = SimpleNamespace(sizes=Sizes(vocab_size=VOCABULARY, length=length))
    model = ablate.build(cfg, data).to(device)
    optimizer = torch.optim.AdamW(model.parameters(), lr=1e-3)
    tokens = torch.randint(VOCABULARY, (1, length + 1), device=device)
    before = memory("VmRSS")
    if device == "cpu":
        limit = int(memory("VmData") * 2**20 + gigabytes * 2**30)
        resource.setrlimit(resource.RLIMIT_DATA, (limit, limit))

    def step() -> None:
        optimizer.zero_grad()
        with torch.autocast(device, torch.bfloat16, enabled=device == "cuda"):
            logits = model(tokens[:, :-1])
        F.cross_entropy(logits.float().flatten(0, 1), tokens[0, 1:]).backward()
        optimizer.step()

    clock = cuda_clock if device == "cuda" else time.perf_counter
    times = [seconds(step, clock) for _ in range(steps + 1)]
    peak = (
        torch.cuda.max_memory_allocated() / 2**20 if device == "cuda" else memory("VmHWM") - before
    )
    ran = sorted(set(kernels(model).values()))
    return {"ran": ", ".join(ran), "ms": 1000 * min(times[1:]), "MB": peak}  # the first compiles


def one(arguments: list[Any]) -> int:
    """In a process of its own: prints what was measured; NO_ROOM where it does not fit."""
    way, *rest = arguments
    try:
        print(json.dumps(measure(Way(*way), *rest)))
    except (RuntimeError, MemoryError) as error:  # torch has an error of its own for a GPU alone
        if "memory" not in str(error).lower() and not isinstance(error, MemoryError):
            raise
        return NO_ROOM
    return 0


def on_gpu(*arguments: Any) -> Any:
    """What `measure` says; None where it ran out of memory."""
    import torch

    found = None
    torch.cuda.reset_peak_memory_stats()
    with contextlib.suppress(torch.OutOfMemoryError):
        found = measure(*arguments)
    gc.collect()  # modules refer to each other
    torch.cuda.empty_cache()
    return found


def fits(way: Way, length: int, sizes: list[str], device: str, *rest: Any) -> Any:
    """What `measure` says; None where there is no room or no time."""
    arguments = (way, length, sizes, device, *rest)
    if device == "cuda":
        return on_gpu(*arguments)
    line = [sys.executable, __file__, "--one", json.dumps(arguments)]
    try:
        done = subprocess.run(line, capture_output=True, text=True, timeout=LIMIT)
    except subprocess.TimeoutExpired:
        return None
    if done.returncode == 0:
        return json.loads(done.stdout.splitlines()[-1])
    # Killed: by the system, which had no more memory.
    if done.returncode == NO_ROOM or done.returncode < 0:
        return None
    raise RuntimeError(done.stderr)


def largest(way: Way, shortest: int, longest: int, *rest: Any) -> tuple[int, Any]:
    """The longest context that fits, and what it takes; 0 and None where the shortest does not."""
    length, found, too_long, tried = 0, None, None, shortest
    while True:
        now = fits(way, tried, *rest) if tried <= longest else None
        if tried <= longest:
            cost = f"{now['ms']:.0f} ms, {now['MB']:.0f} MB" if now else "does not fit"
            print(f"{' '.join(map(str, way))} {tried}: {cost}", file=sys.stderr, flush=True)
        if now is None:
            too_long = tried
        else:
            length, found = tried, now
        tried = 2 * length if too_long is None else (length + too_long) // 2
        if not length or 8 * (tried - length) < length:
            return length, found


def scores() -> list[str]:
    """All of them."""
    from ablate.config.tree import config_dir

    names = sorted(file.stem for file in (config_dir() / "model.attention").glob("*.yaml"))
    return [name for name in names if name != "none"]


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.split("\n")[0])
    parser.add_argument("--one", help=argparse.SUPPRESS)
    parser.add_argument("--device", choices=["cuda", "cpu"], default="cuda")
    parser.add_argument("--memory", type=float, default=2.0, help="GB, on a CPU")
    parser.add_argument("--scores", nargs="*", default=[])
    parser.add_argument("--kernels", nargs="*", default=["auto"])
    parser.add_argument("--small", action="store_true", help="a tiny model")
    parser.add_argument("--shortest", type=int, default=256)
    parser.add_argument("--longest", type=int, default=2**20)
    parser.add_argument("--lengths", nargs="*", type=int, default=[])
    parser.add_argument("--steps", type=int, default=3, help="that are timed, after one")
    args = parser.parse_args()
    if args.one:
        sys.exit(one(json.loads(args.one)))
    import torch

    if args.device == "cuda" and not torch.cuda.is_available():
        sys.exit("context.py: torch sees no GPU; --device cpu --small says whether the script runs")
    where = (
        torch.cuda.get_device_name() if args.device == "cuda" else f"CPU, {args.memory:g} GB a step"
    )
    sizes = SMALL if args.small else SIZES
    print(f"torch {torch.__version__}, {where}, {' '.join(sizes)}\n")
    ways = [
        Way(score, kernel, checkpoint)
        for score in args.scores or scores()
        for kernel in args.kernels
        for checkpoint in (False, True)
    ]
    rest = (sizes, args.device, args.memory, args.steps)
    if args.lengths:
        print(head("length", *Way._fields, "ms", "ratio", "MB", "ratio"))
        for length in args.lengths:
            compare(ways, length, *rest)
        return
    print(head(*Way._fields, "largest context", "ms", "MB"))
    for way in ways:
        length, found = largest(way, args.shortest, args.longest, *rest)
        ran, *cost = found.values() if found else (way.kernel, float("nan"), float("nan"))
        numbers = (f"{number:.0f}" for number in cost)
        print(row(way.score, ran, way.checkpoint, length, *numbers), flush=True)


def compare(ways: list[Way], length: int, *rest: Any, rounds: int = 3) -> None:
    """Every way at one length."""
    found = in_turns({way: partial(fits, way, length, *rest) for way in ways}, rounds)
    first: dict[tuple[str, str], tuple[float, float]] = {}
    for way, tries in found.items():
        if None in tries:
            print(row(length, *way, "no room", "", "", ""))
            continue
        ms, mb = (min(one[key] for one in tries) for key in ("ms", "MB"))
        plain = first.setdefault((way.score, way.kernel), (ms, mb))
        numbers = f"{ms:.0f}", f"{ms / plain[0]:.2f}", f"{mb:.0f}", f"{mb / plain[1]:.2f}"
        print(row(length, way.score, tries[0]["ran"], way.checkpoint, *numbers), flush=True)


if __name__ == "__main__":
    main()
