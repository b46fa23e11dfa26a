"""Averages of the weights: what is measured and kept, and what training goes on from."""

import json
from pathlib import Path

import pytest
import torch
from omegaconf import DictConfig
from test_resume import SHORT, assert_resumes, at_step, last
from tiny import overrides as tiny
from tiny import rows_of

import ablate
from ablate.errors import UserError
from ablate.training.load import load

FREE = ("optimizer=schedule_free", "schedule=constant", "optimizer.warmup_steps=2")


@pytest.mark.ci
def test_an_average_is_measured_and_kept_and_trains_nothing(tmp_path: Path) -> None:
    typed = tiny(tmp_path, *SHORT)
    result = ablate.run(ablate.compose(*typed, "task.ema=0.5"), tmp_path / "run")
    plain = ablate.run(ablate.compose(*typed), tmp_path / "plain")
    assert result["metrics"]["val/loss"] != plain["metrics"]["val/loss"]
    assert result["kernels"] == plain["kernels"]  # those of the average, which is measured, too
    of_training = [last(tmp_path / name)["state_dict"] for name in ("run", "plain")]
    names = [name for name in of_training[1] if name.startswith("model.")]
    assert names
    assert all(torch.equal(of_training[0][n], of_training[1][n]) for n in names)
    measured = {int(row["step"]): row["val/loss"] for row in rows_of(tmp_path / "run")}
    assert result["best_step"] < result["steps"]
    assert len({*measured.values()} - {""}) == 4
    assert float(measured[result["best_step"]]) == pytest.approx(result["metrics"]["val/loss"])


def test_an_average_and_a_schedule_free_optimizer_exclude_each_other(tmp_path: Path) -> None:
    with pytest.raises(UserError, match=r"task\.ema=0\.5: the optimizer averages the weights"):
        ablate.compose(*tiny(tmp_path, *FREE, "task.ema=0.5"))


def test_schedule_free_measures_the_average_of_the_paper() -> None:
    """x_t+1 = (1 - c) x_t + c z_t+1, c = 1 / (t + 1), of plain steps z, with gradients at
    y = (1 - beta) z + beta x; without warm-up, with one rate (Defazio et al. 2024, section 2)."""
    import schedulefree

    torch.manual_seed(0)
    target, beta, lr = torch.randn(5).double(), 0.9, 0.01
    theirs = torch.nn.Parameter(torch.zeros(5).double())
    optimizer = schedulefree.SGDScheduleFree([theirs], lr=lr, momentum=beta)
    optimizer.train()
    x = z = torch.zeros(5).double()
    for t in range(6):
        (theirs - target).pow(3).sum().backward()
        optimizer.step()
        optimizer.zero_grad()
        y = (1 - beta) * z + beta * x
        z = z - lr * 3 * (y - target).square()
        x = (1 - 1 / (t + 1)) * x + z / (t + 1)
    optimizer.eval()
    torch.testing.assert_close(theirs.detach(), x)


@pytest.fixture(scope="module")
def free(tmp_path_factory: pytest.TempPathFactory) -> tuple[DictConfig, Path]:
    """A schedule-free training, and the folder of its run."""
    folder = tmp_path_factory.mktemp("free")
    cfg = ablate.compose(*tiny(folder, *SHORT, *FREE))
    ablate.run(cfg, folder / "whole")
    return cfg, folder / "whole"


@pytest.mark.ci
def test_a_schedule_free_training_resumes_bit_for_bit(
    free: tuple[DictConfig, Path], tmp_path: Path
) -> None:
    assert_resumes(free, tmp_path, **at_step(5))


@pytest.mark.ci
def test_validation_changes_no_step_of_a_schedule_free_training(
    free: tuple[DictConfig, Path], tmp_path: Path
) -> None:
    cfg, whole = free
    often = cfg.copy()
    often.trainer.val_check_interval = 1
    ablate.run(often, tmp_path)
    states = [last(folder)["state_dict"] for folder in (tmp_path, whole)]
    for name in states[0]:
        assert torch.equal(states[0][name], states[1][name]), name


def test_the_last_step_of_a_schedule_free_training_is_measured(
    free: tuple[DictConfig, Path], tmp_path: Path
) -> None:
    """Also if its validation is after training."""
    cfg, whole = free
    seldom = cfg.copy()
    seldom.trainer.val_check_interval = cfg.trainer.max_steps - 1
    result = ablate.run(seldom, tmp_path)
    known = json.loads((whole / "result.json").read_text())
    assert (result["best_step"], result["metrics"]) == (known["best_step"], known["metrics"])


def test_a_finished_run_holds_what_was_measured(free: tuple[DictConfig, Path]) -> None:
    task = load(free[1]).task
    weights = last(free[1])["callbacks"]["Average"]
    assert all(torch.equal(p, weights[f"module.{n}"]) for n, p in task.model.named_parameters())
    (group, *_) = last(free[1])["optimizer_states"][0]["param_groups"]
    assert group["train_mode"]
    name = "stack.blocks.0.attention.function.query.weight"
    trained_on = last(free[1])["state_dict"][f"model.{name}"]
    assert not torch.equal(trained_on, task.model.get_parameter(name))
