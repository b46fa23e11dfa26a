"""Tiny runs for the launchers, studies of them as processes of their own, and what they leave."""

import json
import os
import subprocess
import sys
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any

import pytest
from accident import OVERRIDE
from make_sweep import tiny_for, write_sweep
from omegaconf import DictConfig
from tiny import overrides

import ablate
from ablate.config.composition import Composition
from ablate.study.launch.local import LocalSettings, launch
from ablate.study.launch.run import ScheduledRun
from ablate.study.launch.state import State
from ablate.study.plan.planned_run import PlannedRun, Resolved

PATIENCE = 900.0  # seconds; importing torch can take minutes on a machine in use
MODULES = ["accident"]  # of the task in OVERRIDE
Command = Callable[..., "subprocess.Popen[str]"]


def until(happened: Callable[[], bool], seconds: float = PATIENCE) -> None:
    """Waits for it."""
    end = time.monotonic() + seconds
    while not happened():
        assert time.monotonic() < end
        time.sleep(0.05)


def line(folder: Path, seed: int, *more: str) -> list[str]:
    """The arguments of one tiny run that accidents can happen to."""
    return overrides(folder, OVERRIDE, f"seed={seed}", *more)


def runs(folder: Path, seeds: Sequence[int], *more: str) -> list[ScheduledRun]:
    """Of a study that is nothing but seeds."""
    made = []
    for seed in seeds:
        arguments = line(folder, seed, *more)
        made.append(run_of(Composition(cfg := ablate.compose(*arguments)).folder, cfg, arguments))
    return made


def run_of(folder: Path, cfg: DictConfig, overrides: Sequence[str]) -> ScheduledRun:
    """A run as a launcher gets it."""
    name, seed = Composition(cfg).id, cfg.seed
    planned = PlannedRun("", seed, name, folder.name, "run", (*overrides,), resolved=Resolved(cfg))
    return ScheduledRun(folder.absolute(), planned)


def settings(**own: Any) -> LocalSettings:
    usual = {"max_parallel_runs": 2, "gpus_per_run": 0, "timeout": None, "retries": 0}
    return LocalSettings(**usual | {"grace_period": 30, "fail_fast": False} | own)


def environment(accident: str = "", **more: str) -> dict[str, str]:
    """That of a run, which finds the tests' own tasks."""
    path = [str(Path(__file__).parent), os.environ.get("PYTHONPATH", "")]
    own = {"PYTHONPATH": os.pathsep.join(filter(None, path)), "ACCIDENT": accident}
    return {**os.environ, **own, **more}


def launched(
    wanted: Sequence[ScheduledRun], accident: str = "", *, more: Mapping[str, str] = {}, **own: Any
) -> list[State]:
    """Train them by the local launcher, in this process."""
    around = environment(accident, **more)
    return launch(wanted, settings(**own), modules=MODULES, environment=around)


def study(folder: Path, seeds: str, *more: str) -> list[str]:
    """What a person types for a study of nothing but seeds; it lies in outputs/mine."""
    return ["-m", *overrides(folder, OVERRIDE, "study.name=mine", f"seed={seeds}", *more)]


STUDY = "{factors: {pos_enc: [none]}, seeds: 2}"


def study_line(folder: Path, output: str, *more: str) -> list[str]:
    """What a person types for a study of four runs with checkpoints; it lies in OUTPUT/mine."""
    tiny = [text for text in tiny_for(STUDY, folder) if not text.startswith("output_dir=")]
    place = f"output_dir={folder / output}"
    return [*write_sweep(folder, STUDY), *tiny, OVERRIDE, place, "checkpoint_every=1", *more]


@pytest.fixture
def command() -> Iterator[Command]:
    """Starts studies as processes in sessions of their own; what is left of them is stopped."""
    started: list[subprocess.Popen[str]] = []

    def start(*line: str, accident: str = "") -> "subprocess.Popen[str]":
        process = subprocess.Popen(
            [sys.executable, "-m", "ablate", *line],
            stdout=subprocess.PIPE,
            stderr=subprocess.STDOUT,
            text=True,
            start_new_session=True,
            env=environment(accident),
        )
        started.append(process)
        return process

    yield start
    for process in started:
        process.kill()
        process.communicate()


def ended(process: "subprocess.Popen[str]") -> tuple[int, str]:
    """Exit code, and what was printed."""
    said, _ = process.communicate(timeout=PATIENCE)
    return process.returncode, said


def folders(study: Path) -> dict[str, Path]:
    """Arm and seed -> folder, once the plan is written."""
    until((study / "plan.json").exists)
    cells = json.loads((study / "plan.json").read_text())["cells"]
    return {f"{cell['arm']} {cell['seed']}": study / cell["folder"] for cell in cells}


def paths(study: Path) -> list[Path]:
    """In the order of the plan."""
    return list(folders(study).values())


def met(folder: Path) -> Callable[[], bool]:
    """Whether a run's accident has happened."""
    return (folder / "met").exists


def printed(folder: Path) -> str:
    return (folder / "stdout.log").read_text()


def goes_on(folder: Path) -> bool:
    """Whether a try began from a checkpoint."""
    return "resuming from" in printed(folder)


def run_here(run: ScheduledRun, folder: Path, *own: str, without: Sequence[str] = ()) -> None:
    """The same run by the command line, in another folder and with other overrides."""
    typed = [text for text in run.planned.overrides if text not in without]
    line = [sys.executable, "-m", "ablate", *typed, *own, f"hydra.run.dir={folder}"]
    subprocess.run(line, check=True, capture_output=True, env=environment())


def require_as_locally(command: Command, folder: Path, study: Path) -> None:
    """The runs of `study_line` measure what they do by the local launcher, in the same folders."""
    code, said = ended(command(*study_line(folder, "local")))
    assert code == 0, said
    for local, other in zip(paths(folder / "local" / "mine"), paths(study), strict=True):
        assert local.name == other.name
        assert metrics(local) == metrics(other)


def tries(folder: Path) -> int:
    """How often a process began in a run's folder."""
    return sum(line.startswith("python -m ablate ") for line in printed(folder).splitlines())


def metrics(folder: Path) -> dict[str, float]:
    found: dict[str, float] = json.loads((folder / "result.json").read_text())["metrics"]
    return found


def process_of(folder: Path) -> int:
    """The pid of a run, as its folder tells."""
    until((folder / "progress.json").exists)
    return int(json.loads((folder / "progress.json").read_text())["pid"])


def parent_of(pid: int) -> int:
    return int(Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[1])
