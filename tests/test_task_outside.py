"""A family with its task from a folder of one's own: a denoiser of images, as a diffusion model."""

import json
import signal
import sys
import textwrap
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
import torch
from test_resume import assert_equal, strike

import ablate
from ablate import evaluate, generate, show
from ablate.cli.summary import show_result
from ablate.errors import UserError
from ablate.training.build import build, build_data, make_task
from ablate.training.fsdp import Sharded
from ablate.training.sealed import read_state, read_weights

WITH_FIGURES = True  # tests/conftest.py

FILES = {
    "my/model.py": '''
        import torch
        from torch import nn
        from ablate.model.base import Model
        from ablate.model.layers.linear import Linear


        class Denoiser(Model):
            """The noise in images, b c y x, of levels b between 0 and 1."""

            def __init__(self, *, image_size, channels, classes, dim):
                super().__init__()
                size = channels * image_size[0] * image_size[1]
                self.into, self.head = Linear(size + 1, dim), Linear(dim, size)

            def forward(self, images, levels):
                read = torch.cat([images.flatten(1), levels[:, None]], dim=1)
                return self.head(torch.relu(self.into(read))).view_as(images)
    ''',
    "my/task.py": '''
        import torch
        import torch.nn.functional as F
        from torchmetrics.aggregation import MeanMetric
        from torchvision.utils import save_image
        from ablate.seeding import derive
        from ablate.task import Task


        class Denoising(Task):
            """Noise prediction, stronger in the second half (a phase), close to the first model."""

            metric, mode, unit = "val/error", "min", "images"
            family, options, example_options = "diffusion", ("seed", "steps"), "--seed 1"
            has_reference = True

            def __init__(self, *args, pull, **kwargs):
                super().__init__(*args, **kwargs)
                self.pull, self.error = pull, MeanMetric()

            def noisy(self, batch, most, rng=None):
                levels = most * torch.rand(len(batch["images"]), generator=rng)
                noise = torch.randn(batch["images"].shape, generator=rng)
                share = levels.view(-1, 1, 1, 1)
                images = (1 - share) * batch["images"] + share * noise
                return {"images": images, "levels": levels, "noise": noise}

            def prepare(self, batch, step):
                return self.noisy(batch, 0.5 if step < 6 else 1.0)

            def inputs(self, batch):
                return batch["images"], batch["levels"]

            def units(self, batch):
                return len(batch["images"])

            def losses(self, batch):
                said = self.model(*self.inputs(batch))
                first = self.reference(*self.inputs(batch))
                return {
                    "noise": F.mse_loss(said, batch["noise"]),
                    "pull": self.pull * F.mse_loss(said, first),
                }

            def evaluate(self, batch):
                rng = torch.Generator().manual_seed(derive(self.seed, "noise") % 2**63)
                batch = self.noisy(batch, 1.0, rng)
                error = F.mse_loss(self.model(*self.inputs(batch)), batch["noise"])
                self.error.update(error, len(batch["images"]))

            def measures(self, split):
                return {"error": self.error.compute()}

            @torch.no_grad()
            def drawn(self, seed, steps):
                rng = torch.Generator().manual_seed(seed)
                x = torch.randn(self.data.example()["images"].shape, generator=rng)
                for step in range(steps, 0, -1):
                    x = x - self.model(x, torch.full((1,), step / steps)) / steps
                return x

            def artefacts(self, folder):
                path = folder / "figures" / "drawn.png"
                save_image(self.drawn(0, 8), path)
                return [path]

            def generate(self, given, folder):
                path = folder / "figures" / f"drawn_{given.get('seed', 0)}.png"
                save_image(self.drawn(given.get("seed", 0), given.get("steps", 8)), path)
                yield str(path)
    ''',
    "my/conf/model/denoiser.yaml": """
        # @package _global_
        # Predicts the noise in an image.
        defaults:
          - override /data: digits
          - override /task: denoising
          - override /pos_enc: none

        model:
          _target_: my.model.Denoiser
          dim: 16
    """,
    "my/conf/task/denoising.yaml": """
        # Noise prediction. Measures: error.
        _target_: my.task.Denoising
        pull: 0.1
        ema: 0.8
    """,
}


@pytest.fixture
def own(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    for name, text in FILES.items():
        (tmp_path / name).parent.mkdir(parents=True, exist_ok=True)
        (tmp_path / name).write_text(textwrap.dedent(text).lstrip())
    monkeypatch.syspath_prepend(str(tmp_path))
    for name in [name for name in sys.modules if name.partition(".")[0] == "my"]:
        monkeypatch.delitem(sys.modules, name)
    return tmp_path / "my/conf"


def composed(own: Path, *more: str) -> Any:
    typed = [
        "model=denoiser", "trainer.max_epochs=null", "trainer.max_steps=12",
        "trainer.val_check_interval=4", "trainer.check_val_every_n_epoch=null",
        "trainer.log_every_n_steps=1", "checkpoint_every=3", "schedule.warmup=2", "logger=none",
        f"output_dir={own.parents[1] / 'outputs'}", *more,
    ]  # fmt: skip
    return ablate.compose(*typed, config_dir=own)


def test_it_trains_resumes_is_evaluated_and_generates(
    own: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    assert len(FILES) <= 6
    from my.task import Denoising  # type: ignore[import-not-found]

    cfg, whole, killed = composed(own), tmp_path / "whole", tmp_path / "killed"
    result = ablate.run(cfg, whole)
    assert result["status"] == "finished"
    assert result["artefacts"] == ["figures/drawn.png"]
    header = (whole / "metrics.csv").read_text().splitlines()[0].split(",")
    assert {"train/loss", "train/noise", "train/pull", "val/error"} <= set(header)
    place = {"place": (Denoising, "losses"), "when": lambda task, *_: task.global_step == 7}
    assert strike(cfg, killed, **place) == -signal.SIGKILL
    ablate.run(cfg, killed)
    assert_equal(killed, whole)
    assert (killed / "figures/drawn.png").read_bytes() == (whole / "figures/drawn.png").read_bytes()

    def call(command: Any, *arguments: str) -> str:
        capsys.readouterr()
        monkeypatch.setattr("sys.argv", ["ablate", str(whole), "--allow", "my", *arguments])
        command.main()
        return capsys.readouterr().out

    show_result(result, whole, cfg.task._target_)
    assert f"python -m ablate.generate {whole} --seed 1\n" in capsys.readouterr().out
    measured = json.loads(call(evaluate, "--json"))
    assert measured == pytest.approx(result["metrics"])
    other = Path(call(generate, "--seed", "3").strip())
    assert other.name == "drawn_3.png"
    assert other.read_bytes() != (whole / "figures/drawn.png").read_bytes()
    with pytest.raises(UserError, match=r"--prompt: .* is a diffusion model, .* --seed, --steps$"):
        call(generate, "--prompt", "a")
    with pytest.raises(UserError, match="no attention of ours to draw"):
        call(show)


@pytest.mark.usefixtures("no_figures")
def test_the_average_is_measured_and_kept_and_the_reference_stays(
    own: Path, tmp_path: Path
) -> None:
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
    names = read_weights(tmp_path / "plain/checkpoints/best.safetensors")
    assert not [name for name in names if name.startswith("average")]


def test_the_average_is_the_sum_over_the_steps(own: Path) -> None:
    cfg = composed(own)
    data = build_data(cfg)
    task = make_task(cfg, data, build(cfg, data))
    weight, expected = task.model.into.weight, None
    for step in range(1, 4):
        with torch.no_grad():
            weight.fill_(float(step))
        task.average.update_parameters(task.model)
        expected = float(step) if expected is None else 0.8 * expected + 0.2 * step
    torch.testing.assert_close(task.average.module.into.weight, torch.full_like(weight, expected))
    assert not task.train().average.training


def test_what_has_no_meaning_is_refused(own: Path, tmp_path: Path) -> None:
    with pytest.raises(UserError, match=r"task.ema=1.5: must be above 0 and below 1"):
        ablate.run(composed(own, "task.ema=1.5"), tmp_path / "run")
    cfg = composed(own)
    data = build_data(cfg)
    task = make_task(cfg, data, build(cfg, data))
    task.trainer = SimpleNamespace(strategy=Sharded())  # type: ignore[assignment]
    with pytest.raises(UserError, match="Denoising keeps a copy of its model"):
        task.configure_model()
