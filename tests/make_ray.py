"""A private Ray of one node on this machine, and the launcher in this process."""

import secrets
import subprocess
import sys
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from importlib.util import find_spec
from pathlib import Path
from typing import Any

import yaml
from make_launch import MODULES, environment, until

from ablate.config.tree import config_dir
from ablate.study.launch.ray import Settings, launch
from ablate.study.launch.run import Run
from ablate.study.launch.state import State

CPUS = 4  # said to Ray: a test's runs are small


def missing() -> str:
    """Why no Ray can be started here, or nothing."""
    return "" if find_spec("ray") else "not installed: the Python package ray"


@contextmanager
def cluster(place: Path) -> Iterator[dict[str, str]]:
    """Lives while the block does; gives the environment of those who belong to it."""
    own = {"RAY_AUTH_MODE": "token", "RAY_AUTH_TOKEN": secrets.token_hex(32)}
    command = [
        *(sys.executable, "-m", "ray.scripts.scripts", "start", "--head", "--block", "--port=0"),
        "--node-ip-address=127.0.0.1",
        *(f"--num-cpus={CPUS}", "--include-dashboard=false", f"--temp-dir={place}"),
        *("--object-store-memory=80000000", "--disable-usage-stats"),
    ]
    with open(place / "started.out", "w") as out:
        process = subprocess.Popen(
            command, stdout=out, stderr=out, env=environment(**own), start_new_session=True
        )
    address = place / "ray_current_cluster"
    try:
        until(lambda: address.exists() or process.poll() is not None, 300)
        assert address.exists(), (place / "started.out").read_text()
        yield own | {"RAY_ADDRESS": address.read_text().strip()}
    finally:
        process.terminate()  # and with it what it has started
        process.wait()


def launched(wanted: Sequence[Run], accident: str = "", **own: Any) -> list[State]:
    """Train them by the launcher, in this process, which belongs to a cluster."""
    file = yaml.safe_load((config_dir() / "hydra/launcher/ray.yaml").read_text())["ray"]
    settings = Settings(
        init=file["init"] | {"runtime_env": around(accident)},
        remote=file["remote"] | own,
        grace=60,
    )
    return launch(wanted, settings, modules=MODULES)


def around(accident: str) -> dict[str, dict[str, str]]:
    """The runtime environment in which runs meet an accident."""
    return {"env_vars": {"ACCIDENT": accident, "PYTHONPATH": environment()["PYTHONPATH"]}}
