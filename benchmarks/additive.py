"""The additive score's ways through kernel=chunked: fused, compiled, plain, side by side.

    OMP_NUM_THREADS=1 python benchmarks/additive.py [--rounds 3]

Forward and backward, in turns; milliseconds of the fastest pass after the first.
"""

import argparse
from functools import partial

import torch
from tables import head, row
from turns import in_turns, seconds

from ablate.kernel import AttentionInputs
from ablate.kernel.chunked import Chunked
from ablate.model.attention.additive import Additive
from ablate.model.mask.none import NoMask
from ablate.model.normalizer.softmax import Softmax
from ablate.pos_enc.none import NoPosEnc

SIZES = ((1, 4, 1024, 64), (16, 4, 64, 16), (16, 4, 128, 32))  # batch, heads, length, head width
WAYS = {"fused": "auto", "compiled": True, "plain": False}  # kernel.compile


def fastest(size: tuple[int, int, int, int], rounds: int) -> dict[str, float]:
    """Seconds of each way."""
    batch, heads, length, width = size
    q, k, v = (torch.randn(batch, heads, length, width, requires_grad=True) for _ in range(3))
    score = Additive(hidden=None, heads=heads, query_dim=width, key_dim=width, length=length)
    torch.nn.init.normal_(score.v)
    pos = NoPosEnc(dim=heads * width, heads=heads, head_dim=width, length=length, depth=1)
    attend = AttentionInputs(
        q=q,
        k=k,
        v=v,
        score=score,
        normalizer=Softmax(),
        mask=NoMask(causal=False),
        pos=pos,
        layer=0,
    )
    kernels = {
        name: Chunked(chunk=None, compile=compile).resolve(score.needs | pos.needs)  # type: ignore[arg-type]
        for name, compile in WAYS.items()
    }
    ways = {
        name: partial(seconds, lambda run=run: run(attend).sum().backward())
        for name, run in kernels.items()
    }
    found = in_turns(ways, rounds + 1)
    return {name: min(times[1:]) for name, times in found.items()}  # the first compiles


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--rounds", type=int, default=3)
    rounds = parser.parse_args().rounds
    torch.manual_seed(0)
    print(head("batch, heads, length, width", "threads", *WAYS))
    for size in SIZES:
        found = fastest(size, rounds)
        least = found["fused"]
        cells = [f"{1e3 * s:.1f} ({s / least:.1f})" for s in found.values()]
        print(row(", ".join(map(str, size)), torch.get_num_threads(), *cells))


if __name__ == "__main__":
    main()
