"""What giving back glibc's holes costs and saves: kernel=chunked with the additive score.

    OMP_NUM_THREADS=1 python benchmarks/heap.py [--lengths 1024 4096] [--rounds 3] [--causal]

With and without, in turns within one process: CPU seconds of the fastest pass, there and back.
The growth of resident memory needs a process for each: benchmarks/attention.py --one.
"""

import argparse
import time

import torch
from attention import HEADS, WIDTH, ours

from ablate.kernel import heap


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.split("\n")[0])
    parser.add_argument("--lengths", nargs="*", type=int, default=[1024, 4096])
    parser.add_argument("--rounds", type=int, default=3)
    parser.add_argument("--causal", action="store_true")
    args = parser.parse_args()
    print("| length | without | with | ratio |\n|---|---|---|---|")
    give_back = heap.give_back
    ways = {"without": lambda: None, "with": give_back}
    for length in args.lengths:
        q, k, v = (torch.randn(1, HEADS, length, WIDTH, requires_grad=True) for _ in range(3))
        attend = ours("additive", "chunked", length, args.causal, q, k, v)
        fastest = dict.fromkeys(ways, float("inf"))
        for _ in range(args.rounds):
            for way, heap.give_back in ways.items():
                start = time.process_time()
                attend().square().mean().backward()
                fastest[way] = min(fastest[way], time.process_time() - start)
        without, with_it = fastest.values()
        cells = f"{without:.2f} | {with_it:.2f} | {with_it / without:.3f}"
        print(f"| {length} | {cells} |", flush=True)


if __name__ == "__main__":
    main()
