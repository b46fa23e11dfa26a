"""Lightning callbacks of the user: they act, several at once, and a run with them resumes."""

import json

import pytest
from lightning.pytorch.callbacks import Callback
from test_resume import assert_resumes, at_step, result
from tiny import overrides

import ablate
from ablate.config.composition import Composition
from ablate.errors import RunFailed, UserError
from ablate.training.curves import Curves

# Nothing is better by 9 nats: training ends at the third validation, of step 6.
STOPPING = (
    *("callbacks=early_stopping", "callbacks.early_stopping.min_delta=9"),
    *("callbacks.early_stopping.patience=2", "trainer.val_check_interval=2"),
)
LOSSES = """
import lightning.pytorch as L

class Losses(L.Callback):
    def __init__(self, every):
        self.every, self.seen = every, []

    def state_dict(self):
        return {"seen": self.seen}

    def load_state_dict(self, state):
        self.seen = state["seen"]

    def on_train_batch_end(self, trainer, task, outputs, batch, batch_idx):
        if trainer.global_step % self.every == 0:
            self.seen.append(float(outputs["loss"]))

    def on_train_end(self, trainer, task):
        path = f"{trainer.default_root_dir}/seen.txt"
        with open(path, "w") as file:
            file.write(repr(self.seen))
"""


@pytest.fixture
def own(tmp_path, monkeypatch):
    """A folder of the user's own options, with a callback beside it that Python can import."""
    (tmp_path / "losses.py").write_text(LOSSES)
    (tmp_path / "conf/callbacks").mkdir(parents=True)
    (tmp_path / "conf/callbacks/losses.yaml").write_text(
        "losses:\n  _target_: losses.Losses\n  every: 1\n"
    )
    monkeypatch.syspath_prepend(tmp_path)
    return tmp_path / "conf"


@pytest.mark.ci
def test_training_ends_early_and_resumes_with_what_its_callbacks_remember(own, tmp_path, capsys):
    several = [text.replace("=early_stopping", "=[early_stopping,losses]") for text in STOPPING[:1]]
    cfg = ablate.compose(*overrides(tmp_path, *several, *STOPPING[1:]), config_dir=own)
    whole = tmp_path / "whole"
    ablate.run(cfg, whole)
    assert "a callback ended the training after step 6 of 12" in "".join(capsys.readouterr())
    nothing_left = {"place": (Curves, "on_train_end")}  # the last validation is behind it
    for name, moment in {"killed": at_step(3), "after": nothing_left}.items():
        assert_resumes((cfg, whole), tmp_path / name, **moment)
    seen = [(tmp_path / name / "seen.txt").read_text() for name in ("killed", "whole")]
    assert seen[0] == seen[1]
    assert len(json.loads(seen[0])) == result(whole)["steps"] == 6


def test_a_callback_counts_in_the_id_of_a_run(own, tmp_path):
    losses = "callbacks=losses"
    several = [(), STOPPING[:1], (losses,), (losses, "callbacks.losses.every=2")]
    composed = [ablate.compose(*overrides(tmp_path, *more), config_dir=own) for more in several]
    assert len({Composition(cfg).id for cfg in composed}) == 4


@pytest.mark.ci
@pytest.mark.parametrize(
    ("typed", "says"),
    [
        ("+callbacks.x=3", r"callbacks\.x: must be a node with _target_"),
        ("+callbacks.x._target_=torch.nn.ReLU", "is not a lightning.pytorch.callbacks.Callback"),
        ("+callbacks.x._target_=lightning.pytorch.callbacks.Timer", r"trainer\.max_steps=N"),
        ("+callbacks.x._target_=lightning.pytorch.callbacks.TQDMProgressBar", "is not needed"),
        (
            "+callbacks.x._target_=lightning.pytorch.callbacks.LearningRateMonitor",
            "LearningRateMonitor needs a logger",
        ),
        ("+callbacks.x._target_=no.where.Callback", "cannot be imported"),
        ("+callbacks.x._target_=losses.Losses", "missing 1 required positional argument: 'every'"),
    ],
)
def test_what_is_no_callback_is_refused(own, tmp_path, typed, says):
    with pytest.raises(UserError, match=says):
        ablate.run(ablate.compose(*overrides(tmp_path, typed), config_dir=own), tmp_path / "run")


@pytest.mark.ci
def test_device_stats_reach_the_logger_or_name_their_package(tmp_path, monkeypatch):
    pytest.importorskip("psutil")
    events = pytest.importorskip("tensorboard.backend.event_processing.event_accumulator")
    stats = ("callbacks=device_stats", "logger=tensorboard")
    typed = [text for text in overrides(tmp_path, *stats) if text != "logger=none"]
    assert ablate.run(ablate.compose(*typed), tmp_path / "run")["status"] == "finished"
    read = events.EventAccumulator(str(tmp_path / "run/tensorboard"))
    read.Reload()
    assert any("cpu_percent" in tag for tag in read.Tags()["scalars"])
    monkeypatch.setattr("ablate.training.callbacks.find_spec", lambda name: None)
    with pytest.raises(UserError, match="pip install psutil"):
        ablate.run(ablate.compose(*typed), tmp_path / "without")


class Silent(Callback):
    """One of the user's, which might log a metric."""


def test_a_metric_that_is_not_there_is_named(tmp_path):
    misspelled = "callbacks.early_stopping.monitor=val/lss"
    cfg = ablate.compose(*overrides(tmp_path, *STOPPING, misspelled))
    says = r"val/lss: no such metric; .*did you mean 'val/loss'"
    with pytest.raises(UserError, match=says):
        ablate.run(cfg, tmp_path / "run")
    assert not (tmp_path / "run" / "result.json").exists()
    # A callback of one's own may log it; else it is missing after the first validation.
    own = "+callbacks.own._target_=test_callbacks.Silent"
    with pytest.raises(RunFailed, match=says):
        ablate.run(
            ablate.compose(*overrides(tmp_path, *STOPPING, misspelled, own)), tmp_path / "own"
        )
