"""What a run prints before its first step: one line about itself, and nothing of other packages."""

import json
import os
import re
import subprocess
import sys
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import torch
from tiny import overrides

import ablate
from ablate.config.composition import Composition
from ablate.training.compile import CompileNotice

SOURCE = str(Path(ablate.__file__).parents[1])
# Fewer steps than the default interval of logging, to a logger: Lightning would warn.
SHORT = ["trainer.max_steps=5", "trainer.val_check_interval=5", "trainer.log_every_n_steps=10"]


def test_the_first_run_on_a_machine_prints_our_lines_alone(tmp_path):
    """Where matplotlib has no font cache yet, and the output goes to a file."""
    chosen = ["model.attention=additive", "pos_enc=learned"]
    home = tmp_path / "home"
    home.mkdir()
    kept = {k: v for k, v in os.environ.items() if not k.startswith(("WANDB_", "XDG_", "MPL"))}
    own = {"HOME": str(home), "MPLCONFIGDIR": str(home / "mpl"), "PYTHONPATH": SOURCE}
    typed = [*chosen, *overrides(tmp_path, *SHORT, "logger=wandb"), "output_dir=outputs"]
    done = subprocess.run(
        [sys.executable, "-m", "ablate", *typed],
        env={**kept, **own, "NETRC": "/nowhere"},
        cwd=tmp_path,
        capture_output=True,
        text=True,
        timeout=300,
        check=True,
    )
    assert done.stderr == ""
    assert list((home / "mpl").glob("fontlist*")), "matplotlib had nothing to announce"
    (folder,) = (tmp_path / "outputs" / "runs").iterdir()
    first, second = done.stdout.splitlines()[:2]
    assert re.fullmatch(
        r"gpt: [\d,]+ parameters \| text: [\d,]+ training tokens \| cpu, 1 thread \| (\S+)", first
    )
    assert first.endswith(f"| {folder.relative_to(tmp_path)}")
    assert second.startswith("step 5/5: ")
    assert done.stdout.splitlines()[-1].startswith("  python -m ablate ")
    assert "python -m ablate.generate" in done.stdout
    assert "leaked" not in done.stdout
    result = json.loads((folder / "result.json").read_text())
    assert result["choices"].items() >= dict(one.split("=") for one in chosen).items()
    assert set(result["kernels"].values()) == {"chunked (fused)"}
    assert "train/loss" in (folder / "metrics.csv").read_text()
    assert not (folder / "train.log").exists()  # else it would be empty


def test_a_resumed_run_says_it_again(tmp_path, capsys):
    cfg = ablate.compose(*overrides(tmp_path))

    def headlines() -> list[str]:
        ablate.run(cfg)
        return [s for s in capsys.readouterr().out.splitlines() if " parameters | " in s]

    (line,) = headlines()
    result = Composition(cfg).folder / "result.json"
    total = json.loads(result.read_text())["parameters"]["total"]
    assert line.startswith(f"gpt: {total:,} parameters | text: ")
    assert line.endswith(str(Composition(cfg).folder))
    assert headlines() == []  # it is finished
    result.unlink()
    assert headlines() == [line]


def test_a_compilation_is_announced_once(capsys):
    def compiled(number: int) -> None:
        torch._dynamo.reset()  # as compile=true does; it removes the callbacks
        notice.on_train_start(trainer, task)
        torch.compile(lambda x: x + number, backend="eager")(torch.ones(2))

    notice, trainer, task = CompileNotice(), SimpleNamespace(is_global_zero=True), Any
    compiled(1)
    compiled(2)
    said = capsys.readouterr().out
    assert said == "ablate: compiling (torch.compile); the first steps take longer\n"
    notice.teardown(trainer, task, "fit")
    torch.compile(lambda x: x + 3, backend="eager")(torch.ones(2))
    assert capsys.readouterr().out == ""
