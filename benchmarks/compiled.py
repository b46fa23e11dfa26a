"""A model's training pass with compile=true against the same as it is.

    python benchmarks/compiled.py [--rounds 7] [OVERRIDE ...]
    python benchmarks/compiled.py model=rnn_seq2seq model.decoder=bahdanau

Forward and backward through the model over the same BATCHES batches of the data, without a loss and
an optimizer, in turns in one process; a ratio is compiled seconds / seconds as it is in the same
round. Two passes before them are not counted: their seconds, less those of two passes as it is, are
what compiling costs.
"""

import argparse
import statistics
import time
from functools import partial

import torch
from torch import Tensor

import ablate
from ablate.model.base import Model, outputs
from ablate.training.build import build, build_data, make_task
from ablate.training.compile import Compiled

BATCHES = 24


def seconds(model: Model, batches: list[tuple[Tensor, ...]]) -> float:
    start = time.perf_counter()
    for inputs in batches:
        model.zero_grad()
        torch.stack([value.square().mean() for value in outputs(model(*inputs))]).sum().backward()
    return time.perf_counter() - start


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.split("\n")[0])
    parser.add_argument("--rounds", type=int, default=7)
    parser.add_argument("overrides", nargs="*")
    args = parser.parse_args()
    cfg = ablate.compose(*args.overrides, "compile=true", "logger=none")
    data = build_data(cfg)
    data.train_batches = BATCHES
    model = build(cfg, data).train()
    task = make_task(cfg, data, model)
    run = partial(seconds, model, [task.inputs(batch) for batch in data.train_dataloader()])
    warm = [run(), run()]
    compiled = Compiled()
    compiled.begin(model.compiles, options={"fallback_random": True})
    print(f"compiling: {run() + run() - sum(warm):.1f} s more", flush=True)
    found: dict[bool, list[float]] = {True: [], False: []}
    for round_ in range(args.rounds):
        for on in (True, False) if round_ % 2 else (False, True):
            compiled._switch(on=on)
            found[on].append(run())
    ratios = [one / other for one, other in zip(found[True], found[False], strict=True)]
    print(f"{statistics.median(found[False]) / BATCHES * 1e3:.1f} ms a step as it is, "
          f"{statistics.median(found[True]) / BATCHES * 1e3:.1f} compiled; ratios "
          f"{', '.join(f'{ratio:.3f}' for ratio in ratios)}; "
          f"median {statistics.median(ratios):.3f} ({' '.join(args.overrides)})")  # fmt: skip


if __name__ == "__main__":
    main()
