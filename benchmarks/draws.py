"""What dropout costs: draws by splitmix64 (ablate.random.draws) beside torch's generator.

    OMP_NUM_THREADS=1 python benchmarks/draws.py [--rounds 30]
    python benchmarks/draws.py --device cuda

In turns within one process: the fastest call in milliseconds, of CPU time, or until the GPU has
done it. "torch" draws as many bits by `random_` and drops as we do; "F.dropout" is torch's own.
"""

import argparse
import time

import torch
from torch.nn import functional as F

from ablate.random.draws import Source
from ablate.random.dropout import dropout, scales

RATE = 0.1
SHAPES = [(32, 64, 128), (64, 64, 128), (8, 4, 256, 256)]
LARGE = [(16, 1024, 768), (16, 12, 1024, 1024)]  # on a GPU: of GPT-2's smallest size


def by_torch(x: torch.Tensor) -> torch.Tensor:
    drawn = torch.empty(-(-x.numel() // 4), dtype=torch.int64, device=x.device)
    drawn.random_(-(2**63), None)
    return x * scales(drawn.view(torch.int16)[: x.numel()], RATE, x).view(x.shape)


def now(gpu: bool) -> float:
    """Seconds: of this process, or after all that was given to the GPU."""
    if not gpu:
        return time.process_time()
    torch.cuda.synchronize()
    return time.perf_counter()


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
    print("| units | ours | torch | F.dropout | ours / torch |\n|---|---|---|---|---|")
    for shape in [*SHAPES, *(LARGE if gpu else [])]:
        x = torch.randn(shape, device=args.device)
        fastest = dict.fromkeys(ways, float("inf"))
        for _ in range(args.rounds):
            for name, way in ways.items():
                start = now(gpu)
                way(x)
                fastest[name] = min(fastest[name], now(gpu) - start)
        ours, theirs, own = (1000 * seconds for seconds in fastest.values())
        size = " x ".join(map(str, shape))
        print(f"| {size} | {ours:.2f} | {theirs:.2f} | {own:.2f} | {ours / theirs:.2f} |")


if __name__ == "__main__":
    main()
