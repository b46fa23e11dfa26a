"""The arms of a study composed and checked, and the run of each with each seed."""

import json
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field, replace
from functools import cached_property
from typing import TYPE_CHECKING, Any

from hydra.core.config_loader import ConfigLoader
from omegaconf import DictConfig, OmegaConf

from ablate.config.check import check
from ablate.config.composition import as_typed, finalize
from ablate.config.keys import changed_keys, plain
from ablate.config.override_errors import explain
from ablate.config.overrides import equal, merged, parse_one, value_text
from ablate.config.run_id import fingerprint, folder_name
from ablate.config.tree import COMPOSITION_ERRORS, Tree
from ablate.errors import UserError
from ablate.study.plan.design import Factor, PlannedArm
from ablate.study.plan.planned_run import Command, PlannedRun, Resolved

if TYPE_CHECKING:
    from ablate.study.plan.budget import Budget


class NoComposition(UserError):
    """Hydra cannot compose the overrides, most often because a name does not exist."""


class Composer:
    """Compose arms from the overrides that all arms share and the arm's own."""

    def __init__(self, loader: ConfigLoader, command: DictConfig, fixed: Sequence[str]):
        self.fixed = tuple(fixed)
        typed = as_typed(command.hydra.overrides.hydra)
        search = tuple(text for text in typed if text.startswith("hydra.searchpath="))
        self._hydra = [text for text in typed if text not in search]
        # That of a program of the user's own that uses the sweeper has no compositions.
        composed = getattr(loader, "composed", None)
        name = command.hydra.job.config_name
        self._tree = Tree(loader.get_search_path(), name, search, composed)
        self._composed: dict[tuple[str, ...], DictConfig] = {}
        self._checked: set[tuple[str, ...]] = set()

    def all_of(self, overrides: Iterable[str]) -> tuple[str, ...]:
        """Return all overrides of an arm."""
        return merged(self.fixed, overrides)

    def __call__(self, arm_overrides: Iterable[str]) -> DictConfig:
        """Return the composition, unchecked. Raises NoComposition with one line."""
        overrides = self.all_of(arm_overrides)
        if overrides not in self._composed:
            self._composed[overrides] = self._compose(overrides)
        return self._composed[overrides]

    def checked(self, arm_overrides: Iterable[str]) -> DictConfig:
        """Return the composition, which is checked once. Raises UserError, also NoComposition."""
        overrides = self.all_of(arm_overrides)
        config = self(overrides)
        if overrides not in self._checked:
            check(config)
            self._checked.add(overrides)
        return config

    def _compose(self, overrides: Sequence[str]) -> DictConfig:
        try:
            cfg = self._tree.load([*self._hydra, *overrides])
        except COMPOSITION_ERRORS as error:
            line = explain(error, overrides, self._tree, many=True)
            raise NoComposition(str(line)) from error
        finalize(cfg, cfg.hydra)
        return cfg


@dataclass
class Composed:
    """A legal arm, and the values that budget matching and tuning have set in it."""

    arm: PlannedArm
    overrides: tuple[str, ...]  # in full, without seed and arm
    config: DictConfig
    set: dict[str, Any] = field(default_factory=dict)
    tuned: dict[str, Any] = field(default_factory=dict)
    tuning: list[dict[str, Any]] = field(default_factory=list)
    warnings: list[str] = field(default_factory=list)
    same_as: str | None = None
    budget: "Budget" = field(init=False, repr=False, compare=False)  # of this configuration

    @property
    def name(self) -> str:
        return self.arm.name

    @cached_property
    def resolved(self) -> Resolved:
        return Resolved(self.config)

    def differs(self, baseline: DictConfig) -> dict[str, tuple[Any, Any]]:
        """Map each differing key, except study.*, to the baseline's value and the arm's own."""
        pairs = changed_keys(baseline, self.config)
        return {key: pair for key, pair in pairs.items() if not key.startswith("study.")}


def with_more(composed: Composed, more: Sequence[str], composer: Composer) -> Composed:
    """Return the arm with further overrides, composed and checked again."""
    overrides = merged(composed.overrides, more)
    return replace(composed, overrides=overrides, config=composer.checked(overrides))


def with_baseline_options(
    factors: Sequence[Factor], cfg: DictConfig
) -> tuple[list[Factor], dict[str, str]]:
    """Return the factors with the baseline's option first, listed or not, and these options."""
    complete, own = [], {}
    for factor in factors:
        listed = own_option(factor, cfg)
        option = own[factor.name] = listed or _unlisted_option(factor, cfg)
        if not listed and option in factor.options:
            raise UserError(
                f"study.factors: {factor.name}: the option {option} has other values than the"
                " baseline; rename it, or set its values for all arms"
            )
        options = {option: factor.options.get(option, ()), **factor.options}
        complete.append(Factor(factor.name, options))
    return complete, own


def own_option(factor: Factor, cfg: DictConfig) -> str | None:
    """The option of a factor that a composition has already; None if that is not listed."""
    options = factor.options.items()
    has = [name for name, texts in options if all(_holds(text, cfg) for text in texts)]
    if len(has) > 1:
        raise UserError(
            f"study.factors: {factor.name}: {' and '.join(has)} are both the baseline's option"
        )
    return has[0] if has else None


def _holds(text: str, cfg: DictConfig) -> bool:
    """Whether a composition already has the value that an override sets."""
    override = parse_one(text, "study.factors")
    key, value = override.key_or_group, override.value()
    if key in cfg.choices:
        return value_text(cfg.choices[key]) == value_text(value)
    node, _, leaf = key.rpartition(".")
    parent = OmegaConf.select(cfg, node) if node else cfg
    present = (
        OmegaConf.is_dict(parent) and leaf in parent and not OmegaConf.is_missing(parent, leaf)
    )
    return present and equal(plain(parent[leaf]), plain(value))


def _unlisted_option(factor: Factor, cfg: DictConfig) -> str:
    if factor.keys != {factor.name}:
        return "baseline"
    if factor.name in cfg.choices:
        return value_text(cfg.choices[factor.name])
    try:
        return value_text(plain(OmegaConf.select(cfg, factor.name)))
    except Exception:
        return "baseline"


class PlannedRuns:
    """Make the runs of a plan; each data set is fingerprinted once. command: of the study."""

    def __init__(self, command: Command | None = None) -> None:
        self._command = command or Command()
        self._data: dict[str, str] = {}

    def of(self, composed: Composed, seed: int, *, kind: str = "run") -> PlannedRun:
        resolved = composed.resolved
        name = resolved.counted(seed).run_id(seed, self._fingerprint(resolved, seed))
        folder = folder_name(composed.name, name)
        identity = (f"seed={seed}", f"study.arm={value_text(composed.name)}")
        return PlannedRun(
            arm=composed.name,
            seed=seed,
            run_id=name,
            folder=f"tune-{folder}" if kind == "tune" else folder,
            kind=kind,
            overrides=merged(composed.overrides, identity),
            command=self._command,
            resolved=resolved,
        )

    def by_seed(self, arms: Sequence[Composed], seeds: Sequence[int]) -> list[PlannedRun]:
        """Return the runs in launch order: all arms with the first seed, the baseline first, and
        so on, so that an interrupted study can be compared. Arms with equal runs share folders."""
        known: dict[str, PlannedRun] = {}
        runs: list[PlannedRun] = []
        for seed in seeds:
            for composed in arms:
                run = self.of(composed, seed)
                first = known.setdefault(run.run_id, run)
                if first is not run:
                    composed.same_as = composed.same_as or first.arm
                    run = replace(run, folder=first.folder)
                runs.append(run)
        return runs

    def data(self, composed: Composed, seeds: Sequence[int]) -> dict[str, str]:
        """Map each seed to the fingerprint of its data."""
        return {str(seed): self._fingerprint(composed.resolved, seed) for seed in seeds}

    def _fingerprint(self, resolved: Resolved, seed: int) -> str:
        key = json.dumps([resolved.counted(seed).data, seed], sort_keys=True)
        if key not in self._data:
            self._data[key] = fingerprint(resolved.cfg)
        return self._data[key]
