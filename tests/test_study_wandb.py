"""A study from its plan to W&B, by the commands that a person types, at a server of our own."""

import json
import os
import subprocess
import sys
from pathlib import Path

import offline_wandb
import pytest
from tiny import overrides
from wandb_server import running

STUDY = ["-m", "model.attention=dot,cosine", "study.seeds=[0,1]", "study.name='a study'"]
TUNE = "study.tune={optimizer.lr: [0.001]}"
DOT, COSINE = "model.attention=dot", "model.attention=cosine"


def typed(command: str | list[str], folder: Path, **more: str) -> str:
    """What the command printed; it must succeed."""
    kept = {k: v for k, v in os.environ.items() if not k.startswith("WANDB_") and k != "NETRC"}
    done = subprocess.run(
        command,
        shell=isinstance(command, str),
        env={**kept, "HOME": str(folder), **more},
        cwd=folder,
        stdin=subprocess.DEVNULL,
        capture_output=True,
        text=True,
        timeout=600,
    )
    assert done.returncode == 0, done.stdout + done.stderr
    return done.stdout


@pytest.mark.slow
def test_a_study_ends_at_wandb(tmp_path: Path) -> None:
    arguments = [text for text in overrides(tmp_path) if not text.startswith("logger=")]
    study = tmp_path / "outputs" / "a study"
    python = [sys.executable, "-m"]

    # Trained without a key: every run lies offline, and says what it is.
    printed = typed([*python, "ablate", *STUDY, TUNE, *arguments], tmp_path)
    cells = json.loads((study / "plan.json").read_text())["cells"]
    groups: dict[str, list[str]] = {}
    for cell in cells:
        (offline,) = offline_wandb.run_folders(study / cell["folder"])
        run = offline_wandb.read(offline)
        groups.setdefault(run.group, []).append(run.job_type)
        assert run.run_id == cell["run_id"]
        block = run.config["ablate"]
        assert (block["study"], block["seed"]) == ("a study", cell["seed"])
        assert run.group == f"a study/{block['arm']}"
        assert block["is_baseline"] == (cell["arm"] == DOT and cell["kind"] == "run")
        changed = ("model.attention", "cosine") if cell["arm"] == COSINE else (None, None)
        assert (block["factor"], block["option"]) == changed
    assert groups == {
        **{f"a study/{arm} (tuning)": ["tune"] for arm in (DOT, COSINE)},
        **{f"a study/{arm}": ["train", "train"] for arm in (DOT, COSINE)},
    }

    with running() as server:
        # One printed command sends them all.
        (sync,) = [line for line in printed.splitlines() if line.startswith("  wandb sync ")]
        typed(sync, tmp_path, **server.environment)
        assert set(server.runs) == {cell["run_id"] for cell in cells}
        assert {len(run["history"]) > 3 for run in server.runs.values()} == {True}

        # The report, and each run's difference.
        report = [*python, "ablate.report", str(study), "--wandb"]
        printed = typed(report, tmp_path, **server.environment)
        assert "wandb sync" not in printed
        values = {}
        for cell in cells:
            if cell["kind"] == "run":
                metrics = json.loads((study / cell["folder"] / "result.json").read_text())[
                    "metrics"
                ]
                values[cell["arm"], cell["seed"]] = cell["run_id"], metrics["val/loss"]
        for (_, seed), (name, value) in values.items():
            difference = server.summary(name)["difference/val/loss"]
            assert difference == pytest.approx(value - values[DOT, seed][1])
        assert not server.unknown
        assert len(server.views) == 3

        # Once more: nothing piles up.
        typed(report, tmp_path, **server.environment)
        assert len(server.views) == 3
        assert len(server.runs) == len(cells) + 1
