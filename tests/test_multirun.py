"""Several runs by one command: -m and sweeps, with runs in this process that train nothing."""

import json
import re
from pathlib import Path
from shutil import rmtree
from types import SimpleNamespace

import pytest
from tiny import overrides

from ablate.config.composition import Composition
from ablate.config.run_id import folder_name
from ablate.errors import Interrupted
from ablate.study import sweeper

real_report = sweeper.report
pytest_plugins = ["command_line"]

HERE = "hydra/launcher=basic"
OLD = ("hydra/sweeper=basic", HERE)


def test_multirun_runs_every_combination(ablate_command, runs, tmp_path):
    argv = ["model.attention=additive,dot,scaled_dot", "seed=0,1", HERE]
    # Flags may stand between the overrides, as people type them.
    code, _, err = ablate_command(*overrides(tmp_path), "-m", *argv)
    assert (code, err) == (0, "")
    found = [(cfg.choices["model.attention"], cfg.seed) for cfg, _ in runs]
    assert found == [(a, s) for s in (0, 1) for a in ("scaled_dot", "additive", "dot")]
    (study,) = {folder.parent for _, folder in runs}
    assert study.parent == tmp_path / "outputs"
    assert study.name.startswith("model.attention-")
    for cfg, folder in runs:
        assert cfg.study.arm == f"model.attention={cfg.choices['model.attention']}"
        assert folder.name == folder_name(cfg.study.arm, Composition(cfg).id)
    plan = json.loads((study / "plan.json").read_text())
    assert [arm["is_baseline"] for arm in plan["arms"]] == [True, False, False]
    assert {cell["folder"] for cell in plan["cells"]} == {folder.name for _, folder in runs}


@pytest.mark.slow
def test_the_same_command_finds_its_folder_and_runs_what_is_missing(ablate_command, runs, tmp_path):
    tiny = overrides(tmp_path)
    for encodings, seeds in (("none,learned", "0"), ("none,learned", "0"), ("none,rotary", "0,1")):
        assert ablate_command("-m", *tiny, f"pos_enc={encodings}", f"seed={seeds}", HERE)[0] == 0
    found = [(cfg.choices.pos_enc, cfg.seed) for cfg, _ in runs]
    assert found == [("none", 0), ("learned", 0), ("rotary", 0), ("none", 1), ("rotary", 1)]
    assert len({folder.parent for _, folder in runs}) == 1
    cells = json.loads((runs[0][1].parent / "plan.json").read_text())["cells"]
    assert [cell["seed"] for cell in cells] == [0, 0, 1, 1]
    ablate_command("-m", *tiny, "pos_enc=none,learned", "model.dim=8", HERE)
    assert len({folder.parent for _, folder in runs}) == 2


def test_runs_that_cannot_be_are_refused_before_any_runs(ablate_command, runs, tmp_path):
    tiny = [text for text in overrides(tmp_path) if "heads" not in text]
    code, _, err = ablate_command("-m", *tiny, "model.heads=2,3,4,5", HERE)
    assert (code, runs, err.count("\n")) == (2, [], 1)
    assert err.startswith("ablate: 2 of 4 arms cannot be run: [model.heads=3] model.heads=3 does")
    assert "[model.heads=5]" in err
    assert not (tmp_path / "outputs").exists()
    code, _, _ = ablate_command("-m", *tiny, "model.heads=3,2,4,5", HERE, "study.on_invalid=skip")
    assert code == 0
    assert [cfg.model.heads for cfg, _ in runs] == [4, 2]
    (plan,) = (tmp_path / "outputs").glob("*/plan.json")
    arms = json.loads(plan.read_text())["arms"]
    assert [(arm["name"], arm["is_baseline"]) for arm in arms] == [
        ("model.heads=4", True),
        ("model.heads=2", False),
    ]


def test_a_failed_run_leaves_the_others_their_turn(ablate_command, fail, runs, tmp_path):
    fail.append(ZeroDivisionError("ours"))
    tiny = overrides(tmp_path)
    code, _, err = ablate_command("-m", *tiny, "seed=0,1", HERE)
    assert (code, len(runs)) == (1, 2)
    last = err.splitlines()[-1]
    assert last.startswith("ablate: 2 of 2 runs are not finished: [baseline seed=0] failed ours;")
    assert last.endswith("the same command runs them again")
    fail.clear()
    assert ablate_command("-m", *tiny, "seed=0,1", HERE)[0] == 0
    assert len(runs) == 4


def statuses(folder: Path) -> list[str]:
    return [json.loads(p.read_text())["status"] for p in sorted(folder.glob("*/result.json"))]


@pytest.mark.slow
def test_what_is_run_again(ablate_command, fail, runs, tmp_path):
    argv = ["-m", *overrides(tmp_path), "pos_enc=none,learned", HERE]
    assert ablate_command(*argv)[0] == 0
    study = runs[0][1].parent
    result = runs[0][1] / "result.json"
    failed = json.loads(result.read_text()) | {"status": "failed", "error": "nan"}
    result.write_text(json.dumps(failed))
    rmtree(runs[1][1])
    assert ablate_command(*argv, "study.rerun=failed")[0] == 1  # the other one is missing still
    assert [folder for _, folder in runs[2:]] == [runs[0][1]]
    assert ablate_command(*argv)[0] == 0
    assert [folder for _, folder in runs[3:]] == [runs[1][1]]
    assert ablate_command(*argv, "study.rerun=all")[0] == 0
    assert {folder for _, folder in runs[4:]} == {folder for _, folder in runs[:2]}
    assert statuses(study) == ["finished"] * 2
    (kept,) = (study / "old").iterdir()
    assert statuses(kept) == ["finished"] * 2


def test_a_report_and_a_launcher_that_fail_hide_nothing(ablate_command, tmp_path, monkeypatch):
    def broken(*_: object, **__: object) -> None:
        raise ZeroDivisionError("broken")

    typed = ["-m", *overrides(tmp_path), "seed=0,1", HERE]
    with monkeypatch.context() as patch:
        patch.setattr(sweeper, "launcher_of", lambda *_: SimpleNamespace(launch=broken))
        code, _, err = ablate_command(*typed)
    assert code == 1
    assert "2 of 2 runs are not finished: [baseline seed=0] missing" in err
    assert "the launcher reported: broken" in err
    monkeypatch.setattr("ablate.study.report.write_report", broken)
    monkeypatch.setattr(sweeper, "report", real_report)
    code, out, err = ablate_command(*typed)
    assert (code, err) == (0, "")
    assert "no report (broken)" in out


def test_stopping_one_run_stops_the_study(ablate_command, fail, runs, tmp_path):
    fail.append(Interrupted("stopped"))
    assert ablate_command("-m", *overrides(tmp_path), "seed=0,1,2", HERE)[0] == 130
    assert len(runs) == 1


@pytest.mark.slow
def test_hydras_own_sweeper_still_works(ablate_command, runs, tmp_path):
    code, out, err = ablate_command("-m", "model.heads=2,3,4,5", *OLD)
    assert code == 2
    assert [cfg.model.heads for cfg, _ in runs] == [4, 2]
    last = err.splitlines()[-1]
    assert last.startswith("ablate: 2 runs went wrong: [model.heads=3] model.heads=3 does not")
    assert "[model.heads=5]" in last
    assert "refused: model.heads=3 does not divide" in out
    assert {folder.parent for _, folder in runs} == {tmp_path / "outputs" / "runs"}


def test_hydras_own_sweeper_has_no_plan(ablate_command, runs):
    """What it would do nothing with is refused."""
    for argv in (["-m", "seed=0,1"], ["sweep=attention_scores"]):
        code, _, err = ablate_command(*argv, "study.margin=1", *OLD)
        assert (code, runs) == (2, [])
        assert "study." in err


def test_some_arms_may_be_run_first(ablate_command, runs, tmp_path):
    """study.only: the plan stays whole, and the same command without it runs the rest."""
    study = [*overrides(tmp_path), "-m", "model.attention=additive,dot,scaled_dot", HERE]
    assert ablate_command(*study, "study.only=['model.attention=dot']")[0] == 0
    assert [cfg.choices["model.attention"] for cfg, _ in runs] == ["scaled_dot", "dot"]
    (folder,) = {folder.parent for _, folder in runs}
    assert len(json.loads((folder / "plan.json").read_text())["cells"]) == 3
    code, _, err = ablate_command(*study, "study.only=['model.attention=dt']")
    assert code == 2
    assert "study.only: there is no arm model.attention=dt; did you mean" in err
    assert ablate_command(*study)[0] == 0
    assert [cfg.choices["model.attention"] for cfg, _ in runs] == ["scaled_dot", "dot", "additive"]


def test_a_metric_that_no_run_has_is_refused_before_any_runs(ablate_command, runs, tmp_path):
    study = [*overrides(tmp_path), "-m", "pos_enc=none,learned", HERE]
    for key, value in (("study.metric", "val/los"), ("study.also", "[val/los]")):
        code, _, err = ablate_command(*study, f"{key}={value}")
        assert (code, runs) == (2, [])
        assert f"{key}=val/los" in err
        assert "did you mean 'val/loss'?" in err


def test_the_models_own_option_is_the_baseline(ablate_command, runs, tmp_path):
    """Where it is among the values of -m; else the first of them. The plan says which."""
    for values, baseline in (("additive,dot,scaled_dot", "scaled_dot"), ("dot,cosine", "dot")):
        name = f"study.name={baseline}"  # each in a folder of its own
        argv = [*overrides(tmp_path), "-m", f"model.attention={values}", name, HERE]
        code, out, _ = ablate_command(*argv, "study.dry_run=true")
        assert code == 0
        assert f"The baseline is model.attention={baseline}." in out
        assert ablate_command(*argv)[0] == 0
        plan = json.loads((runs[-1][1].parent / "plan.json").read_text())
        assert [arm["name"] for arm in plan["arms"] if arm["is_baseline"]] == [
            f"model.attention={baseline}"
        ]


def test_a_trial_of_a_sweep_has_a_folder_of_its_own(ablate_command, runs, tmp_path):
    (tmp_path / "own/sweep").mkdir(parents=True)
    (tmp_path / "own/sweep/mine.yaml").write_text(
        "# @package _global_\nstudy:\n  name: mine\n  factors: {pos_enc: [none, learned]}\n"
    )
    given = ["--config-dir", str(tmp_path / "own"), "sweep=mine", "study.dry_run=true", HERE]

    def folder(*more: str) -> str:
        code, out, err = ablate_command(*given, *more)
        assert code == 0, err
        return re.search(r"runs in outputs/(\S+):", out)[1]

    assert folder() == folder("logger=none", "study.seeds=2") == "mine"
    trial = folder("trainer.max_steps=10")
    assert trial.startswith("mine-")
    assert trial == folder("study.seeds=3", "trainer.max_steps=10") != folder("model.dim=64")
    assert folder("trainer.max_steps=10", "study.name=x") == "x"
