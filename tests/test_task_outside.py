"""A family and its task from a folder of one's own, a diffusion model: docs/add_a_part.md."""

import csv
import json
import re
import signal
import sys
from pathlib import Path
from types import SimpleNamespace

import pytest
import torch
from test_add_a_part import FAMILY, SECTIONS, write
from test_resume import assert_equal, strike

import ablate
from ablate import evaluate, generate, show
from ablate.cli.summary import show_result
from ablate.errors import UserError
from ablate.parallel import Sharing
from ablate.run_files.sealed import read_state, read_weights
from ablate.training.build import build, build_data, make_task

WITH_FIGURES = True  # tests/conftest.py


@pytest.fixture
def own(tmp_path, monkeypatch):
    write(SECTIONS[FAMILY], tmp_path)
    monkeypatch.syspath_prepend(str(tmp_path))
    for name in [name for name in sys.modules if name.partition(".")[0] == "my"]:
        monkeypatch.delitem(sys.modules, name)
    return tmp_path / "my/conf"


def composed(own, *more):
    steps = "trainer.max_epochs=null trainer.max_steps=12 trainer.val_check_interval=4"
    often = "trainer.check_val_every_n_epoch=null trainer.log_every_n_steps=1 checkpoint_every=3"
    rest = ("schedule.warmup=2", "logger=none", f"output_dir={own.parents[1] / 'outputs'}")
    typed = ("model=denoiser", *steps.split(), *often.split(), *rest, *more)
    return ablate.compose(*typed, config_dir=own)


def built(own):
    cfg = composed(own)
    data = build_data(cfg)
    return make_task(cfg, data, build(cfg, data))


def test_it_trains_resumes_is_evaluated_and_generates(own, tmp_path, monkeypatch, capsys):
    from my.task import Denoising

    cfg, whole, killed = composed(own), tmp_path / "whole", tmp_path / "killed"
    result = ablate.run(cfg, whole)
    assert result["status"] == "finished"
    assert result["artefacts"] == ["figures/drawn.png"]
    header = (whole / "metrics.csv").read_text().splitlines()[0].split(",")
    assert {"train/noise", "train/pull", "val/error"} <= set(header)
    place = {"place": (Denoising, "losses"), "when": lambda task, *_: task.global_step == 7}
    assert strike(cfg, killed, **place) == -signal.SIGKILL
    ablate.run(cfg, killed)
    assert_equal(killed, whole)
    assert (killed / "figures/drawn.png").read_bytes() == (whole / "figures/drawn.png").read_bytes()

    def call(command, *arguments):
        capsys.readouterr()
        monkeypatch.setattr("sys.argv", ["ablate", str(whole), "--allow", "my", *arguments])
        command.main()
        return capsys.readouterr().out

    show_result(result, whole, cfg.task._target_)
    assert f"python -m ablate.generate {whole} --seed 1\n" in capsys.readouterr().out
    assert json.loads(call(evaluate, "--json")) == pytest.approx(result["metrics"])
    other = Path(call(generate, "--seed", "3").strip())
    assert other.name == "drawn_3.png"
    assert other.read_bytes() != (whole / "figures/drawn.png").read_bytes()
    with pytest.raises(UserError, match=r"--prompt: .* is a diffusion model, .* --seed, --steps$"):
        call(generate, "--prompt", "a")
    with pytest.raises(UserError, match="no attention of ours to draw"):
        call(show)


@pytest.mark.usefixtures("no_figures")
def test_the_average_is_measured_and_kept_and_the_reference_stays(own, tmp_path):
    cfg = composed(own)
    first = build(cfg, build_data(cfg)).state_dict()
    result = ablate.run(cfg, tmp_path / "run")
    last = read_state(tmp_path / "run/checkpoints/last.ckpt")["state_dict"]
    best = read_weights(tmp_path / "run/checkpoints/best.safetensors")
    for name, start in first.items():
        assert torch.equal(last[f"reference.{name}"], start)
        assert torch.equal(best[f"model.{name}"], best[f"average.module.{name}"])
        assert not torch.equal(last[f"model.{name}"], last[f"average.module.{name}"])
    run = ablate.load(tmp_path / "run", allow=["my"])
    assert not torch.equal(run.model.into.weight, first["into.weight"])
    plain = ablate.run(composed(own, "task.ema=null"), tmp_path / "plain")
    assert plain["metrics"]["val/error"] != result["metrics"]["val/error"]
    tables = [list(csv.DictReader((tmp_path / f / "metrics.csv").open())) for f in ("run", "plain")]
    for one, other in zip(*tables, strict=True):  # trained alike, validated otherwise
        assert one["train/loss"] == other["train/loss"]
        terms = float(one["train/noise"]) + float(one["train/pull"])
        assert float(one["train/loss"]) == pytest.approx(terms, rel=1e-5)
        assert not one["val/error"] or one["val/error"] != other["val/error"]
    names = read_weights(tmp_path / "plain/checkpoints/best.safetensors")
    assert not [name for name in names if name.startswith("average")]


def test_the_average_is_the_sum_over_the_steps(own):
    task = built(own)
    weight, expected = task.model.into.weight, None
    for step in range(1, 4):
        with torch.no_grad():
            weight.fill_(float(step))
        task.average.update_parameters(task.model)
        expected = float(step) if expected is None else 0.8 * expected + 0.2 * step
    torch.testing.assert_close(task.average.module.into.weight, torch.full_like(weight, expected))
    assert not task.train().average.training


def test_the_commands_know_no_task_by_its_class():
    for module in ("generate", "evaluate", "show", "figures/__init__", "cli/summary"):
        text = (Path(ablate.__file__).parent / f"{module}.py").read_text()
        assert "isinstance" not in text
        assert not re.search(r"from ablate\.(task|model)\S* import .*\b[A-Z]", text)


def test_what_has_no_meaning_is_refused(own):
    with pytest.raises(UserError, match=r"^task.ema=1.5: must be .* less than 1"):
        composed(own, "task.ema=1.5")
    task = built(own)
    task.trainer = SimpleNamespace(strategy=Sharing())
    with pytest.raises(UserError, match="Denoising keeps a copy of its model"):
        task.configure_model()
