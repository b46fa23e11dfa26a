"""A run of a study, and the configuration that its process is given."""

import json
import re
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from hashlib import sha256
from pathlib import Path
from typing import TYPE_CHECKING, Any, TypeVar

from omegaconf import DictConfig, OmegaConf, read_write

from ablate.config.composition import as_typed
from ablate.config.keys import plain
from ablate.config.overrides import key_of, value_text
from ablate.config.run_id import IdContent
from ablate.errors import UserError
from ablate.machine.redact import redacted, without_credentials
from ablate.study.launch.state import State, state_of

if TYPE_CHECKING:
    from ablate.training.trunk import SharedSteps

# Overrides that set how a sweep is run, which a single run does not need.
OF_SWEEPS = re.compile(r"\+{0,2}hydra[./](launcher|sweeper|sweep|mode|run)\b")
RUN_DIR = "run_dir"
Result = TypeVar("Result")


@dataclass(frozen=True)
class Command:
    """Settings of the study's command that all of its runs share.

    flags: --config-dir and --config-name; hydra: overrides of Hydra's node; logging: Hydra's
    verbose and job_logging.
    """

    flags: tuple[str, ...] = ()
    hydra: tuple[str, ...] = ()
    logging: Mapping[str, Any] = field(default_factory=dict)

    @classmethod
    def of(cls, config: DictConfig) -> "Command":
        """config: the composition of the command, with Hydra's node."""
        flags = []
        for source in config.hydra.runtime.config_sources:
            if source.provider == "command-line":
                flags += ["--config-dir", source.path]
        if config.hydra.job.config_name != "config":
            flags += ["--config-name", config.hydra.job.config_name]
        hydra = config.copy().hydra
        with read_write(hydra.runtime):
            hydra.runtime.output_dir = hydra.run.dir  # as Hydra sets it for a single run
        logging = {key: plain(hydra[key]) for key in ("verbose", "job_logging")}
        return cls(tuple(flags), tuple(as_typed(config.hydra.overrides.hydra)), logging)

    def arguments(self, overrides: Sequence[str]) -> list[str]:
        """Return the arguments of `python -m ablate` for one run, in any directory."""
        of_run = [text for text in (*self.hydra, *overrides) if not OF_SWEEPS.match(text)]
        return [*self.flags, *(text for text in of_run if key_of(text) != RUN_DIR)]


class Resolved:
    """The values of a composition, resolved once for all seeds unless one refers to the seed."""

    def __init__(self, cfg: DictConfig) -> None:
        self.cfg = cfg
        self._refers = "${seed" in str(OmegaConf.to_container(cfg, throw_on_missing=False))
        self._known: dict[Callable[[DictConfig], Any], Any] = {}

    def counted(self, seed: int) -> IdContent:
        return self._of(IdContent, seed)

    def recorded(self, seed: int) -> dict[str, Any]:
        """Return the values that a run's config.yaml will have. Raises UserError for those that
        JSON cannot represent."""
        return {**self._of(_recorded, seed), "seed": seed}

    def _of(self, read: Callable[[DictConfig], Result], seed: int) -> Result:
        self.cfg.seed = seed
        if self._refers or read not in self._known:
            self._known[read] = read(self.cfg)
        result: Result = self._known[read]
        return result


def _recorded(cfg: DictConfig) -> dict[str, Any]:
    from ablate.training.record import recorded_values

    values = recorded_values(cfg)
    # Keys of the plan, whose keys may be numbers. A run reads none of them.
    values["study"] |= {"factors": None, "blocks": None, "exclude": [], "claims": []}
    for path in _not_json(values):
        raise UserError(f"{path}: cannot be passed to a run; keys must be strings, values plain")
    return values


def _not_json(node: Any, path: str = "") -> Iterator[str]:
    if isinstance(node, dict):
        for key, value in node.items():
            name = f"{path}.{key}".lstrip(".")
            kept = isinstance(key, str) or path == "data.phases"  # which reads its steps as strings
            yield from _not_json(value, name) if kept else [name]
    elif isinstance(node, list):
        for number, value in enumerate(node):
            yield from _not_json(value, f"{path}[{number}]")
    elif not isinstance(node, str | int | float | None):
        yield path


@dataclass(frozen=True)
class PlannedRun:
    """One run of the plan. kind: run, or tune; the folder's name is relative to the study's.

    overrides: those that compose the same run, for people and for launchers of Hydra. resolved: the
    composition, checked; None for one that is read from a plan. shared: the steps that it shares
    with other runs (ablate.study.plan.trunks).
    """

    arm: str
    seed: int
    run_id: str
    folder: str
    kind: str
    overrides: tuple[str, ...]
    command: Command = field(default=Command(), repr=False, compare=False)
    resolved: Resolved | None = field(default=None, repr=False, compare=False)
    shared: "SharedSteps | None" = field(default=None, repr=False, compare=False)

    @property
    def file(self) -> str:
        """The content of planned.json."""
        assert self.resolved is not None
        config = self.resolved.recorded(self.seed)
        config["study"] = {**config["study"], "arm": self.arm or None}
        content = {
            "run_id": self.run_id,
            "arguments": without_credentials(self.command.arguments(self.overrides)),
            "logging": self.command.logging,
            "config": config,
        }
        return json.dumps(content)

    def state(self, root: Path) -> State:
        """root: the folder of the study, as for `job`."""
        return state_of(root / self.folder, self.run_id)

    def finished(self, root: Path) -> bool:
        return self.state(root).name == "finished"

    def lacks_conditions(self, result: Mapping[str, Any]) -> bool:
        """Whether the result of a finished run lacks a condition of `evaluate`."""
        wanted = (plain(self.resolved.cfg.get("evaluate")) if self.resolved else None) or {}
        known, refused = result.get("evaluated", {}), result.get("not_evaluated", {})
        return any(
            known.get(name) != redacted(changes) and name not in refused
            for name, changes in wanted.items()
        )

    @property
    def trainer(self) -> DictConfig:
        assert self.resolved is not None
        node: DictConfig = self.resolved.cfg.trainer
        return node

    def job(self, root: Path) -> list[str]:
        """Return the overrides for a launcher of Hydra. root: the folder of the study."""
        return [*self.overrides, f"{RUN_DIR}={value_text(str(root.absolute() / self.folder))}"]

    def entry(self) -> dict[str, Any]:
        """The run in plan.json."""
        return {
            "arm": self.arm,
            "seed": self.seed,
            "run_id": self.run_id,
            "folder": self.folder,
            "kind": self.kind,
            "overrides": list(self.overrides),
            "sha256": seal(self.file),
        }


def seal(text: str) -> str:
    """Return the SHA-256 of a file's content."""
    return sha256(text.encode()).hexdigest()
