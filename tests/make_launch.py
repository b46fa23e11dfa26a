"""Tiny runs for the local launcher, and studies of them as processes of their own."""

import os
import subprocess
import sys
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from accident import OVERRIDE
from tiny import overrides

import ablate
from ablate.config.composition import Composition
from ablate.study.launch.local import Settings, launch, targets
from ablate.study.launch.run import Run
from ablate.study.launch.state import State


def line(folder: Path, seed: int, *more: str) -> list[str]:
    """The arguments of one tiny run that accidents can happen to."""
    return overrides(folder, OVERRIDE, f"seed={seed}", *more)


def runs(folder: Path, seeds: Sequence[int], *more: str) -> list[Run]:
    """Of a study that is nothing but seeds."""
    made = []
    for seed in seeds:
        arguments = line(folder, seed, *more)
        place = Composition(ablate.compose(*arguments)).folder.absolute()
        made.append(Run(place, [*arguments, "hydra.mode=RUN", f"hydra.run.dir={place}"]))
    return made


def settings(**own: Any) -> Settings:
    return Settings(
        **{"slots": 2, "gpus_per_run": 0, "timeout": None, "retries": 0, "grace": 30} | own
    )


def environment(accident: str = "", **more: str) -> dict[str, str]:
    """That of a run, which finds the tests' own tasks."""
    path = [str(Path(__file__).parent), os.environ.get("PYTHONPATH", "")]
    own = {"PYTHONPATH": os.pathsep.join(filter(None, path)), "ACCIDENT": accident}
    return {**os.environ, **own, **more}


def launched(
    wanted: Sequence[Run],
    accident: str = "",
    *,
    more: Mapping[str, str] | None = None,
    **own: Any,
) -> list[State]:
    """Train them by the launcher, in this process."""
    around = environment(accident, **(more or {}))
    modules = targets({"task": {"_target_": "accident.AccidentProne"}})
    return launch(wanted, settings(**own), modules=modules, environment=around)


def study(folder: Path, seeds: str, *more: str) -> list[str]:
    """What a person types for a study of nothing but seeds; it lies in outputs/mine."""
    return ["-m", *overrides(folder, OVERRIDE, "study.name=mine", f"seed={seeds}", *more)]


def command(folder: Path, seeds: str, *more: str, accident: str = "") -> "subprocess.Popen[str]":
    """That study as a process, in a session of its own."""
    return subprocess.Popen(
        [sys.executable, "-m", "ablate", *study(folder, seeds, *more)],
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
        text=True,
        start_new_session=True,
        env=environment(accident),
    )
