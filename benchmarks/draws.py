"""What dropout costs: draws by splitmix64 (ablate.random.draws) beside torch's generator.

    OMP_NUM_THREADS=1 python benchmarks/draws.py [--rounds 30]
    python benchmarks/draws.py --device cuda

In turns within one process: the fastest call in milliseconds, of CPU time, or until the GPU has
done it. "torch" draws as many bits by `random_` and drops as we do; "F.dropout" is torch's own.
"""

import argparse
import time
from functools import partial

import torch
from tables import head, row
from torch.nn import functional as F
from turns import cuda_clock, in_turns, seconds

from ablate.random.draws import Source
from ablate.random.dropout import dropout, scales

RATE = 0.1
SHAPES = [(32, 64, 128), (64, 64, 128), (8, 4, 256, 256)]
LARGE = [(16, 1024, 768), (16, 12, 1024, 1024)]  # on a GPU: of GPT-2's smallest size


def by_torch(x: torch.Tensor) -> torch.Tensor:
    drawn = torch.empty(-(-x.numel() // 4), dtype=torch.int64, device=x.device)
    drawn.random_(-(2**63), None)
    return x * scales(drawn.view(torch.int16)[: x.numel()], RATE, x).view(x.shape)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.split("\n")[0])
    parser.add_argument("--rounds", type=int, default=30)
    parser.add_argument("--device", choices=["cpu", "cuda"], default="cpu")
    args = parser.parse_args()
    gpu = args.device == "cuda"
    key = torch.tensor(1234567, device=args.device)
    ways = {
        "ours": lambda x: dropout(x, RATE, Source(key)),
        "torch": by_torch,
        "F.dropout": lambda x: F.dropout(x, RATE),
    }
    clock = cuda_clock if gpu else time.process_time
    print(head("units", *ways, "ours / torch"))
    for shape in [*SHAPES, *(LARGE if gpu else [])]:
        x = torch.randn(shape, device=args.device)
        calls = {name: partial(seconds, partial(way, x), clock) for name, way in ways.items()}
        ours, theirs, own = (1000 * min(found) for found in in_turns(calls, args.rounds).values())
        cells = (f"{number:.2f}" for number in (ours, theirs, own, ours / theirs))
        print(row(" x ".join(map(str, shape)), *cells))


if __name__ == "__main__":
    main()
