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
from functools import partial

import torch
from torch import Tensor
from turns import in_turns, seconds

import ablate
from ablate.model.base import Model, outputs
from ablate.training.build import build, build_data, make_task
from ablate.training.compile import Compiled

BATCHES = 24


def train(model: Model, batches: list[tuple[Tensor, ...]]) -> None:
    for inputs in batches:
        model.zero_grad()
        torch.stack([value.square().mean() for value in outputs(model(*inputs))]).sum().backward()


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
    batches = [task.inputs(batch) for batch in data.train_dataloader()]
    run = partial(seconds, partial(train, model, batches))
    warm = [run(), run()]
    compiled = Compiled()
    compiled.begin(model.compiles, options={"fallback_random": True})
    print(f"compiling: {run() + run() - sum(warm):.1f} s more", flush=True)

    def switched(on: bool) -> float:
        compiled._switch(on=on)
        return run()

    found = in_turns({on: partial(switched, on) for on in (False, True)}, args.rounds)
    ratios = [one / other for one, other in zip(found[True], found[False], strict=True)]
    print(f"{statistics.median(found[False]) / BATCHES * 1e3:.1f} ms a step as it is, "
          f"{statistics.median(found[True]) / BATCHES * 1e3:.1f} compiled; ratios "
          f"{', '.join(f'{ratio:.3f}' for ratio in ratios)}; "
          f"median {statistics.median(ratios):.3f} ({' '.join(args.overrides)})")  # fmt: skip


if __name__ == "__main__":
    main()
