"""Several runs by one command: -m and sweeps, with runs that train nothing, and printed plans."""

import json
from errno import ENOSPC
from types import SimpleNamespace
from unittest.mock import Mock

import pytest
from make_sweep import tiny_for, write_sweep
from refusals import refusal
from tiny import overrides

from ablate import compose
from ablate.config.composition import Composition
from ablate.config.run_id import folder_name
from ablate.errors import Interrupted
from ablate.study import sweeper
from ablate.study.plan.budget import budgets
from ablate.training.same_model import DataSets

real_report = sweeper.report
pytest_plugins = ["command_line"]

HERE = "hydra/launcher=basic"
OLD = ("hydra/sweeper=basic", HERE)


@pytest.mark.ci
def test_multirun_runs_every_combination(ablate_command, runs, tmp_path):
    """The model's own option is the baseline where it is among the values; else the first is."""
    argv = ["model.attention=additive,dot,scaled_dot", "seed=0,1", HERE]
    # Flags may stand between the overrides, as people type them.
    code, out, err = ablate_command(*overrides(tmp_path), "-m", *argv)
    assert (code, err) == (0, "")
    assert "The baseline is model.attention=scaled_dot." in out
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
    argv = ["model.attention=dot,cosine", "study.name=other", "study.dry_run=true"]
    _, out, _ = ablate_command("-m", *argv, *overrides(tmp_path))
    assert "The baseline is model.attention=dot." in out


@pytest.mark.ci
def test_runs_that_cannot_be_are_refused_before_any_runs(ablate_command, runs, tmp_path):
    tiny = [text for text in overrides(tmp_path) if "heads" not in text]
    said = "ablate: 2 of 4 arms cannot be run: [model.heads=3] model.heads=3 does"
    refusal(ablate_command("-m", *tiny, "model.heads=2,3,4,5", HERE), said, "[model.heads=5]")
    assert not runs
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


@pytest.mark.ci
def test_a_failed_run_leaves_the_others_their_turn_and_runs_again(
    ablate_command, fail, runs, tmp_path
):
    fail.append(ZeroDivisionError("ours"))
    argv = ["-m", *overrides(tmp_path), "seed=0,1", HERE]
    code, _, err = ablate_command(*argv)
    assert (code, len(runs)) == (1, 2)
    last = err.splitlines()[-1]
    assert last.startswith("ablate: 2 of 2 runs are not finished: [baseline seed=0] failed ours;")
    assert last.endswith("the same command runs them again")
    third, dry = [*argv[:-2], "seed=0,1,2", HERE, "study.rerun=failed"], "study.dry_run=true"
    assert "0 finished, 2 to do" in " ".join(ablate_command(*third, dry)[1].split())
    assert "without study.rerun=failed runs them" in ablate_command(*third)[2]
    fail.clear()
    for more, trained in ((), 6), ((), 6), (["study.rerun=all"], 8):
        assert ablate_command(*argv, *more)[0] == 0
        assert len(runs) == trained


@pytest.mark.ci
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
    monkeypatch.setattr("ablate.study.report.write", broken)
    monkeypatch.setattr(sweeper, "report", real_report)
    code, out, err = ablate_command(*typed)
    assert (code, err) == (0, "")
    assert "no report (broken)" in out
    full = Mock(side_effect=OSError(ENOSPC, "No space left on device", "report.html"))
    monkeypatch.setattr("ablate.study.report.write", full)
    code, out, err = ablate_command(*typed)
    assert (code, err, "Traceback" in out) == (0, "", False)
    assert (
        "no report (report.html: cannot be read or written here (No space left on device))" in out
    )


def test_stopping_one_run_stops_the_study(ablate_command, fail, runs, tmp_path):
    fail.append(Interrupted("stopped"))
    assert ablate_command("-m", *overrides(tmp_path), "seed=0,1,2", HERE)[0] == 130
    assert len(runs) == 1


@pytest.mark.slow
def test_hydras_own_sweeper_still_works(ablate_command, runs, tmp_path):
    code, out, err = ablate_command("-m", "model.heads=2,3,4,5", *OLD)
    assert code == 2
    assert [cfg.model.heads for cfg, _ in runs] == [2, 4]
    last = err.splitlines()[-1]
    assert last.startswith("ablate: 2 runs went wrong: [model.heads=3] model.heads=3 does not")
    assert "[model.heads=5]" in last
    assert "rejected: model.heads=3 does not divide" in out
    assert {folder.parent for _, folder in runs} == {tmp_path / "outputs" / "runs"}


@pytest.mark.ci
def test_hydras_own_sweeper_has_no_plan(ablate_command, runs):
    """What it would do nothing with is refused."""
    for argv in (["-m", "seed=0,1"], ["sweep=attention_scores"]):
        code, _, err = ablate_command(*argv, "study.margin=1", *OLD)
        assert (code, runs) == (2, [])
        assert "study." in err


# Plans


def rows(out):
    """Arm -> the cells of its row, each a list of lines."""
    found = {}
    for line in out.splitlines():
        if line.startswith("│"):
            cells = [cell.strip() for cell in line.strip("│").split("│")]
            row = found.setdefault(cells[0] or list(found)[-1], [[] for _ in cells])
            for lines, cell in zip(row, cells, strict=True):
                lines += [cell] if cell else []
    return found


@pytest.mark.ci
def test_some_arms_may_be_run_first(ablate_command, runs, tmp_path):
    """study.arms: the plan stays whole, and the same command without it runs the rest."""
    study = [*overrides(tmp_path), "-m", "model.attention=additive,dot,scaled_dot", HERE]
    only = "study.arms=[dot]"  # as people type it
    _, out, _ = ablate_command(*study, only, "study.dry_run=true")
    assert "3 arms, 1 seed, 2 runs in" in out
    done = {arm.partition("=")[2]: cells[-1] for arm, cells in rows(out).items()}
    assert done == {"scaled_dot": ["0/1"], "additive": ["left out"], "dot": ["0/1"]}
    assert ablate_command(*study, only)[0] == 0
    assert [cfg.choices["model.attention"] for cfg, _ in runs] == ["scaled_dot", "dot"]
    (folder,) = {folder.parent for _, folder in runs}
    assert len(json.loads((folder / "plan.json").read_text())["cells"]) == 3
    unknown = "study.arms: unknown arm model.attention=dt; did you mean"
    refusal(ablate_command(*study, "study.arms=['model.attention=dt']"), unknown)
    refusal(ablate_command(*study, "study.arms=[aditive]"), "did you mean 'additive'?")
    assert ablate_command(*study)[0] == 0
    assert [cfg.choices["model.attention"] for cfg, _ in runs[2:]] == ["additive"]


WHAT = """{factors: {model.depth: [2], again: {x: [model.depth=2]}, model.ffn_dim: [64],
    model.heads: [3], many: {x: [model.ffn=relu, model.norm=post, model.norm_type=rms,
    model.norm_eps=0.01, model.bias=false, model.init_std=0.01]}}, on_invalid: skip, seeds: 3}"""


@pytest.mark.ci
def test_the_plan_is_printed_and_nothing_runs(ablate_command, runs, tmp_path, monkeypatch):
    monkeypatch.setenv("COLUMNS", "200")
    tiny = tiny_for(WHAT, tmp_path)
    code, out, err = ablate_command(*write_sweep(tmp_path, WHAT), *tiny, "study.dry_run=true")
    assert (code, err, runs) == (0, "", [])
    assert not (tmp_path / "outputs").exists()
    for words in (
        "0 finished, 12 to do",
        "Arms are compared by val/loss, lower is better.",
        "0/3",
        "Checkpoints take about",
    ):
        assert words in " ".join(out.split())
    found = rows(out)
    assert [*found] == ["baseline", "model.depth=2", "again=x", "model.ffn_dim=64", "many=x"]
    for line in [
        "again=x: the same runs as model.depth=2",
        "model.ffn_dim=64: no effect: its model is the baseline's",
        "many=x: model.norm=post (baseline pre), model.norm_eps=0.01 (baseline 1e-05),"
        " model.bias=false (baseline true), model.init_std=0.01 (baseline null) and 2 more",
        "skipped: model.heads=3: model.heads=3 does not divide model.dim=16",
    ]:
        assert line in out.splitlines()
    assert not [line for line in out.splitlines() if line.startswith("model.depth=2:")]
    configs = {"baseline": compose(*tiny), "model.depth=2": compose(*tiny, "model.depth=2")}
    costs, _ = budgets(configs, baseline="baseline", sets=DataSets())
    for name, cost in costs.items():
        assert found[name][1:3] == [[f"{cost.parameters:,}"], [f"{cost.flops_per_step:.3g}"]]
    assert found["model.ffn_dim=64"][1:] == found["baseline"][1:]
    assert found["model.depth=2"][1:] == found["again=x"][1:] != found["baseline"][1:]
