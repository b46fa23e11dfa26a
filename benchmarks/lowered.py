"""Layers of attention whose scores are lowered to products, against one of plain scaled dot.

    OMP_NUM_THREADS=1 python benchmarks/lowered.py
    OMP_NUM_THREADS=1 python benchmarks/lowered.py --dtype bfloat16 --lengths 128 1024

A layer is its projections of queries, keys and values, what the score learns, attention over
all positions and the output projection, forward and backward; plain is written by hand around
F.scaled_dot_product_attention. bfloat16 is autocast, as trainer.precision=bf16-mixed has it. All
take turns, `--rounds` times; a ratio is the median over the rounds of seconds / plain's.
"""

import argparse
import statistics
import time
from collections.abc import Callable
from functools import partial
from typing import Any

import torch
import torch.nn.functional as F
from hydra.utils import get_class, instantiate
from omegaconf import OmegaConf
from torch import Tensor, nn
from turns import cuda_clock, in_turns, ratio, seconds

from ablate.config.tree import config_dir
from ablate.kernel.sdpa import SDPA
from ablate.model.layers.layer import Context, LayerSpec
from ablate.model.mask.none import NoMask
from ablate.model.mixer.attention import Attention
from ablate.model.normalizer.softmax import Softmax
from ablate.pos_enc.none import NoPosEnc

DIM, HEADS, POSITIONS = 256, 4, 2048  # positions of a batch together


class Plain(nn.Module):
    """Vaswani et al. 2017, section 3.2.2, and nothing else."""

    def __init__(self) -> None:
        super().__init__()
        self.query, self.key, self.value, self.out = (nn.Linear(DIM, DIM) for _ in range(4))

    def forward(self, x: Tensor) -> Tensor:
        maps = (self.query, self.key, self.value)
        q, k, v = (f(x).unflatten(2, (HEADS, -1)).transpose(1, 2) for f in maps)
        return self.out(F.scaled_dot_product_attention(q, k, v).transpose(1, 2).flatten(2))


def lowered() -> dict[str, Any]:
    """The scores of conf/model.attention/ that are lowered, by name."""
    files = sorted((config_dir() / "model.attention").glob("*.yaml"))
    found = {file.stem: OmegaConf.load(file) for file in files}
    return {
        name: instantiate(config)
        for name, config in found.items()
        if "dot_product" in get_class(config["_target_"]).needs
    }


def layer(score: Any, length: int) -> Callable[[Tensor], Tensor]:
    pos = NoPosEnc(dim=DIM, heads=HEADS, head_dim=DIM // HEADS, length=length, depth=1)
    place = LayerSpec(
        DIM, HEADS, length, grid=None, bias=True, std=0.02, out_std=0.02, dropout=0.0, score=score,
        normalizer=Softmax(), kernel=SDPA(), mask=NoMask(causal=False), pos=pos,
    )  # fmt: skip
    made, context = Attention(place), Context(pos)
    return lambda x: made(x, context)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.split("\n")[0])
    parser.add_argument("--lengths", nargs="*", type=int, default=[64, 128, 256, 512, 1024])
    parser.add_argument("--dtype", choices=["float32", "bfloat16"], default="float32")
    parser.add_argument("--device", choices=["cpu", "cuda"], default="cpu")
    parser.add_argument("--rounds", type=int, default=15)
    args = parser.parse_args()
    print(f"torch {torch.__version__}, {torch.get_num_threads()} thread(s), {args.dtype}, "
          f"{HEADS} heads of {DIM // HEADS}, {POSITIONS} positions in a batch")  # fmt: skip
    for length in args.lengths:
        torch.manual_seed(0)
        with torch.device(args.device):
            x = torch.randn(POSITIONS // length, length, DIM, requires_grad=True)
            ways = {"plain": Plain()} | {name: layer(s, length) for name, s in lowered().items()}

        def run(way: Callable[[Tensor], Tensor], x: Tensor = x) -> None:
            half = args.dtype == "bfloat16"
            with torch.autocast(args.device, torch.bfloat16, enabled=half):
                y = way(x)
            y.float().square().mean().backward()

        clock = cuda_clock if args.device == "cuda" else time.perf_counter
        calls = {name: partial(seconds, partial(run, way), clock) for name, way in ways.items()}
        in_turns(calls, 1)
        found = in_turns(calls, args.rounds)
        ratios = {name: ratio(times, found["plain"]) for name, times in found.items()}
        print(f"{length}: plain {1000 * statistics.median(found['plain']):.1f} ms; "
              + ", ".join(f"{name} {ratio:.2f}" for name, ratio in ratios.items()
                          if name != "plain"), flush=True)  # fmt: skip


if __name__ == "__main__":
    main()
