"""What dropout costs: draws by splitmix64 (ablate.random.draws) beside torch's generator.

    OMP_NUM_THREADS=1 python benchmarks/draws.py [--rounds 30]

In turns within one process: the fastest call in milliseconds of CPU time. "torch" draws as many
bits by `random_` and drops as we do; "F.dropout" is torch's own.
"""

import argparse
import time

import torch
from torch.nn import functional as F

from ablate.random.draws import Source
from ablate.random.dropout import dropout, scales

RATE = 0.1
SHAPES = [(32, 64, 128), (64, 64, 128), (8, 4, 256, 256)]


def by_torch(x: torch.Tensor) -> torch.Tensor:
    drawn = torch.empty(-(-x.numel() // 4), dtype=torch.int64).random_(-(2**63), None)
    return x * scales(drawn.view(torch.int16)[: x.numel()], RATE, x).view(x.shape)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.split("\n")[0])
    parser.add_argument("--rounds", type=int, default=30)
    args = parser.parse_args()
    key = torch.tensor(1234567)
    ways = {
        "ours": lambda x: dropout(x, RATE, Source(key)),
        "torch": by_torch,
        "F.dropout": lambda x: F.dropout(x, RATE),
    }
    print("| units | ours | torch | F.dropout | ours / torch |\n|---|---|---|---|---|")
    for shape in SHAPES:
        x = torch.randn(shape)
        fastest = dict.fromkeys(ways, float("inf"))
        for _ in range(args.rounds):
            for name, way in ways.items():
                start = time.process_time()
                way(x)
                fastest[name] = min(fastest[name], time.process_time() - start)
        ours, theirs, own = (1000 * seconds for seconds in fastest.values())
        size = " x ".join(map(str, shape))
        print(f"| {size} | {ours:.2f} | {theirs:.2f} | {own:.2f} | {ours / theirs:.2f} |")


if __name__ == "__main__":
    main()
