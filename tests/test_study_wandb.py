"""What the runs of a study are filed under at W&B."""

import json
import shlex
import subprocess
import sys

import offline_wandb
import pytest
from make_study import arm, make_study
from tiny import overrides
from wandb_server import running

from ablate.logger.role import Role
from ablate.logger.wandb import fitted

STUDY = ["-m", "model.attention=dot,cosine", "study.seeds=[0,1]", "study.name='a study'",
         "study.tune={optimizer.lr: [0.001]}"]  # fmt: skip
DOT, COSINE = "model.attention=dot", "model.attention=cosine"


def test_a_run_is_filed_under_its_arm_and_what_that_changes(tmp_path):
    both = "model.norm=post model.residual=false"
    arms = {"baseline": arm([1.0], tuned={"optimizer.lr": 1e-3}), both: arm([1.2])}
    study = make_study(tmp_path / "s", arms, tune={"optimizer.lr": [1e-3, 3e-3]})

    def role(name):
        folder = min(study.glob(f"{name.replace(' ', '_')}-*"))
        return Role.of(folder, "s", name.removeprefix("tune-"))

    assert role("baseline") == Role("s", "baseline", is_baseline=True)
    assert role("tune-baseline") == Role("s", "baseline (tuning)", is_baseline=False, tunes=True)
    found = role(both)
    assert (found.factor, found.option) == ("model.norm + model.residual", "post + false")
    assert Role.of(tmp_path / "0123456789ab", "runs", None) == Role("runs")
    for damage in ("", '{"cells": ['):
        (tmp_path / "plan.json").write_text(damage)
        assert Role.of(tmp_path / "a=1-0123456789ab", "s", "a=1") == Role("s", "a=1")


def test_long_names_are_shortened_and_stay_apart():
    names = ["x" * 64, "x" * 64 + "a", "x" * 64 + "b"]
    short = [fitted(name, 64) for name in names]
    assert [len(name) for name in {*short}] == [64, 64, 64]
    assert short[0] == names[0]


def typed(command, folder, **more):
    """What the command printed; it must succeed."""
    pipes = {"stdin": subprocess.DEVNULL, "capture_output": True, "text": True, "timeout": 600}
    around = offline_wandb.without_settings(folder, **more)
    done = subprocess.run(command, shell=True, env=around, cwd=folder, **pipes)
    assert done.returncode == 0, done.stdout + done.stderr
    return done.stdout


@pytest.mark.slow
def test_runs_of_a_study_are_told_apart_at_wandb(tmp_path):
    arguments = [text for text in overrides(tmp_path) if not text.startswith("logger=")]
    study = tmp_path / "outputs" / "a study"

    # Trained without a key: every run lies offline, and says what it is.
    line = shlex.join([sys.executable, "-m", "ablate", *STUDY, *arguments])
    printed = typed(line, tmp_path)
    cells = json.loads((study / "plan.json").read_text())["cells"]
    for cell in cells:
        folder, counts = study / cell["folder"], cell["kind"] == "run"
        (offline,) = offline_wandb.run_folders(folder)
        run = offline_wandb.read(offline)
        result = json.loads((folder / "result.json").read_text())
        arm = cell["arm"] if counts else f"{cell['arm']} (tuning)"
        changed = ("model.attention", "cosine") if cell["arm"] == COSINE else (None, None)
        assert (run.run_id, run.job_type) == (cell["run_id"], "train" if counts else "tune")
        assert run.group == f"a study/{arm}"
        assert run.config["ablate"] == {
            "study": "a study",
            "arm": arm,
            "factor": changed[0],
            "option": changed[1],
            "seed": cell["seed"],
            "is_baseline": counts and cell["arm"] == DOT,
            "parameters": result["parameters"]["total"],
            "flops": result["flops_per_step"],
            "commit": run.config["ablate"]["commit"],
        }
        git = json.loads((folder / "provenance.json").read_text())["git"]
        assert (run.config["ablate"]["commit"] or "").startswith(git["commit"] if git else "")

    # One printed command sends them all.
    (sync,) = [line for line in printed.splitlines() if line.startswith("  wandb sync ")]
    with running() as server:
        typed(sync, tmp_path, **server.environment)
        assert set(server.runs) == {cell["run_id"] for cell in cells}
        assert {len(run["history"]) > 3 for run in server.runs.values()} == {True}
