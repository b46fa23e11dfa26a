"""W&B with and without a key and a server: never a prompt, never a failed run."""

import json
import os
import re
import subprocess
import sys
from pathlib import Path
from textwrap import dedent
from typing import Any

import offline_wandb
import pytest
import yaml
from tiny import SMALL, overrides
from wandb_server import KEY, running

ROOT = Path(__file__).parents[1]

SCRIPT = """
import json, sys
from pathlib import Path
from test_logger import RESULT, make
logger = make("wandb", Path(sys.argv[1]), **json.loads(sys.argv[2]))
logger.run.log({"train/loss": 2.0, "trainer/global_step": 7})
print(logger.where)
logger.finish(RESULT)
"""


def clean(folder: Path, **more: str) -> dict[str, str]:
    """The environment of a person without any setting of W&B."""
    kept = {k: v for k, v in os.environ.items() if not k.startswith("WANDB_") and k != "NETRC"}
    home = {"HOME": str(folder), "PYTHONPATH": f"{ROOT / 'src'}:{ROOT / 'tests'}"}
    return kept | home | more


def alone(folder: Path, *, environment: dict[str, str], **changes: Any) -> tuple[str, str]:
    """A run in a process of its own, without a terminal: where it is, and stderr."""
    done = subprocess.run(
        [sys.executable, "-c", SCRIPT, str(folder), json.dumps(changes)],
        env=clean(folder, **environment),
        stdin=subprocess.DEVNULL,
        capture_output=True,
        text=True,
        timeout=60,
    )
    assert done.returncode == 0, done.stderr
    return done.stdout.strip(), done.stderr


def metrics_of(folder: Path) -> list[tuple[int, float]]:
    (run,) = offline_wandb.run_folders(folder)
    return offline_wandb.read(run).series("train/loss")


def test_without_a_key_it_is_offline_and_asks_nothing(tmp_path: Path) -> None:
    where, errors = alone(tmp_path, environment={})
    assert ("offline" in where, errors) == (True, "")
    assert metrics_of(tmp_path) == [(7, 2.0)]


@pytest.mark.slow
def test_wandb_mode_is_honoured_and_online_without_a_key_refused(tmp_path: Path) -> None:
    environment = {"WANDB_API_KEY": KEY, "WANDB_MODE": "disabled"}
    where, errors = alone(tmp_path, environment=environment)
    assert ("switched off" in where, errors) == (True, "")
    assert not offline_wandb.run_folders(tmp_path)
    with pytest.raises(AssertionError, match=r"UserError.*logger.mode=online needs a W&B API key"):
        alone(tmp_path, environment={}, mode="online")


def test_a_run_with_a_key_arrives(tmp_path: Path) -> None:
    with running() as server:
        where, errors = alone(tmp_path, environment=server.environment)
        run = server.runs["0123456789ab"]
        assert server.unknown == []
    assert (where, errors) == (f"{server.url}/me/ablate/runs/0123456789ab", "")
    assert (run["group"], run["jobType"], run["exit_code"]) == ("a_study", "train", 0)
    assert [line.get("train/loss") for line in run["history"]] == [2.0]
    assert server.summary("0123456789ab")["test/accuracy"] == 0.75
    assert not offline_wandb.run_folders(tmp_path)


@pytest.mark.slow
@pytest.mark.parametrize("place", ["WANDB_API_KEY", "netrc"])
def test_a_server_that_refuses_the_key_does_not_stop_the_run(tmp_path: Path, place: str) -> None:
    with running(refuse=401) as server:
        environment = server.environment
        if place == "netrc":
            key, host = environment.pop("WANDB_API_KEY"), server.url.removeprefix("http://")
            (tmp_path / ".netrc").write_text(f"machine {host} login user password {key}\n")
        where, errors = alone(tmp_path, environment=environment)
    assert "offline" in where
    assert errors.count("\n") == 1
    assert "W&B cannot be reached, writing offline" in errors
    assert metrics_of(tmp_path) == [(7, 2.0)]


@pytest.mark.slow
def test_a_dead_server_does_not_stop_the_run(tmp_path: Path) -> None:
    """Within the minute that `alone` waits."""
    environment = {"WANDB_BASE_URL": "http://127.0.0.1:9", "WANDB_API_KEY": KEY}
    where, errors = alone(tmp_path, environment=environment)
    assert "writing offline" in errors
    assert "offline" in where
    assert metrics_of(tmp_path) == [(7, 2.0)]


@pytest.mark.slow
def test_an_agent_trains_the_sweep_of_the_documentation(tmp_path: Path) -> None:
    """`wandb agent` runs the command of docs/wandb.md; a trial that is given again is logged."""
    block = re.search(r"(?:^    .*\n)+", (ROOT / "docs" / "wandb.md").read_text(), re.MULTILINE)
    assert block is not None
    sweep = yaml.safe_load(dedent(block[0]))
    tiny = [text for text in overrides(tmp_path, *SMALL) if text != "logger=none"]
    path = f"{Path(sys.executable).parent}:{os.environ['PATH']}"
    scores = sweep["parameters"]["model.attention"]["values"]
    with running() as server:
        server.sweep = sweep | {"command": [*sweep["command"], *tiny]}
        server.trials = [{"model.attention": score, "seed": 1} for score in (*scores, scores[0])]
        done = subprocess.run(
            [sys.executable, "-m", "wandb", "agent", "me/ablate/sweep"],
            env=clean(tmp_path, PATH=path, **server.environment),
            cwd=tmp_path,
            capture_output=True,
            text=True,
            timeout=200,
        )
        assert done.returncode == 0, done.stderr
        configs = {name: json.loads(run["config"]) for name, run in server.runs.items()}
        losses = [server.summary(f"trial{n}")["val/loss"] for n in range(3)]
    chosen = [configs[f"trial{n}"]["choices"]["value"]["model.attention"] for n in (2, 1, 0)]
    assert chosen == [*scores, scores[0]]
    assert losses[2] == losses[0] != losses[1]
    assert len(list((tmp_path / "outputs" / "runs").iterdir())) == 2
