"""What study.pack saves: seeds of one arm as separate runs and in packs, as whole commands.

    python benchmarks/pack.py [--seeds 8] [--pack 4] [--repeats 3] [--batched auto] [OVERRIDE ...]

A GPT 64 wide at the size of sweep=attention_scores, by `python -m ablate -m` with
hydra/launcher=local: as many runs at once as there are cores, with packs as many packs. Both in
turns; a ratio is the median of those of neighbours. `wall s` is the whole command; `CPU s` what all
its processes used, which other work on the machine disturbs less; `steps s` is train_seconds of
result.json, summed over the seeds.
"""

import argparse
import json
import resource
import subprocess
import sys
import tempfile
import time
from pathlib import Path
from statistics import median

SIZE = [
    "pos_enc=sinusoidal", "data.seq_len=64", "data.batch_size=16", "model.dim=64", "model.depth=2",
    "model.heads=4", "optimizer.lr=3e-3", "trainer.max_steps=300", "trainer.val_check_interval=100",
    "schedule.warmup=30", "logger=none",
    "trainer.precision=32-true",  # that of packs, on a GPU too
]  # fmt: skip


def study(seeds: int, pack: int, batched: str, overrides: list[str]) -> tuple[float, float, float]:
    """Seconds of the whole command: by the clock, of its processes, of training steps."""
    with tempfile.TemporaryDirectory() as folder:
        own = [f"study.pack={pack}", f"study.batched={batched}", f"output_dir={folder}"]
        varied = f"seed={','.join(map(str, range(seeds)))}"
        line = [sys.executable, "-m", "ablate", "-m", *SIZE, *overrides, varied, *own]
        used, began = resource.getrusage(resource.RUSAGE_CHILDREN), time.perf_counter()
        subprocess.run(line, check=True, capture_output=True)
        wall = time.perf_counter() - began
        now = resource.getrusage(resource.RUSAGE_CHILDREN)
        results = [json.loads(path.read_text()) for path in Path(folder).rglob("result.json")]
    assert [result["status"] for result in results] == ["finished"] * seeds
    cpu = now.ru_utime + now.ru_stime - used.ru_utime - used.ru_stime
    steps = sum(result["train_seconds"] for result in results)
    return wall, cpu, steps


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--seeds", type=int, default=8)
    parser.add_argument("--pack", type=int, default=4)
    parser.add_argument("--repeats", type=int, default=3)
    parser.add_argument("--batched", default="auto")
    args, overrides = parser.parse_known_args()
    pairs = []
    for _ in range(args.repeats):
        alone = study(args.seeds, 1, "auto", overrides)
        pairs.append((alone, study(args.seeds, args.pack, args.batched, overrides)))
    print("| | wall s | CPU s | steps s |")
    print("|---|---|---|---|")
    for name, side in (("separate", 0), (f"packs of {args.pack}", 1)):
        print(f"| {name} |", *(f"{median(p[side][n] for p in pairs):.1f} |" for n in range(3)))
    print("| ratio |", *(f"{median(b[n] / a[n] for a, b in pairs):.2f} |" for n in range(3)))


if __name__ == "__main__":
    main()
