"""What giving back glibc's holes costs and saves: kernel=chunked with the additive score.

    OMP_NUM_THREADS=1 python benchmarks/heap.py [--lengths 1024 4096] [--rounds 3] [--causal]

With and without, in turns within one process: CPU seconds of the fastest pass, there and back.
The growth of resident memory needs a process for each: benchmarks/attention.py --one.
"""

import argparse
import time
from functools import partial
from typing import Any

import torch
from attention import WIDTH, Setting, ours
from tables import head, row
from turns import in_turns, seconds

from ablate.kernel import heap

HEADS = 4
GIVE_BACK = heap.give_back


def cpu_seconds(attend: Any, *, give_back: bool) -> float:
    heap.give_back = GIVE_BACK if give_back else lambda: None
    return seconds(lambda: attend().square().mean().backward(), time.process_time)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.split("\n")[0])
    parser.add_argument("--lengths", nargs="*", type=int, default=[1024, 4096])
    parser.add_argument("--rounds", type=int, default=3)
    parser.add_argument("--causal", action="store_true")
    args = parser.parse_args()
    print(head("length", "without", "with", "ratio"))
    sizes = (args.causal, 1, HEADS, args.rounds, "cpu", "float32", None)
    setting = Setting("additive", "chunked", "none", *sizes)
    for length in args.lengths:
        leaves = [torch.randn(1, HEADS, length, WIDTH, requires_grad=True) for _ in range(3)]
        attend, _ = ours(setting, leaves, torch.float32)
        ways = {on: partial(cpu_seconds, attend, give_back=on) for on in (False, True)}
        without, with_it = (min(found) for found in in_turns(ways, args.rounds).values())
        cells = f"{without:.2f}", f"{with_it:.2f}", f"{with_it / without:.3f}"
        print(row(length, *cells), flush=True)


if __name__ == "__main__":
    main()
