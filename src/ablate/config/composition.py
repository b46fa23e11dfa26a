"""Composition: from overrides to one checked configuration, for a run."""

import os
import sys
from collections.abc import Mapping, Sequence
from functools import cached_property
from pathlib import Path
from typing import TYPE_CHECKING, Any

from omegaconf import DictConfig, OmegaConf, open_dict

from ablate.config import public
from ablate.config.check import check
from ablate.config.keys import interpolations, resolved
from ablate.config.layers import expand
from ablate.config.make import make_data
from ablate.config.override_errors import explain, refuse_unread
from ablate.config.overrides import key_of, value_text
from ablate.config.run_id import fingerprint_or_no_data, folder_name, run_id
from ablate.config.tree import COMPOSITION_ERRORS, open_tree
from ablate.errors import UserError

if TYPE_CHECKING:
    from ablate.data import Data


def compose(*overrides: str, config_dir: str | Path | None = None) -> DictConfig:
    """Compose and check the configuration that the command line would run with these overrides.

    `config_dir` adds custom options to every group. The node `choices` contains the option of
    every config group. Raises UserError.
    """
    if wrong := [override for override in overrides if not isinstance(override, str)]:
        raise UserError(
            f"ablate.compose({wrong[0]!a:.60}): each override must be a separate string, as in"
            ' ablate.compose("model=vit", "pos_enc=rotary"); pass a list as ablate.compose(*LIST)'
        )
    cfg = unchecked(*overrides, config_dir=config_dir)
    check(cfg)
    return cfg


def unchecked(*overrides: str, config_dir: str | Path | None = None) -> DictConfig:
    """`compose` of a config that may be incomplete, such as data=text without a path."""
    tree = open_tree(config_dir)
    refuse_unread(overrides, tree)
    try:
        cfg = tree.load(overrides)
    except COMPOSITION_ERRORS as error:
        raise explain(error, overrides, tree, many=False) from None
    finalize(cfg, cfg.hydra)
    return cfg


def require_composed(cfg: Any, function: str) -> None:
    """Raise UserError unless a function of the Python API was given a result of `compose`."""
    if not isinstance(cfg, DictConfig):
        raise UserError(
            f"ablate.{function}({cfg!a:.60}): takes the return value of ablate.compose, as in"
            f' ablate.{function}(ablate.compose("model=vit"))'
        )


# Keys of the trainer: the number of processes, and the part of the model that each has. If a model
# has no statistics of a batch, nothing but rounding depends on them.
PROCESSES = ("devices", "num_nodes", "strategy", "shards")

# When to validate: a file sets one of them, and the other may be typed.
BY_STEP_OR_EPOCH = ("trainer.val_check_interval", "trainer.check_val_every_n_epoch")


class Composition:
    """A checked configuration, its data and its names, each made once and never changed.

    Attributes:
        cfg: the configuration, read-only.
        recorded: the configuration that names the run, `cfg` unless the run was begun by another
            number of processes (`with_recorded_processes`).
        planned_id: the id of the run in its study's plan; None if it was not planned.
        arguments: the command line that makes the run.
    """

    def __init__(
        self,
        cfg: DictConfig,
        *,
        planned_id: str | None = None,
        arguments: Sequence[str] | None = None,
    ) -> None:
        """Raises a one-line UserError that lists everything wrong with the configuration.

        planned_id, arguments: of a run whose plan has checked its configuration.
        """
        values = resolved(cfg)
        if planned_id is None:
            check(values)
        self.planned_id = planned_id
        self.arguments = tuple(sys.argv[1:] if arguments is None else arguments)
        self._run_dir = values["run_dir"]
        self.cfg = cfg.copy()
        OmegaConf.set_readonly(self.cfg, False)
        self.cfg.run_dir = None  # a folder may be moved
        OmegaConf.set_readonly(self.cfg, True)
        self.recorded = self.cfg

    def with_recorded_processes(self, values: Mapping[str, Any]) -> list[str]:
        """Let this be a run that was begun by the processes of another configuration; return the
        differences, such as "trainer.devices=4"."""
        self.recorded = self.cfg.copy()
        OmegaConf.set_readonly(self.recorded, False)
        OmegaConf.update(self.recorded, "choices.trainer", values["choices"].get("trainer"))
        then = {key: values["trainer"].get(key) for key in PROCESSES}
        OmegaConf.update(self.recorded, "trainer", then)
        changed = {key: value for key, value in then.items() if value != self.cfg.trainer[key]}
        return [f"trainer.{key}={value_text(value)}" for key, value in changed.items()]

    @cached_property
    def data(self) -> "Data":
        """The data, as yet not set up. UserError if they cannot be read."""
        return make_data(self.cfg)

    @cached_property
    def fingerprint(self) -> str:
        """That of the content of the data: see `Data.fingerprint`."""
        found = self.data.fingerprint()
        if not found or not isinstance(found, str):
            raise UserError(
                f"{type(self.data).__name__}.fingerprint() returned {found!r}; it must return a"
                " string that identifies the content of the data"
            )
        return found

    @property
    def id(self) -> str:
        """12 hexadecimal digits, equal for equal work: see run_id.py."""
        return run_id(self.recorded, fingerprint_or_no_data(lambda: self.fingerprint))

    @property
    def folder_name(self) -> str:
        return folder_name(self.cfg.study.arm, self.id)

    @property
    def folder(self) -> Path:
        """The folder of the run."""
        if self._run_dir:
            return Path(self._run_dir)
        return Path(self.cfg.output_dir, self.cfg.study.name, self.folder_name)

    @property
    def debugged(self) -> bool:
        """Whether this is a debug=... run, which never resumes, since the code may have changed."""
        return self.cfg.choices.get("debug") is not None


def finalize(cfg: DictConfig, hydra: DictConfig) -> None:
    """Store the option of every group in the node `choices`, expand the values by layer, set keys
    to null that a typed key replaces, and leave Hydra's node out.

    hydra: that node. Of the options Hydra's own groups are left out, and those that an option
    brings in: the sizes of debug=fast. Raises UserError.
    """
    choices, sources = hydra.runtime.choices, hydra.runtime.config_sources
    typed = {key_of(text): text.partition("=")[2] for text in as_typed(hydra.overrides.task)}
    with open_dict(cfg):
        cfg.choices = {g: o for g, o in choices.items() if "/" not in g and "@" not in g}
        cfg.pop("hydra", None)
        for key, other in (BY_STEP_OR_EPOCH, BY_STEP_OR_EPOCH[::-1]):
            if typed.get(key, "null") != "null" and other not in typed:
                OmegaConf.update(cfg, other, None)
    with interpolations():
        expand(cfg, sources)


def as_typed(overrides: Any) -> list[str]:
    """The strings of hydra.overrides, which may contain interpolations."""
    texts: Any = OmegaConf.to_container(overrides, resolve=False)
    return [*map(str, texts)]


OmegaConf.register_new_resolver("oc.env", public.from_environment, replace=True)
# A sweep file always starts several runs.
OmegaConf.register_new_resolver(
    "study_mode", lambda sweep: None if sweep is None else "MULTIRUN", replace=True
)
# Unlike ${oc.env:}, an empty variable counts as one that is not set, and its value is written down.
OmegaConf.register_new_resolver(
    "environment", lambda name, default=None: os.environ.get(name) or default, replace=True
)
