"""What is edited while a study runs, and other commands for its folder meanwhile."""

import json
import shutil
import sys
from importlib import import_module
from pathlib import Path

import pytest
from make_sweep import tiny_for, write_sweep
from refusals import refusal, refused

from ablate.config.composition import Composition, compose
from ablate.run_files import write_json
from ablate.study import sweeper
from ablate.study.launch.locks import one_plan
from ablate.training.train import finished

pytest_plugins = ["command_line"]

STUDY = "{factors: {pos_enc: [none]}, seeds: 1}"
BODY = """defaults:
  - override /optimizer: mine
optimizer:
  weight_decay: ${oc.decode:${oc.env:DECAY}}
model:
  dropout: 0.25
task:
  _target_: edited.Mine
"""
OPTION = "_target_: torch.optim.AdamW\n_partial_: true\nlr: 0.1\n"
PART = "from ablate.task.causal_lm import CausalLM\n\n\nclass Mine(CausalLM):\n    pass\n"
COST = {"wall_seconds": 9.0, "train_seconds": 8.0, "flops_per_step": 5, "steps": 12}

# A file and what is edited in it, or a variable and its value; how the refusal names that.
EDITS = {
    "option": ("own/optimizer/mine.yaml", "lr: 0.1", "lr: 1.0", "lr=0.1 in the plan and 1 now"),
    "sweep": ("own/sweep/mine.yaml", "dropout: 0.25", "dropout: 0.5", "0.25 in the plan and 0.5"),
    "data": ("tiny.txt", "cat", "dog", "the data (fingerprint "),
    "part": ("edited.py", "    pass", "    ours = 1", "edited: edited since "),
    "environment": ("", "0.1", "0.2", "decay=0.1 in the plan and 0.2 now"),
}  # fmt: skip


@pytest.fixture
def trained(ablate_command, monkeypatch):
    """Folders of the runs that were trained; `after` is called after each."""
    folders = []

    def train(composition, run_dir, began):
        if (done := finished(composition, run_dir)) is not None:
            return done
        folders.append(run_dir)
        result = {"status": "finished", "run_id": composition.id, "metrics": {"val/loss": 1.0}}
        write_json(run_dir / "result.json", result | COST | {"arm": composition.cfg.study.arm})
        trained.after()
        return {"metric": {"value": 1.0}}

    def trained():
        return [folder.name for folder in folders]

    trained.after = lambda: None
    monkeypatch.setattr(import_module("ablate.training.train"), "train", train)
    return trained


@pytest.fixture
def argv(tmp_path, monkeypatch):
    """What is typed for a study of two runs that reads all that is edited."""
    (tmp_path / "own" / "optimizer").mkdir(parents=True)
    (tmp_path / "own" / "optimizer" / "mine.yaml").write_text(OPTION)
    (tmp_path / "edited.py").write_text(PART)
    monkeypatch.delitem(sys.modules, "edited", raising=False)
    monkeypatch.setenv("DECAY", "0.1")
    tiny = tiny_for(STUDY, tmp_path, "model.dropout")
    return [*write_sweep(tmp_path, STUDY, body=BODY), *tiny, "hydra/launcher=basic"]


def edit(file, old, new):
    text = file.read_text()
    assert old in text
    file.write_text(text.replace(old, new))


@pytest.mark.ci
def test_a_run_is_the_planned_one_whatever_is_edited(
    argv, ablate_command, trained, tmp_path, monkeypatch
):
    option, *change = tmp_path / EDITS["option"][0], *EDITS["option"][1:3]
    trained.after = lambda: edit(option, *change)
    said = "[pos_enc=none seed=0] rejected not the run that was planned: optimizer.lr=0.1 in the"
    refusal(ablate_command(*argv), said, code=1)
    study = tmp_path / "outputs" / "mine"
    cells = json.loads((study / "plan.json").read_text())["cells"]
    planned = [cell["folder"] for cell in cells]
    assert trained() == planned[:1]

    edit(option, *change[::-1])
    trained.after = lambda: None
    typed = [*cells[1]["overrides"], f"study.name={study.name}"]
    for name, old, new, said in EDITS.values():
        again = Path(tmp_path, name).read_text() if name else ""
        if name:
            edit(tmp_path / name, old, new)
        monkeypatch.setenv("DECAY", "0.1" if name else new)
        composition = Composition(compose(*typed, config_dir=tmp_path / "own"))
        with refused(said, "put that back, and the same command trains it"):
            finished(composition, study / planned[1])
        if name:
            (tmp_path / name).write_text(again)
    monkeypatch.setenv("DECAY", "0.1")
    assert ablate_command(*argv)[0] == 0
    assert trained() == planned


@pytest.mark.ci
def test_commands_that_run_a_study_at_the_same_time_have_one_plan(
    argv, ablate_command, trained, tmp_path, monkeypatch
):
    study = tmp_path / "outputs" / "mine"
    other = tmp_path / "plan.json"

    def begins_first(*_):
        """Another command has looked for a plan before this one wrote it, and writes it first."""
        study.mkdir(parents=True, exist_ok=True)
        (study / "plan.json").write_text(other.read_text())

    assert ablate_command(*argv, "model.dropout=0.5")[0] == 0
    shutil.move(study / "plan.json", other)
    with monkeypatch.context() as patch:
        patch.setattr(sweeper, "launcher_of", begins_first)
        refusal(ablate_command(*argv), "model.dropout=0.5 there and 0.25 here")
    assert (study / "plan.json").read_text() == other.read_text()

    (study / "plan.json").unlink()
    assert ablate_command(*argv)[0] == 0
    plan = (study / "plan.json").read_text()
    with one_plan(study, lambda alone: None):  # as a command does that still runs
        assert ablate_command(*argv)[0] == 0
        said = "another command runs this study now, with other seeds, runs; choose another study"
        refusal(ablate_command(*argv, "study.seeds=2"), said)
        assert (study / "plan.json").read_text() == plan
    assert ablate_command(*argv, "study.seeds=2")[0] == 0  # it may grow
    assert len(trained()) == 6
