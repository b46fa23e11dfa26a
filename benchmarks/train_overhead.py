"""Our training step rate against a bare PyTorch loop around the same model and batches.

    python benchmarks/train_overhead.py [OVERRIDE ...]

Both train the same composed model for the same number of steps, in turns within one process, five
times; the ratio is the median of (bare seconds / our seconds). 1.0 means that Lightning, logging
and common random numbers cost nothing. The last line also says how much arithmetic our steps did a
second (matrix products, forward and backward): over the peak of the machine it is the share used.
With trainer=gpu both run there, in the precision of the run.
"""

import statistics
import sys
import tempfile
import time
from pathlib import Path

import torch
from omegaconf import DictConfig

import ablate
from ablate.build import build, build_data, make_task
from ablate.train import count_flops, prepare

STEPS, ROUNDS = 100, 5


def compose(*overrides: str) -> DictConfig:
    """The run, without a validation or checkpoint in between: a bare loop has none."""
    fixed = [f"trainer.max_steps={STEPS}", f"trainer.val_check_interval={STEPS}", "logger=none",
             "schedule.warmup_steps=10", "checkpoint_every=100000"]  # fmt: skip
    return ablate.compose(*overrides, *fixed)


def bare(cfg: DictConfig) -> float:
    """Seconds of a loop as one would write it by hand: loss, backward, clip, step."""
    data = build_data(cfg)
    data.train_batches = STEPS
    task = make_task(cfg, data, build(cfg, data))
    gpu = cfg.trainer.accelerator != "cpu"
    device = torch.device("cuda" if gpu else "cpu")
    mixed = torch.autocast(device.type, torch.bfloat16, cfg.trainer.precision == "bf16-mixed")
    model = task.model.to(device).train()
    optimizer = task.make_optimizer([{"params": list(model.parameters())}])
    images = "image_size" in data.sizes
    start = time.perf_counter()
    for batch in data.train_dataloader():
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
    if gpu:
        torch.cuda.synchronize()
    return time.perf_counter() - start


def ours(cfg: DictConfig) -> float:
    """Seconds that `ablate` reports for the training steps themselves."""
    with tempfile.TemporaryDirectory() as folder:
        data = build_data(cfg)
        (Path(folder) / "checkpoints").mkdir()
        trainer, task, curves, _ = prepare(cfg, Path(folder), data, build(cfg, data))
        trainer.fit(task, datamodule=data)
        return curves.train_seconds


def main() -> None:
    cfg = compose(*sys.argv[1:])
    bare(cfg)
    ours(cfg)
    data = build_data(cfg)
    flops = count_flops(cfg, make_task(cfg, data, build(cfg, data)))
    ratios = []
    for round_ in range(ROUNDS):
        # Turn about, so that a slow moment of the machine does not always meet the same one.
        first, second = (bare, ours) if round_ % 2 else (ours, bare)
        seconds = {first: first(cfg), second: second(cfg)}
        ratios.append(seconds[bare] / seconds[ours])
        rates = [STEPS / seconds[which] for which in (bare, ours)]
        print(f"bare {rates[0]:.1f} steps/s, ours {rates[1]:.1f} steps/s, ratio {ratios[-1]:.3f}, "
              f"ours {rates[1] * flops / 1e12:.3f} TFLOP/s", flush=True)  # fmt: skip
    print(
        f"median ratio {statistics.median(ratios):.3f} ({' '.join(sys.argv[1:]) or 'default run'})"
    )


if __name__ == "__main__":
    main()
