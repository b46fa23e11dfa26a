"""Lightning callbacks of the user: they act, several at once, and a run with them resumes."""

import json
import signal

import pytest
from test_resume import assert_equal, at_step, result, strike
from tiny import overrides

import ablate
from ablate.config.composition import Composition
from ablate.errors import RunFailed, UserError

quick = pytest.mark.usefixtures("no_figures")
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


@quick
def test_training_ends_early_and_says_so(tmp_path, capsys):
    done = ablate.run(ablate.compose(*overrides(tmp_path, *STOPPING)), tmp_path / "run")
    assert (done["status"], done["steps"]) == ("finished", 6)
    assert "a callback ended the training after step 6 of 12" in "".join(capsys.readouterr())


@quick
@pytest.mark.parametrize("step", [3, 5])
def test_a_stopped_run_resumes_with_what_its_callbacks_remember(own, tmp_path, step):
    """Of step 6 the checkpoint is there, and nothing is left to train."""
    several = [text.replace("=early_stopping", "=[early_stopping,losses]") for text in STOPPING[:1]]
    cfg = ablate.compose(*overrides(tmp_path, *several, *STOPPING[1:]), config_dir=own)
    ablate.run(cfg, tmp_path / "whole")
    assert strike(cfg, tmp_path / "killed", **at_step(step)) == -signal.SIGKILL
    ablate.run(cfg, tmp_path / "killed")
    assert_equal(tmp_path / "killed", tmp_path / "whole")
    seen = [(tmp_path / name / "seen.txt").read_text() for name in ("killed", "whole")]
    assert seen[0] == seen[1]
    assert len(json.loads(seen[0])) == result(tmp_path / "whole")["steps"] == 6


@quick
def test_a_run_killed_after_its_last_validation_trains_no_further(tmp_path):
    from ablate.training.train import Curves

    cfg = ablate.compose(*overrides(tmp_path, *STOPPING))
    ablate.run(cfg, tmp_path / "whole")
    assert strike(cfg, tmp_path / "killed", place=(Curves, "on_train_end")) == -signal.SIGKILL
    ablate.run(cfg, tmp_path / "killed")
    assert_equal(tmp_path / "killed", tmp_path / "whole")


def test_a_callback_counts_in_the_id_of_a_run(own, tmp_path):
    plain, stopping, two, every = (
        Composition(ablate.compose(*overrides(tmp_path, *more), config_dir=own)).id
        for more in (
            (),
            STOPPING[:1],
            ("callbacks=losses",),
            ("callbacks=losses", "callbacks.losses.every=2"),
        )
    )
    assert len({plain, stopping, two, every}) == 4


@pytest.mark.parametrize(
    ("typed", "says"),
    [
        ("+callbacks.x=3", r"callbacks\.x: must be a node with _target_"),
        ("+callbacks.x._target_=torch.nn.ReLU", "is no lightning.pytorch.callbacks.Callback"),
        ("+callbacks.x._target_=lightning.pytorch.callbacks.Timer", r"trainer\.max_steps=N"),
        (
            "+callbacks.x={_target_: lightning.pytorch.callbacks.StochasticWeightAveraging,"
            " swa_lrs: 0.1}",
            r"counts epochs.*task\.ema",
        ),
        ("+callbacks.x._target_=lightning.pytorch.callbacks.ModelCheckpoint", "is not needed"),
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


@quick
@pytest.mark.parametrize("there", [True, False])
def test_device_stats_reach_the_logger_or_name_their_package(tmp_path, monkeypatch, there):
    if there:
        pytest.importorskip("psutil")
        pytest.importorskip("tensorboard")
    else:
        monkeypatch.setattr("ablate.training.callbacks.find_spec", lambda name: None)
    stats = ("callbacks=device_stats", "logger=tensorboard")
    typed = [text for text in overrides(tmp_path, *stats) if text != "logger=none"]
    if not there:
        with pytest.raises(UserError, match="pip install psutil"):
            ablate.run(ablate.compose(*typed), tmp_path / "run")
        return
    assert ablate.run(ablate.compose(*typed), tmp_path / "run")["status"] == "finished"
    from tensorboard.backend.event_processing.event_accumulator import EventAccumulator

    read = EventAccumulator(str(tmp_path / "run/tensorboard"))
    read.Reload()
    assert any("cpu_percent" in tag for tag in read.Tags()["scalars"])


@quick
def test_a_metric_that_is_not_there_is_named(tmp_path):
    cfg = ablate.compose(
        *overrides(tmp_path, *STOPPING, "callbacks.early_stopping.monitor=val/lss")
    )
    with pytest.raises(RunFailed, match=r"val/lss: no such metric; .*did you mean 'val/loss'"):
        ablate.run(cfg, tmp_path / "run")
