"""How threads that wait should wait, on a quiet machine and beside other work.

    python benchmarks/busy.py                             # quiet, then beside other work
    python benchmarks/busy.py --beside none --steps 300   # quiet alone
    python benchmarks/busy.py --ways ours GOMP_SPINCOUNT=0 -- model=vit

Torch's threads (OpenMP's, by GNU's libgomp) wait for each other many times in a step. They spin for
a while first, which is quick as long as every thread has a core, and wasted where another program
has it. A measurement is a whole command with a setting in its environment, beside a neighbor:
`loops:N` are N processes that never rest, `torch:N` is another training, of N threads, that waits
as libgomp does by itself. The ways take turns, `--rounds` times. `seconds` is train_seconds of
result.json, the median of the rounds, and `ratio` over the first way of the same round; `CPU s` is
what the command used. A command is ended after `--limit` seconds, which then are its seconds.
"""

import argparse
import json
import os
import resource
import statistics
import subprocess
import sys
import tempfile
from collections.abc import Iterator
from contextlib import contextmanager
from functools import partial
from pathlib import Path

from tables import head, row
from turns import in_turns, ratio

WAYS = ["libgomp's own", "GOMP_SPINCOUNT=0", "GOMP_SPINCOUNT=1000", "GOMP_SPINCOUNT=10000",
        "GOMP_SPINCOUNT=100000", "OMP_WAIT_POLICY=PASSIVE", "OMP_NUM_THREADS=1"]  # fmt: skip
# What libgomp does unless it is told something: its own number of rounds.
LIBGOMP = "GOMP_SPINCOUNT=300000"
CLEARED = ("GOMP_SPINCOUNT", "OMP_WAIT_POLICY", "OMP_NUM_THREADS")


NEIGHBORS = {
    "loops": "while alive(): pass",
    "torch": """
import torch
layer, x = torch.nn.TransformerEncoderLayer(128, 4, 512, batch_first=True), torch.randn(32, 64, 128)
while alive(): layer(x).sum().backward()
""",
}


@contextmanager
def busy(neighbor: str) -> Iterator[None]:
    """Beside `none`, `loops:N` or `torch:N`, which work while this process lives."""
    kind, _, count = neighbor.partition(":")
    alive = f"import os\ndef alive(): return os.getppid() == {os.getpid()}\n"
    line = [sys.executable, "-c", alive + NEIGHBORS.get(kind, "")]
    processes = {"none": 0, "loops": int(count or 0), "torch": 1}[kind]
    environment = unset() | ({"OMP_NUM_THREADS": count} if kind == "torch" else {})
    # A session of their own, as other people's work is: Linux shares its time by session, and a
    # nice process of the same session would hardly be felt.
    others = [
        subprocess.Popen(line, start_new_session=True, env=environment) for _ in range(processes)
    ]
    try:
        yield
    finally:
        for other in others:
            other.kill()
            other.wait()


def unset() -> dict[str, str]:
    """The environment without what says how threads wait."""
    return {key: value for key, value in os.environ.items() if key not in CLEARED}


def measure(way: str, overrides: list[str], limit: float) -> tuple[float, float]:
    """Seconds of training, and the processor's seconds of the whole command."""
    setting = LIBGOMP if way == WAYS[0] else way
    environment = unset() | (dict([setting.split("=")]) if way != "ours" else {})
    with tempfile.TemporaryDirectory() as folder:
        line = [sys.executable, "-m", "ablate", *overrides, "logger=none", f"output_dir={folder}"]
        before = resource.getrusage(resource.RUSAGE_CHILDREN)
        try:
            subprocess.run(line, check=True, capture_output=True, env=environment, timeout=limit)
            (result,) = Path(folder).rglob("result.json")
            seconds = json.loads(result.read_text())["train_seconds"]
        except subprocess.TimeoutExpired:
            seconds = limit
        after = resource.getrusage(resource.RUSAGE_CHILDREN)
    cpu = after.ru_utime + after.ru_stime - before.ru_utime - before.ru_stime
    print(f"{way}: {seconds:.1f} s", file=sys.stderr)
    return seconds, cpu


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.split("\n")[0])
    parser.add_argument("--beside", nargs="*", default=["none", "loops:1", "torch:1", "torch:2"])
    parser.add_argument("--ways", nargs="*", default=WAYS, help="ours: what a command sets itself")
    parser.add_argument("--rounds", type=int, default=3)
    parser.add_argument("--steps", type=int, default=60)
    parser.add_argument("--limit", type=float, default=300)
    parser.add_argument("overrides", nargs="*")
    args = parser.parse_args()
    steps = f"trainer.max_steps={args.steps}"
    overrides = [*args.overrides, steps, f"trainer.val_check_interval={args.steps}"]
    print(f"{os.cpu_count()} cores, {' '.join(overrides)}")
    print(head("beside", "threads wait", "seconds", "ratio", "CPU s"))
    for neighbor in args.beside:
        ways = {way: partial(measure, way, overrides, args.limit) for way in args.ways}
        print(f"beside {neighbor}:", file=sys.stderr)
        with busy(neighbor):
            found = in_turns(ways, args.rounds)
        first = [seconds for seconds, _ in found[args.ways[0]]]
        for way, pairs in found.items():
            seconds, cpu = zip(*pairs, strict=True)
            medians = [f"{statistics.median(times):.1f}" for times in (seconds, cpu)]
            cells = medians[0], f"{ratio(seconds, first):.2f}", medians[1]
            print(row(neighbor, way, *cells), flush=True)


if __name__ == "__main__":
    main()
