"""Optuna's sweeper in place of ours: it goes by the value that a run returns."""

import json
from contextlib import nullcontext
from importlib import import_module

import pytest
import yaml
from omegaconf import OmegaConf
from tiny import in_a_process, overrides

from ablate.__main__ import named_search
from ablate.config.check import check_direction
from ablate.errors import RunFailed, UserError

pytest_plugins = ["command_line"]

OPTUNA = ["-m", "hydra/sweeper=optuna", "hydra.sweeper.sampler.seed=5"]
TASKS = {"min": "causal_lm.CausalLM", "max": "classification.Classification"}


@pytest.fixture
def optuna():
    """Not importorskip at the top: what needs no Optuna is tested without it."""
    reason = "hydra-optuna-sweeper is not installed: pip install -e '.[optuna]'"
    pytest.importorskip("hydra_plugins.hydra_optuna_sweeper", reason=reason)


@pytest.mark.parametrize(
    ("sweeper", "best", "refused"),
    [
        ({"params": None}, "min", False),
        ({"direction": ["minimize"]}, "min", False),
        ({"direction": "maximize"}, "min", True),
        ({"direction": ["minimize", "minimize"]}, "min", True),
        ({"direction": "minimize"}, "max", True),
        ({"direction": "maximize"}, "max", False),
    ],
)
def test_the_direction_is_the_metrics_own(sweeper, best, refused):
    task = OmegaConf.create({"_target_": f"ablate.task.{TASKS[best]}"})
    said = pytest.raises(UserError, match=r"set hydra\.sweeper\.direction=")
    with said if refused else nullcontext():
        check_direction(OmegaConf.create(sweeper), task)


def searched(folder, trials, jobs, *more):
    """The folder of a search for a learning rate, what it found, and the results of its runs."""
    argv = [*OPTUNA, f"hydra.sweeper.n_trials={trials}", f"hydra.sweeper.n_jobs={jobs}"]
    argv += ["optimizer.lr=interval(0.001,0.01)", *more, *overrides(folder)]
    done = in_a_process("-m", "ablate", *argv)
    assert done.returncode == 0, done.stderr
    (best,) = (folder / "outputs").rglob("optimization_results.yaml")
    results = [json.loads(path.read_text()) for path in best.parent.glob("*/result.json")]
    return best.parent, yaml.safe_load(best.read_text())["best_value"], results


@pytest.mark.slow
@pytest.mark.usefixtures("optuna")
def test_optuna_runs_for_real(tmp_path):
    _, best, results = searched(tmp_path, 3, 3, "hydra/launcher=local")
    assert [result["status"] for result in results] == ["finished"] * 3
    assert best == min(result["metric"]["value"] for result in results)


@pytest.mark.slow
@pytest.mark.usefixtures("optuna")
def test_a_trial_may_have_several_seeds(tmp_path):
    folder, best, results = searched(tmp_path, 2, 1, "study.seeds=2")
    assert folder.name.startswith("optuna-")
    assert sorted(result["seed"] for result in results) == [0, 0, 1, 1]
    config = [yaml.safe_load((p / "config.yaml").read_text()) for p in folder.glob("*/")]
    assert {of["study"]["seeds"] for of in config} == {1}  # each is one run, for ablate.run too
    trials = {}
    for result, of in zip(results, config, strict=True):
        trials.setdefault(of["optimizer"]["lr"], []).append(result["metric"]["value"])
    assert best == pytest.approx(min(sum(values) / 2 for values in trials.values()))


@pytest.mark.ci
@pytest.mark.usefixtures("optuna")
def test_a_search_goes_on_after_a_trial_that_failed(ablate_command, monkeypatch, tmp_path):
    training, calls = import_module("ablate.training.train"), []
    real, failing = training.train, {1}

    def train(*given):
        calls.append(given)
        if len(calls) in failing:
            raise RunFailed("the loss became NaN")
        return real(*given)

    monkeypatch.setattr(training, "train", train)
    argv = [*OPTUNA, "hydra.sweeper.n_trials=3", "hydra.sweeper.n_jobs=1", *overrides(tmp_path)]
    argv += ["hydra/launcher=basic", "optimizer.lr=interval(0.001,0.01)"]
    assert ablate_command(*argv)[0] == 0
    assert len(calls) == 3
    calls.clear()
    assert ablate_command(*argv, "hydra.sweeper.max_failure_rate=0")[0] == 1
    assert len(calls) == 1
    failing |= {2, 3}
    calls.clear()
    code, _, err = ablate_command(*argv)
    assert (code, len(calls)) == (1, 3)
    assert err.splitlines()[-1].startswith("ablate: 3 runs went wrong: the loss became NaN")


def test_every_search_has_a_folder_of_its_own():
    named = [named_search(["hydra/sweeper=optuna", f"a={n}"])[-1] for n in (1, 1, 2)]
    assert named[0] == named[1] != named[2]
    assert "study.name=x" in named_search(["hydra/sweeper=optuna", "study.name=x"])
    assert named_search(["model=vit"]) == ["model=vit"]


def test_the_seeds_of_a_trial_are_one_job():
    words = ["hydra/sweeper=optuna", "study.seeds=2", "study.name=x"]
    assert {*words, "hydra/launcher=basic"} <= {*named_search(words)}
    with pytest.raises(UserError, match=r"^hydra/launcher=local with study.seeds=2 and .*=basic$"):
        named_search([*words, "hydra/launcher=local"])
