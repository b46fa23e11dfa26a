"""What every task does: stops at the first loss that is not finite, shares batches of pairs."""

import json
import math
from types import SimpleNamespace

import make_files
import pytest
import torch
from make_axes import MODELS
from make_data import ready
from make_rows import base
from tiny import images, overrides

import ablate
from ablate.config.composition import Composition
from ablate.errors import RunFailed, UserError
from ablate.study.plan.budget import measured
from ablate.task.causal_lm import CausalLM
from ablate.task.classification import Classification
from ablate.training.build import build, build_data, make_task
from ablate.training.train import full_pass, prepare


@pytest.mark.parametrize(
    ("task", "tiny", "more", "looked_at"),
    [
        (CausalLM, overrides, ["trainer.val_check_interval=8"], 8),  # before validation
        (CausalLM, overrides, ["trainer.log_every_n_steps=3"], 3),  # before it is logged
        # The accuracy is a number whatever the weights are, and no best.safetensors may come of it.
        (Classification, images, [], 2),
    ],
)
@pytest.mark.parametrize("bad", [math.nan, math.inf])
def test_the_first_bad_loss_is_named_when_it_is_looked_at(
    tmp_path, monkeypatch, task, tiny, more, looked_at, bad
):
    """A GPU would wait for a loss that is looked at, so it is not looked at after every step."""
    loss, step, seen = task.loss, 1, []

    def explode(self, batch):
        seen.append(self.global_step)
        value = loss(self, batch)
        return value * bad if self.global_step == step else value

    monkeypatch.setattr(task, "loss", explode)
    cfg = ablate.compose(*tiny(tmp_path, "trainer.log_every_n_steps=100", *more))
    with pytest.raises(RunFailed, match=f"the loss is infinite or nan at step {step}: try"):
        ablate.run(cfg)
    assert len(seen) == looked_at
    assert json.loads((Composition(cfg).folder / "result.json").read_text())["status"] == "failed"
    assert list((Composition(cfg).folder / "checkpoints").iterdir()) == []


@pytest.mark.parametrize("model", MODELS)
def test_the_names_of_all_measures_are_known_before_training(model, tmp_path, monkeypatch):
    make_files.write(tmp_path, monkeypatch)
    cfg = base(model)
    data = build_data(cfg)
    network = build(cfg, data)
    (tmp_path / "checkpoints").mkdir()
    trainer, task, _, _ = prepare(cfg, tmp_path, data, network)
    found, known = full_pass(trainer, task, data), measured(cfg, build_data)
    rest = [name for name in known if name not in found]
    assert set(found) <= set(known)
    assert all("/accuracy/length_" in name for name in rest)  # lengths that do not occur


def task_of(processes, **values):
    """A classification on the digits as a Trainer with that many processes would hold it."""
    data = ready("digits", **values)
    settings = {"label_smoothing": 0.0, "mixup": 0.2, "cutmix": 0.0, "seed": 0}
    task = Classification(
        torch.nn.Linear(1, 1), data=data, optimizer=None, schedule=None, **settings
    )
    task.trainer = SimpleNamespace(world_size=processes)
    return task


def test_a_bad_loss_of_another_process_stops_this_one_too():
    task = task_of(2)
    asked = []

    def reduce(step, reduce_op):
        asked.append(reduce_op)
        return torch.minimum(step, torch.tensor(3))

    task.trainer.strategy = SimpleNamespace(reduce=reduce)
    with pytest.raises(RunFailed, match="at step 3"):
        task.require_finite_losses()
    assert asked == ["min"]


@pytest.mark.parametrize("processes", [1, 2, 3])
def test_pairs_are_mixed_within_a_process(processes):
    task_of(processes, batch_size=2 * processes).setup("fit")
    odd = task_of(processes, batch_size=3 * processes)
    odd.setup("validate")  # nothing is mixed
    with pytest.raises(
        UserError,
        match=rf"data.batch_size={3 * processes}: .*of {2 * processes}, .*trainer\.devices",
    ):
        odd.setup("fit")


@pytest.mark.parametrize(
    ("choices", "peeks"),
    [
        (["model.mask=causal"], False),
        (["model.mask=window"], False),
        (["model.mask=none"], True),
        (["model.mask=prefix", "model.mask.size=4"], True),
    ],
)
def test_a_loss_is_said_to_be_none_where_the_model_sees_what_it_is_to_predict(
    tmp_path, choices, peeks
):
    cfg = ablate.compose(*overrides(tmp_path, *choices))
    data = build_data(cfg)
    assert ("caution" in make_task(cfg, data, build(cfg, data)).notes()) == peeks


@pytest.mark.parametrize(("mask", "peeks"), [("causal", False), ("none", True)])
def test_an_encoder_may_see_everything_and_a_decoder_not(mask, peeks):
    cfg = ablate.compose("model=transformer", "data=reverse", f"model.mask={mask}")
    data = build_data(cfg)
    assert ("caution" in make_task(cfg, data, build(cfg, data)).notes()) == peeks
