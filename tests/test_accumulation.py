"""trainer.accumulate_grad_batches: the steps of the larger batch that the batches make together."""

import copy
from collections.abc import Callable
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import lightning.pytorch as L
import pytest
import torch
from lightning.pytorch.callbacks import Callback
from make_systems import rows_of_systems
from tiny import images, overrides, pairs
from torch import Tensor
from torch.nn.utils.rnn import pad_sequence

import ablate
from ablate.data import IGNORED, Batch
from ablate.data.pairs import PAD
from ablate.task.accumulation import Accumulated, total
from ablate.task.optimizing import groups_of
from ablate.training.build import build, build_data
from ablate.training.train import prepare

BATCHES, STEPS = 3, 3
ALWAYS = f"""model.dropout=0.1 trainer.precision=64-true trainer.max_steps={STEPS} optimizer.lr=0.01
    trainer.val_check_interval=1000 trainer.log_every_n_steps=1 schedule=constant schedule.warmup=0
""".split()


# Runs by their name, and whether their batches differ in the targets they hold.
RUNS: dict[str, tuple[Callable[[Path], list[str]], bool]] = {
    "pairs": (lambda folder: pairs(folder, "task.label_smoothing=0.1"), True),
    "masked tokens": (lambda folder: overrides(folder, "model=bert"), False),
}
OF_SYSTEMS = rows_of_systems("ACCUMULATED")


class Watched(Callback):
    """Remembers what every optimizer step was made of, and what it did."""

    def __init__(self) -> None:
        self.steps: list[list[Batch]] = []
        self.after: list[dict[str, Tensor]] = []

    def on_train_batch_start(
        self, trainer: L.Trainer, pl_module: L.LightningModule, batch: Any, batch_idx: int
    ) -> None:
        if batch_idx % BATCHES == 0:
            self.steps.append([])
        self.steps[-1].append(batch)

    def on_train_batch_end(
        self, trainer: L.Trainer, pl_module: L.LightningModule, *args: Any, **kwargs: Any
    ) -> None:
        if len(self.steps[-1]) == BATCHES:
            self.after.append({n: p.detach().clone() for n, p in pl_module.named_parameters()})


def joined(batches: list[Batch]) -> Batch:
    """One batch of the examples of several, padded as its data pads."""
    whole = {}
    for name in batches[0]:
        rows = [row for batch in batches for row in batch[name]]
        if rows[0].dim() == 1:
            padding = IGNORED if name == "targets" else PAD
            whole[name] = pad_sequence(rows, batch_first=True, padding_value=padding)
        else:
            whole[name] = torch.stack(rows)
    return whole


def trained(folder: Path, *typed: str) -> SimpleNamespace:
    """A training, what it starts from, in float64, and what was seen of it."""
    cfg = ablate.compose(*typed)
    data = build_data(cfg)
    (folder / "checkpoints").mkdir(parents=True)
    trainer, task, curves, _ = prepare(cfg, folder, data, build(cfg, data))
    start = copy.deepcopy(task).double()
    trainer.callbacks.append(watched := Watched())  # type: ignore[attr-defined]
    trainer.fit(task, datamodule=data)
    ended = {"task": task, "trainer": trainer, "rows": curves.rows}
    return SimpleNamespace(start=start, watched=watched, **ended)


@pytest.mark.parametrize(
    ("typed", "uneven"),
    [*RUNS.values(), *(pytest.param(*row, marks=pytest.mark.slow) for row in OF_SYSTEMS.values())],
    ids=[*RUNS, *OF_SYSTEMS],
)
def test_steps_are_those_of_the_larger_batch(typed, uneven, tmp_path):
    more = f"trainer.accumulate_grad_batches={BATCHES}"
    run = trained(tmp_path / "run", *typed(tmp_path), *ALWAYS, more)
    counts = {int((b["targets"] != IGNORED).sum()) for step in run.watched.steps for b in step}
    assert (len(counts) > 1) == uneven
    reference, watched = run.start, run.watched
    reference.trainer = run.trainer
    optimizer = reference.make_optimizer(groups_of(reference))
    assert len(watched.after) == STEPS
    rows = zip(watched.steps, watched.after, run.rows, strict=True)
    for step, (batches, after, row) in enumerate(rows):
        optimizer.zero_grad()
        reference.draws.keys = reference.draws.of_batch(reference.seed, step)
        reference.step_so_far = Accumulated(1)
        terms = reference.terms(joined(batches))
        total(terms).backward()
        torch.nn.utils.clip_grad_norm_(reference.parameters(), run.trainer.gradient_clip_val)
        optimizer.step()
        assert row["train/loss"] == pytest.approx(terms["loss"].item(), rel=1e-10)
        for parameter, value in reference.named_parameters():
            torch.testing.assert_close(after[parameter], value, rtol=1e-7, atol=1e-9)


def test_a_loss_of_layers_counts_by_the_targets_of_its_batch():
    steps = Accumulated(2)
    for targets, loss in ((100, 1.0), (300, 3.0)):
        steps.divisor(torch.tensor(float(targets)))
        steps.add({"balance": torch.tensor(loss) * steps.weight})
    assert steps.means["balance"] == 2.5


@pytest.mark.parametrize(("counts", "mean"), [((0,), 0.0), ((0, 0), 0.0), ((0, 4), 2.0)])
def test_a_batch_without_targets_adds_nothing(counts, mean):
    steps = Accumulated(len(counts))
    for count in counts:
        share = steps.share(torch.arange(5) < count, 1)
        steps.add({"loss": 2.0 * torch.tensor(count) / share})
    assert steps.means["loss"] == mean


def test_where_examples_are_shuffled_it_is_the_command_for_the_larger_batch(tmp_path):
    one, other = (
        trained(
            tmp_path / str(size),
            *images(tmp_path, *ALWAYS, f"data.batch_size={size}"),
            f"trainer.accumulate_grad_batches={batches}",
        )
        for size, batches in ((48, 1), (16, 3))
    )
    for name, value in one.task.state_dict().items():
        torch.testing.assert_close(other.task.state_dict()[name], value, rtol=1e-7, atol=1e-9)
    losses = ([row["train/loss"] for row in run.rows] for run in (one, other))
    assert next(losses) == pytest.approx(next(losses), rel=1e-10)
