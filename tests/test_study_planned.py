"""A run of a study is given the configuration that its plan has checked."""

import json
import sys
import traceback

import lightning.pytorch as L
import pytest
from make_launch import run_of
from make_sweep import laid_out
from tiny import overrides

import ablate
from ablate.config import check
from ablate.errors import UserError
from ablate.machine.version import PACKAGE
from ablate.run_files import PLANNED
from ablate.study.launch import worker
from ablate.study.launch.worker import read
from ablate.study.plan.cells import PlannedRuns
from ablate.study.plan.planned_run import PlannedRun, Resolved
from ablate.training import build
from ablate.training.train import train

pytest_plugins = ["command_line"]
WITH_COUNTS = True


@pytest.fixture
def checks(monkeypatch):
    """Grows with every check of a configuration."""
    counted, usual = [], check.wrong_patterns
    monkeypatch.setattr(check, "wrong_patterns", lambda cfg: counted.append(1) or usual(cfg))
    return counted


def test_a_configuration_is_checked_once_for_all_runs_of_an_arm(tmp_path, checks):
    layout = laid_out(tmp_path, "{factors: {pos_enc: [none, rotary]}, seeds: 2}")
    runs = PlannedRuns().by_seed(layout.arms, layout.seeds)
    assert (len(runs), len(checks)) == (6, 3)
    for run in runs:
        (tmp_path / PLANNED).write_text(run.file)
        composition = read(tmp_path / PLANNED, run.entry()["sha256"])
        assert composition.id == composition.planned_id == run.run_id
        assert composition.cfg["study"]["arm"] == run.arm
        assert composition.cfg.seed == run.seed
    assert len(checks) == 3


def test_a_file_with_another_hash_runs_no_code(tmp_path):
    """The study may be untrusted."""
    run = run_of(tmp_path, ablate.compose(*overrides(tmp_path)), ())
    _, expected = run.prepare().arguments
    content = json.loads((tmp_path / PLANNED).read_text())
    content["config"]["model"]["_target_"] = "os.system"
    (tmp_path / PLANNED).write_text(json.dumps(content))
    with pytest.raises(UserError, match=r"planned\.json was changed after its run was planned"):
        read(tmp_path / PLANNED, expected)


def test_a_configuration_that_json_would_change_is_rejected(tmp_path):
    cfg = ablate.compose(*overrides(tmp_path))
    cfg.evaluate = {1: {"data.seq_len": 8}}
    with pytest.raises(UserError, match=r"evaluate\.1: cannot be passed to a run"):
        PlannedRun("", 0, "", "", "run", (), resolved=Resolved(cfg)).file  # noqa: B018


@pytest.mark.ci
def test_few_functions_are_above_the_trainer(tmp_path, ablate_command, monkeypatch):
    """Of a command, and of the process of a run of a study."""
    found, package = [], str(PACKAGE)

    def fit(*_, **__):
        names = [f.name for f in traceback.extract_stack() if f.filename.startswith(package)]
        found.append(names[:-1])
        raise UserError("stopped")

    monkeypatch.setattr(L.Trainer, "fit", fit)
    monkeypatch.setattr("ablate.training.train.train", train)
    command = overrides(tmp_path)
    assert ablate_command(*command)[0] == 2
    run = run_of(tmp_path / "run", ablate.compose(*command), ())
    run.folder.mkdir()
    monkeypatch.setattr(sys, "argv", ["", *run.prepare().arguments])
    with pytest.raises(SystemExit):
        worker.main()
    assert found == [["main", "job", "train"], ["main", "train"]]


@pytest.mark.ci
def test_a_run_builds_its_model_three_times(tmp_path, monkeypatch):
    """On the meta device, to count it; with its values; and with the reference kernel, to compare
    what it computes with the defaults of its keys."""
    cfg = ablate.compose(*overrides(tmp_path, "pos_enc=rotary"))
    built, usual = [], build.make_model

    def counted(made, *arguments):
        built.append((made.model, made.pos_enc) == (cfg.model, cfg.pos_enc))
        return usual(made, *arguments)

    def fit(*_, **__):
        raise UserError("stopped")

    monkeypatch.setattr(build, "make_model", counted)
    monkeypatch.setattr(L.Trainer, "fit", fit)
    with pytest.raises(UserError, match="stopped"):
        ablate.run(cfg)
    assert built.count(True) == 3
    assert False in built  # the default of a key that is changed
