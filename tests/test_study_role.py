"""What a run is filed under: by the plan of its study."""

import json
from pathlib import Path

import offline_wandb
import pytest
from make_study import arm, make_study
from tiny import overrides

import ablate
from ablate.config.composition import Composition
from ablate.logger.role import Role
from ablate.logger.wandb import fitted


def role(study: Path, name: str, kind: str = "") -> Role:
    """Of the first run of an arm."""
    folder = min(study.glob(f"{kind}{name.replace(' ', '_')}-*"))
    return Role.of(folder, "s", name)


def test_a_run_without_a_study(tmp_path: Path) -> None:
    alone = Role.of(tmp_path / "0123456789ab", "runs", None)
    assert alone == Role("runs")
    assert alone.block(seed=3, parameters=10, flops=20) == {
        "study": "runs",
        "arm": None,
        "factor": None,
        "option": None,
        "seed": 3,
        "is_baseline": None,
        "parameters": 10,
        "flops": 20,
    }


def test_arms_have_what_they_change(tmp_path: Path) -> None:
    both = "model.norm=post model.residual=false"
    arms = {"baseline": arm([1.0]), "model.norm=post": arm([1.1]), both: arm([1.2])}
    study = make_study(tmp_path / "s", arms)
    assert role(study, "baseline") == Role("s", "baseline", is_baseline=True)
    changed = {"factor": "model.norm", "option": "post", "is_baseline": False}
    assert role(study, "model.norm=post") == Role("s", "model.norm=post", **changed)
    found = role(study, both)
    assert (found.factor, found.option) == ("model.norm + model.residual", "post + false")


def test_a_run_that_tunes_is_not_averaged_with_those_that_count(tmp_path: Path) -> None:
    arms = {"baseline": arm([1.0], tuned={"optimizer.lr": 1e-3})}
    study = make_study(tmp_path / "s", arms, tune={"optimizer.lr": [1e-3, 3e-3]})
    found = role(study, "baseline", "tune-")
    assert found == Role("s", "baseline (tuning)", is_baseline=False, tunes=True)
    assert role(study, "baseline").arm == "baseline"


@pytest.mark.parametrize("plan", [None, "", '{"cells": ['])
def test_a_plan_that_cannot_be_read_stops_no_run(tmp_path: Path, plan: str | None) -> None:
    if plan is not None:
        (tmp_path / "plan.json").write_text(plan)
    assert Role.of(tmp_path / "a=1-0123456789ab", "s", "a=1") == Role("s", "a=1")


def test_long_names_are_shortened_and_stay_apart() -> None:
    names = ["x" * 64, "x" * 64 + "a", "x" * 64 + "b"]
    short = [fitted(name, 64) for name in names]
    assert [len(name) for name in short] == [64, 64, 64]
    assert short[0] == names[0]
    assert len(set(short)) == 3
    assert all("…" in name for name in short[1:])


def test_a_real_run_says_what_it_is(tmp_path: Path) -> None:
    """Trained in the folder that the plan gives it; read back from W&B's own file."""
    typed = ["study.name=s", "study.arm='model.attention=dot'", "model.attention=dot", "seed=3"]
    cfg = ablate.compose(*overrides(tmp_path, *typed, "logger=wandb", "trainer.max_steps=4"))
    folder = Composition(cfg).folder
    arm = {
        "name": "model.attention=dot",
        "is_baseline": False,
        "changes": {"model.attention": "dot"},
    }
    cell = {"folder": folder.name, "kind": "run"}
    folder.mkdir(parents=True)
    plan = {
        "study": "s",
        "seeds": [0],
        "metric": {"name": "val/loss", "mode": "min"},
        "arms": [arm],
        "cells": [{"arm": arm["name"], "seed": 3, "run_id": folder.name, **cell}],
    }
    (folder.parent / "plan.json").write_text(json.dumps(plan))
    result = ablate.run(cfg)
    (offline,) = offline_wandb.run_folders(folder)
    run = offline_wandb.read(offline)
    assert (run.run_id, run.group, run.job_type) == (
        result["run_id"],
        "s/model.attention=dot",
        "train",
    )
    assert (run.name, run.tags) == ("model.attention=dot seed 3", ["s", "model.attention=dot"])
    assert run.config["ablate"] == {
        "study": "s",
        "arm": "model.attention=dot",
        "factor": "model.attention",
        "option": "dot",
        "seed": 3,
        "is_baseline": False,
        "parameters": result["parameters"]["total"],
        "flops": result["flops_per_step"],
    }
