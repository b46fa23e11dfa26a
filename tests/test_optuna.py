"""Optuna's sweeper in place of ours: it goes by the value that a run returns."""

import json
import subprocess
import sys

import pytest
import yaml
from omegaconf import OmegaConf
from tiny import overrides

from ablate.__main__ import named_search
from ablate.config.check import check_direction
from ablate.errors import UserError

pytest_plugins = ["command_line"]

OPTUNA = ["-m", "hydra/sweeper=optuna", "hydra.sweeper.sampler.seed=5"]
FOUND = "optimization_results.yaml"  # what the sweeper leaves
CAUSAL_LM = OmegaConf.create({"_target_": "ablate.task.causal_lm.CausalLM"})
CLASSES = OmegaConf.create({"_target_": "ablate.task.classification.Classification"})


@pytest.fixture
def optuna():
    """Not importorskip at the top: what needs no Optuna is tested without it."""
    reason = "hydra-optuna-sweeper is not installed: pip install -e '.[optuna]'"
    pytest.importorskip("hydra_plugins.hydra_optuna_sweeper", reason=reason)


@pytest.mark.parametrize(
    ("sweeper", "task", "refused"),
    [
        ({"params": None}, CAUSAL_LM, False),
        ({"direction": ["minimize"]}, CAUSAL_LM, False),
        ({"direction": "maximize"}, CAUSAL_LM, True),
        ({"direction": ["minimize", "minimize"]}, CAUSAL_LM, True),
        ({"direction": "minimize"}, CLASSES, True),
        ({"direction": "maximize"}, CLASSES, False),
    ],
)
def test_the_direction_is_the_metrics_own(sweeper, task, refused):
    if refused:
        with pytest.raises(UserError, match=r"write hydra\.sweeper\.direction="):
            check_direction(OmegaConf.create(sweeper), task)
    else:
        check_direction(OmegaConf.create(sweeper), task)


@pytest.mark.slow
@pytest.mark.usefixtures("optuna")
def test_optuna_runs_for_real(tmp_path):
    argv = [*OPTUNA, "hydra.sweeper.n_trials=3", "hydra.sweeper.n_jobs=3"]
    argv += ["optimizer.lr=interval(0.001,0.01)", "hydra/launcher=local"]
    line = [sys.executable, "-m", "ablate", *argv, *overrides(tmp_path)]
    done = subprocess.run(line, capture_output=True, text=True)
    assert done.returncode == 0, done.stderr
    (best,) = (tmp_path / "outputs").rglob(FOUND)
    results = [json.loads(path.read_text()) for path in best.parent.glob("*/result.json")]
    assert [result["status"] for result in results] == ["finished"] * 3
    values = [result["metric"]["value"] for result in results]
    assert yaml.safe_load(best.read_text())["best_value"] == min(values)


@pytest.mark.slow
@pytest.mark.usefixtures("optuna")
def test_a_trial_may_have_several_seeds(tmp_path):
    argv = [*OPTUNA, "hydra.sweeper.n_trials=2", "hydra.sweeper.n_jobs=1", "study.seeds=2"]
    argv += ["optimizer.lr=interval(0.001,0.01)", "hydra/launcher=basic"]
    line = [sys.executable, "-m", "ablate", *argv, *overrides(tmp_path)]
    done = subprocess.run(line, capture_output=True, text=True)
    assert done.returncode == 0, done.stderr
    (best,) = (tmp_path / "outputs").rglob(FOUND)
    assert best.parent.name.startswith("optuna-")
    results = [json.loads(path.read_text()) for path in best.parent.glob("*/result.json")]
    assert sorted(result["seed"] for result in results) == [0, 0, 1, 1]
    config = [yaml.safe_load((p / "config.yaml").read_text()) for p in best.parent.glob("*/")]
    trials = {}
    for result, of in zip(results, config, strict=True):
        trials.setdefault(of["optimizer"]["lr"], []).append(result["metric"]["value"])
    assert yaml.safe_load(best.read_text())["best_value"] == pytest.approx(
        min(sum(values) / 2 for values in trials.values())
    )


def test_every_search_has_a_folder_of_its_own():
    named = [named_search(["hydra/sweeper=optuna", f"a={n}"])[-1] for n in (1, 1, 2)]
    assert named[0] == named[1] != named[2]
    assert named_search(["hydra/sweeper=optuna", "study.name=x"])[-1] == "study.name=x"
    assert named_search(["model=vit"]) == ["model=vit"]
