"""debug=fast, overfit, profile: a quick look at any composition."""

import json
import re
from pathlib import Path
from typing import Any

import pytest
import torch
from make_model import options
from make_systems import list_of_systems
from omegaconf import OmegaConf
from tiny import overrides

import ablate
from ablate.cli.summary import show_result
from ablate.config.tree import config_dir
from ablate.errors import RunFailed, UserError
from ablate.training.build import build_data

WITH_FIGURES = True  # tests/conftest.py
quick = pytest.mark.usefixtures("no_figures")

FAST = {"gpt": pytest.mark.ci} | dict.fromkeys(list_of_systems("DEBUGGED"), ())
MODELS = [pytest.param(n, marks=FAST.get(n, pytest.mark.slow)) for n in options("model")]


def looked_at(folder: Path) -> Path:
    """The folder of the one run that was looked at."""
    (run_dir,) = (folder / "outputs" / "debug").iterdir()
    return run_dir


ARM = "study.arm=a"  # is not compared with models of other keys, which is half of a start


def look(folder: Path, *more: str) -> dict[str, Any]:
    return ablate.run(ablate.compose(*overrides(folder, ARM, *more)))


@pytest.mark.ci
@pytest.mark.parametrize("model", MODELS)
def test_fast_does_everything_once(model: str, tmp_path: Path) -> None:
    cfg = ablate.compose(f"model={model}", "debug=fast", f"output_dir={tmp_path / 'outputs'}")
    result = ablate.run(cfg)
    assert result["status"] == "finished"
    assert result["choices"]["debug"] == "fast"
    assert 0 < result["steps"] <= 4
    run_dir = looked_at(tmp_path)
    for name in ("figures/curves.png", "checkpoints/last.ckpt", "checkpoints/best.safetensors"):
        assert (run_dir / name).exists()
    assert "val/" in (run_dir / "metrics.csv").read_text()
    data = ablate.load(run_dir).data
    assert data.has_test == any(name.startswith("test/") for name in result["metrics"])
    assert result["logged_to"] is None


def test_the_command_line_wins() -> None:
    plain = ablate.compose("debug=fast")
    assert (plain.model.depth, plain.data.val_fraction, plain.logger) == (1, 0.01, {})
    more = ("model.depth=2", "data.val_fraction=0.2", "logger=tensorboard", "trainer.max_steps=7")
    for order in (["debug=fast", *more], [*more, "debug=fast"]):
        cfg = ablate.compose(*order)
        assert (cfg.model.depth, cfg.data.val_fraction) == (2, 0.2)
        assert (cfg.choices.logger, cfg.trainer.max_steps) == ("tensorboard", 7)
    cfg = ablate.compose("debug=fast", "model=vit", "data=mnist", "trainer.max_epochs=1")
    assert (cfg.choices.data, cfg.trainer.max_epochs, cfg.model.depth) == ("mnist", 1, 1)


@pytest.mark.parametrize(
    ("name", "every"),
    [*((name, 9) for name in options("debug")), pytest.param("fast", 1, marks=pytest.mark.ci)],
)
def test_every_model_and_experiment_can_be_looked_at(name: str, every: int) -> None:
    own = OmegaConf.load(config_dir() / "debug" / f"{name}.yaml")
    choices = [f"{group}={n}" for group in ("model", "experiment") for n in options(group)]
    for choice in choices[::every]:
        cfg = ablate.compose(choice, f"debug={name}")
        assert (cfg.choices.debug, cfg.study.name, cfg.choices.logger) == (name, "debug", "none")
        assert cfg.trainer.max_steps == own.trainer.max_steps, choice


@pytest.mark.ci
@quick
def test_a_look_starts_anew_each_time(tmp_path, capsys):
    look(tmp_path, "debug=fast")
    last, result = (looked_at(tmp_path) / name for name in ("checkpoints/last.ckpt", "result.json"))
    first = last.stat().st_mtime_ns
    result.write_text(json.dumps(json.loads(result.read_text()) | {"wall_seconds": 1e6}))
    capsys.readouterr()
    again = look(tmp_path, "debug=fast")
    assert (again["steps"], again["wall_seconds"] < 1e6) == (12, True)
    assert last.stat().st_mtime_ns > first
    assert "resuming from" not in capsys.readouterr().out


OVERFIT = ("debug=overfit", "trainer.max_steps=3", "trainer.val_check_interval=3")
FAILS = "debug=overfit: the loss of one batch"
ROUGH = "schedule=constant optimizer=sgd optimizer.lr=300 trainer.gradient_clip_val=9"


@pytest.mark.ci
@quick
def test_overfit_passes_where_one_batch_is_learned(tmp_path, capsys):
    more = (*OVERFIT[:1], "trainer.max_steps=60", "trainer.val_check_interval=60")
    result = look(tmp_path, *more, "optimizer.lr=0.02")
    assert result["status"] == "finished"
    assert f"ablate: {FAILS} fell from 2." in capsys.readouterr().out
    folder = looked_at(tmp_path)
    show_result(result, folder, ablate.load(folder).config)
    said = capsys.readouterr().out
    assert re.search(r"loss of the one batch +│ +2\.\d+ -> [01]\.\d+ ", said)
    assert not any(word in said for word in ("val/", " *", "best weights"))


@pytest.mark.ci
@quick
@pytest.mark.parametrize(
    ("more", "line"),
    [
        ("optimizer.lr=1e-30", r"stayed from (\S+) to \1 in 3 steps; it has to"),
        (ROUGH, "rose from"),
    ],
)
def test_overfit_fails_where_it_is_not(tmp_path, more, line):
    with pytest.raises(RunFailed, match=f"{FAILS} {line}"):
        look(tmp_path, *OVERFIT, "schedule.warmup=0", *more.split())
    result = json.loads((looked_at(tmp_path) / "result.json").read_text())
    assert result["status"] == "failed"
    assert "debug=overfit" in result["error"]


@pytest.mark.parametrize("choice", ["model=bert", "model=vit"])
def test_one_batch_is_the_first_again_and_again(choice: str) -> None:
    """With the same masked tokens."""
    data = build_data(ablate.compose(choice, "debug=overfit"))
    data.train_batches = 3
    drawn = list(data.train_dataloader())
    assert any(not torch.equal(drawn[0][key], drawn[1][key]) for key in drawn[0])
    data.one_batch = True
    for batch in data.train_dataloader():
        assert all(torch.equal(batch[key], drawn[0][key]) for key in batch)


@quick
def test_profile_needs_as_many_steps_as_it_skips_and_records(tmp_path):
    line = r"debug\.steps=7 needs 14 training batches, .* there are 12"
    with pytest.raises(UserError, match=line):
        look(tmp_path, "debug=profile", "debug.steps=7")


@quick
def test_profile_prints_the_operations_and_writes_a_trace(tmp_path, capsys):
    look(tmp_path, "debug=profile", "debug.steps=2", "trainer.max_steps=4", "debug.rows=100")
    said, trace = capsys.readouterr().out, looked_at(tmp_path) / "trace.json"
    assert "Self CPU time total" in said
    assert str(trace) in said
    names = [event.get("name", "") for event in json.loads(trace.read_text())["traceEvents"]]
    assert "aten::addmm" in names
    assert sum(name.startswith("Optimizer.step#") for name in names) == 2
