"""Our training step against a bare PyTorch loop around the same model and batches.

    python benchmarks/train_overhead.py [OVERRIDE ...] [--ours OVERRIDE ...]
    python benchmarks/train_overhead.py experiment=nanogpt_cpu data.path=FILE
    python benchmarks/train_overhead.py experiment=nanogpt_cpu data.path=FILE --ours compile=true

Both train the same composed model, in turns within one process, five times; a ratio is our seconds
/ bare seconds over the same steps, after some that are not counted (compiling). The bare loop has
torch's own defaults and knows nothing of what stands after --ours. 1.0 means that Lightning,
logging and common random numbers cost nothing. Each line also says how much arithmetic our steps
did a second (matrix products, forward and backward): over the peak of the machine it is the share
used. With trainer=gpu both run there, in the precision of the run.
"""

import argparse
import tempfile
import time
from functools import partial
from pathlib import Path
from typing import Any

import torch
from lightning.pytorch.callbacks import Callback
from omegaconf import DictConfig
from turns import cuda_clock, in_turns, ratio

import ablate
from ablate.training.build import build, build_data, make_task
from ablate.training.train import count_flops, prepare

WARM, STEPS, ROUNDS = 20, 100, 5  # steps before the clock runs, steps counted


def compose(*overrides: str) -> DictConfig:
    """The run, without a validation or checkpoint in between: a bare loop has none."""
    steps = WARM + STEPS
    fixed = [f"trainer.max_steps={steps}", f"trainer.val_check_interval={steps}", "logger=none",
             "schedule.warmup=10", "checkpoint_every=100000"]  # fmt: skip
    return ablate.compose(*overrides, *fixed)


def bare(cfg: DictConfig) -> float:
    """Seconds of a loop as one would write it by hand: loss, backward, clip, step."""
    data = build_data(cfg)
    data.train_batches = WARM + STEPS
    task = make_task(cfg, data, build(cfg, data))
    gpu = cfg.trainer.accelerator != "cpu"
    device = torch.device("cuda" if gpu else "cpu")
    mixed = torch.autocast(device.type, torch.bfloat16, cfg.trainer.precision == "bf16-mixed")
    model = task.model.to(device).train()
    chosen: Any = task.make_optimizer
    keys = {key: value for key, value in chosen.keywords.items() if key != "fused"}
    optimizer = chosen.func(model.parameters(), **keys)
    images = data.sizes.image_size is not None
    for number, batch in enumerate(data.train_dataloader()):
        if number == WARM:
            start = now()
        batch = {name: tensor.to(device, non_blocking=True) for name, tensor in batch.items()}
        with mixed:
            logits = model(batch["images"] if images else batch["tokens"])
            loss = torch.nn.functional.cross_entropy(
                logits.reshape(-1, logits.shape[-1]),
                batch["targets"].reshape(-1),
                ignore_index=-100,
            )
        loss.backward()
        torch.nn.utils.clip_grad_norm_(model.parameters(), 1.0)
        optimizer.step()
        optimizer.zero_grad()
    return now() - start


def now() -> float:
    return cuda_clock() if torch.cuda.is_initialized() else time.perf_counter()


class Clock(Callback):
    def on_train_batch_start(self, trainer: Any, task: Any, batch: Any, batch_idx: int) -> None:
        if batch_idx == WARM:
            self.start = now()

    def on_validation_start(self, trainer: Any, task: Any) -> None:
        self.seconds = now() - self.start


def ours(cfg: DictConfig) -> float:
    """Seconds of the same steps in `ablate`."""
    with tempfile.TemporaryDirectory() as folder:
        data = build_data(cfg)
        (Path(folder) / "checkpoints").mkdir()
        trainer, task, _, _ = prepare(cfg, Path(folder), data, build(cfg, data))
        clock = Clock()
        trainer.callbacks.insert(0, clock)
        trainer.fit(task, datamodule=data)
        return clock.seconds


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.split("\n")[0])
    parser.add_argument("overrides", nargs="*")
    parser.add_argument("--ours", nargs="*", default=[], help="overrides of our side alone")
    args = parser.parse_args()
    both, mine = compose(*args.overrides), compose(*args.overrides, *args.ours)
    data = build_data(both)
    task = make_task(both, data, build(both, data))
    flops = count_flops(both, task, task.model.to("meta"))
    found = in_turns({ours: partial(ours, mine), bare: partial(bare, both)}, ROUNDS)
    for theirs, own in zip(found[bare], found[ours], strict=True):
        rates = STEPS / theirs, STEPS / own
        done = f"{rates[1] * flops / 1e12:.3f} TFLOP/s"
        print(f"bare {rates[0]:.1f} steps/s, ours {rates[1]:.1f} steps/s, ratio {own / theirs:.3f},"
              f" ours {done}")  # fmt: skip
    what = " ".join([*args.overrides, *(["ours:"] if args.ours else []), *args.ours])
    print(f"median ratio {ratio(found[ours], found[bare]):.3f} ({what or 'default run'})")


if __name__ == "__main__":
    main()
