"""Optuna's sweeper in place of ours: it goes by the value that a run returns."""

import json
from contextlib import nullcontext

import pytest
import yaml
from omegaconf import OmegaConf
from tiny import in_a_process, overrides

from ablate.__main__ import named_search
from ablate.config.check import check_direction
from ablate.errors import UserError

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
    said = pytest.raises(UserError, match=r"write hydra\.sweeper\.direction=")
    with said if refused else nullcontext():
        check_direction(OmegaConf.create(sweeper), task)


@pytest.mark.slow
@pytest.mark.usefixtures("optuna")
def test_a_search_returns_the_mean_of_a_trials_seeds(tmp_path):
    """Two trials at a time of two seeds each, by processes of their own."""
    asked = "hydra.sweeper.n_trials=2 hydra.sweeper.n_jobs=2 study.seeds=2 hydra/launcher=local"
    typed = [*OPTUNA, *asked.split(), "optimizer.lr=interval(0.001,0.01)"]
    done = in_a_process("-m", "ablate", *typed, *overrides(tmp_path))
    assert done.returncode == 0, done.stderr
    (best,) = (tmp_path / "outputs").rglob("optimization_results.yaml")
    assert best.parent.name.startswith("optuna-")
    trials = {}
    for path in best.parent.glob("*/result.json"):
        result = json.loads(path.read_text())
        rate = yaml.safe_load((path.parent / "config.yaml").read_text())["optimizer"]["lr"]
        trials.setdefault(rate, {})[result["seed"]] = result["metric"]["value"]
    assert [sorted(values) for values in trials.values()] == [[0, 1]] * 2
    means = [sum(values.values()) / 2 for values in trials.values()]
    assert yaml.safe_load(best.read_text())["best_value"] == pytest.approx(min(means))


def test_every_search_has_a_folder_of_its_own():
    named = [named_search(["hydra/sweeper=optuna", f"a={n}"])[-1] for n in (1, 1, 2)]
    assert named[0] == named[1] != named[2]
    assert named_search(["hydra/sweeper=optuna", "study.name=x"])[-1] == "study.name=x"
    assert named_search(["model=vit"]) == ["model=vit"]
