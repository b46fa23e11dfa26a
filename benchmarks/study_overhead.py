"""Seconds that a study loses with each of its runs, beside the run itself.

    python benchmarks/study_overhead.py [--runs 6] [--slots 1] [OVERRIDE ...]

Tiny runs that differ by the seed, by `python -m ablate -m` with hydra/launcher=local. A run's own
time is wall_seconds of its result.json: from when its model stands to its last figure. What a study
loses is all else: starting, planning, importing torch (once for the planning and once for the
runs), composing, reading data, ending. `lost per run` is that, slot by slot, divided by the runs;
`one more run` leaves out what is paid once a study: the differences between a study of all runs and
one of two runs in each slot.
"""

import argparse
import json
import subprocess
import sys
import tempfile
import time
from pathlib import Path

from tables import table

TINY = [
    "data.seq_len=32", "model.dim=32", "model.depth=1", "trainer.max_steps=20",
    "trainer.val_check_interval=20", "schedule.warmup=2", "logger=none",
]  # fmt: skip


def study(runs: int, slots: int, overrides: list[str]) -> tuple[float, float]:
    """Seconds of the whole command, and of its runs, slots counted as one."""
    seeds = f"seed={','.join(map(str, range(runs)))}"
    with tempfile.TemporaryDirectory() as folder:
        own = [
            f"output_dir={folder}",
            f"hydra.launcher.max_parallel_runs={slots}",
            "hydra/launcher=local",
        ]
        began = time.perf_counter()
        line = [sys.executable, "-m", "ablate", "-m", *TINY, *overrides, seeds, *own]
        subprocess.run(line, check=True, capture_output=True)
        wall = time.perf_counter() - began
        results = [json.loads(path.read_text()) for path in Path(folder).rglob("result.json")]
    assert [result["status"] for result in results] == ["finished"] * runs
    return wall, sum(result["wall_seconds"] for result in results) / slots


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--runs", type=int, default=6)
    parser.add_argument("--slots", type=int, default=1)
    args, overrides = parser.parse_known_args()
    if args.runs <= 2 * args.slots:
        parser.error("--runs must be more than twice --slots")
    wall, own = study(args.runs, args.slots, overrides)
    least, of_least = study(2 * args.slots, args.slots, overrides)
    turns = args.runs / args.slots  # runs one after the other in a slot
    more = ((wall - own) - (least - of_least)) / (turns - 2)
    heads = ("runs", "slots", "wall s", "runs' own s", "lost per run s", "one more run s")
    measured = f"{wall:.1f}", f"{own:.1f}", f"{(wall - own) / turns:.2f}", f"{more:.2f}"
    print(table(heads, [(args.runs, args.slots, *measured)]), end="")


if __name__ == "__main__":
    main()
