"""study.tune: the grid, its seeds, and the choice."""

import json

import pytest
from make_sweep import tiny_for, write_sweep
from omegaconf import OmegaConf
from refusals import refusal, refused

import ablate
from ablate.config.overrides import parse
from ablate.study.plan.tune import as_overrides, choose, tuning

pytest_plugins = ["command_line"]

LR = {"optimizer.lr": [0.0003, 0.001, 0.003]}


def made(keys=LR, tune_seeds=1, *, seeds=(0, 1), metric="val/loss", taken=()):
    return tuning(keys, tune_seeds, seeds=seeds, metric=metric, taken=taken)


def chosen(values, mode="min", keys=LR, tune_seeds=1, metric="val/loss"):
    """values: of the metric, None for a run that was never started, or an error."""

    def result(value):
        if isinstance(value, str):
            return {"status": "failed", "error": value, "metrics": {}}
        return {"status": "finished", "error": None, "metrics": {"val/loss": value, "test/loss": 0}}

    results = [value and result(value) for value in values]
    return choose("arm", made(keys, tune_seeds).trials(), results, metric=metric, mode=mode)


def test_every_point_with_every_seed_and_the_values_that_were_written():
    values = [[None, 1], "true", "null", "inf", [[0.5, True], "a b"]]
    trials = made(OmegaConf.create({"optimizer.betas": values})).trials()
    found = [parse(*as_overrides(trial.point)).value() for trial in trials]
    assert json.loads(json.dumps(found, default=str)) == values
    keys = OmegaConf.create({"optimizer.lr": [0.1, 0.2], "optimizer": ["adam", "sgd"]})
    assert [(*as_overrides(trial.point), trial.seed) for trial in made(keys, 2).trials()] == [
        (f"optimizer.lr={lr}", f"optimizer={name}", seed)
        for lr in (0.1, 0.2)
        for name in ("adam", "sgd")
        for seed in (1000, 1001)
    ]
    assert made({}) is None


@pytest.mark.parametrize(
    ("arguments", "part"),
    [
        ({"metric": "test/loss"}, "study.metric=test/loss "),
        ({"tune_seeds": [5, 1]}, "tune_seeds=[5, 1]: 1 is one of study.seeds too"),
        ({"tune_seeds": 2, "seeds": (7, 1001)}, "tune_seeds=2: 1001 is one of"),
        ({"tune_seeds": [5, 5]}, "duplicate seed"),
        ({"tune_seeds": 0}, "at least one seed"),
        ({"tune_seeds": 2, "keys": {}}, "tune_seeds=2 has no effect without study.tune"),
        ({"keys": {"optimizer.lr": []}}, "optimizer.lr: [] must be a list"),
        ({"keys": {"optimizer.lr": [0.1, 0.10]}}, "optimizer.lr has the value 0.1 twice"),
        ({"keys": {"seed": [1, 2]}}, "study.tune: seed"),
        ({"taken": ["optimizer.lr"]}, "optimizer.lr is set by the study already"),
    ],
)
def test_refused_in_one_line(arguments, part):
    with refused(part):
        made(**arguments)


@pytest.mark.parametrize(("mode", "lr"), [("min", 0.001), ("max", 0.003)])
def test_the_best_mean_over_the_seeds(mode, lr):
    found = chosen([2.0, 3.0, 2.4, 2.4, 2.1, 3.1], mode, tune_seeds=2)
    assert found.point == {"optimizer.lr": lr}
    assert [row["mean"] for row in found.rows] == pytest.approx([2.5, 2.4, 2.6])
    assert [row["point"] for row in found.rows if row["chosen"]] == [found.point]
    assert found.rows[0]["values"] == {"1000": 2.0, "1001": 3.0}
    assert chosen([2.0, 2.0, 2.0], mode).point == {"optimizer.lr": 0.0003}  # the first


def test_the_edge_of_the_grid_is_said():
    assert chosen([2.0, 1.0, 3.0]).warnings == []
    assert "smallest optimizer.lr=0.0003: a smaller" in chosen([1.0, 2.0, 3.0]).warnings[0]
    assert "largest optimizer.lr=0.003: a larger" in chosen([3.0, 2.0, 1.0]).warnings[0]
    assert chosen([1.0, 2.0], keys={"optimizer": ["adam", "sgd"]}).warnings == []
    assert chosen([1.0], keys={"optimizer.lr": [0.1]}).warnings == []


def test_a_point_that_lacks_a_run_is_not_chosen_and_without_any_the_arm_is_refused():
    found = chosen([1.0, "the loss is nan", 2.0, 2.0, None, 0.5], tune_seeds=2)
    assert found.point == {"optimizer.lr": 0.001}
    assert [row["mean"] for row in found.rows] == [None, 2.0, None]
    assert found.rows[0]["problems"] == ["seed 1001: failed: the loss is nan"]
    assert len(found.warnings) == 2
    assert "without optimizer.lr=0.003: seed 1000: was never started" in found.warnings[1]
    with refused("arm 'arm'", "SIGKILL", "not finite", "never started"):
        chosen(["killed by SIGKILL", float("nan"), None])
    with refused("has no val/los; did you mean 'val/loss'"):
        chosen([1.0] * 3, metric="val/los")


# Through the command, with runs that train nothing

TUNED = """{factors: {pos_enc: [none], model.norm: [post], same: {post: [model.norm=post]}},
    tune: {optimizer.lr: [0.01, 0.001]}, seeds: 2}"""
BEST = {"none": 0.01}  # by pos_enc; others are best with 0.001


@pytest.fixture
def tuned(ablate_command, seen, tmp_path):
    """The command of a tuned study, with more typed after it."""
    seen["measure"] = lambda cfg: abs(cfg.optimizer.lr - BEST.get(cfg.choices.pos_enc, 0.001))
    argv = [*write_sweep(tmp_path, TUNED), *tiny_for(TUNED, tmp_path, "optimizer.lr")]
    return lambda *typed: ablate_command(*argv, "hydra/launcher=basic", *typed)


def plan_of(folder):
    return json.loads((folder / "outputs" / "mine" / "plan.json").read_text())


@pytest.mark.slow
def test_every_arm_counts_with_its_own_value_and_the_same_command_resumes(tuned, runs, tmp_path):
    code, out, err = tuned()
    assert (code, err) == (0, "")
    trials, counting = runs[:6], runs[6:]  # two arms are the same runs
    assert {cfg.seed for cfg, _ in trials} == {1000}
    assert all(folder.name.startswith("tune-") for _, folder in trials)
    found = [(cfg.choices.pos_enc, cfg.model.norm, cfg.optimizer.lr) for cfg, _ in counting]
    own = [("learned", "pre", 0.001), ("none", "pre", 0.01), ("learned", "post", 0.001)]
    assert found == [*own, *own]
    arms = plan_of(tmp_path)["arms"]
    assert [one["tuned"]["optimizer.lr"] for one in arms] == [0.001, 0.01, 0.001, 0.001]
    assert [row["chosen"] for row in arms[1]["tuning"]] == [True, False]
    assert "ablate: pos_enc=none: tuned to optimizer.lr=0.01" in out

    assert tuned()[0] == 0  # the baseline that was asked for is the same one
    assert len(runs) == 12
    code, out, err = tuned("study.dry_run=true")
    assert (code, err) == (0, "")
    assert "pos_enc=none: tuned to optimizer.lr=0.01" in out


@pytest.mark.slow
def test_an_arm_without_a_value_is_left_out_and_without_the_baseline_nothing_runs(
    tuned, runs, seen, tmp_path
):
    measure, failing = seen["measure"], ["none"]

    def fails(cfg):
        if cfg.choices.pos_enc in failing:
            raise ablate.RunFailed("loss: nan")
        return measure(cfg)

    seen["measure"] = fails
    ended = tuned()
    refusal(ended, "arm 'pos_enc=none' has no values with all of their runs finished", code=1)
    assert "skipped: pos_enc=none: " in ended[1]
    assert [cfg.model.norm for cfg, _ in runs[6:]] == ["pre", "post"] * 2
    assert [one["arm"] for one in plan_of(tmp_path)["illegal"]] == ["pos_enc=none"]
    failing.clear()
    assert tuned()[0] == 0
    assert not plan_of(tmp_path)["illegal"]
    failing.append("learned")
    runs.clear()
    refusal(tuned("study.name=other"), "arm 'baseline' has no values", code=1)
    assert len(runs) == 6


@pytest.mark.slow
def test_a_broken_launcher_ends_the_tuning(tuned, runs, monkeypatch):
    monkeypatch.setattr("ablate.study.sweeper.launch", lambda *_: RuntimeError("no worker"))
    refusal(tuned(), "the launcher reported: no worker", code=1)
    assert runs == []
