"""Is a run that a launcher starts the one that was planned? Files, data and variables of the
environment may have changed since, and its folder has the planned name."""

from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any

from hydra.core.hydra_config import HydraConfig
from hydra.types import RunMode

from ablate.config.composition import Composition
from ablate.config.keys import flatten
from ablate.config.overrides import key_of
from ablate.config.public import public
from ablate.config.run_id import content, id_in
from ablate.errors import UserError, few
from ablate.run_files.records import read_plan
from ablate.training.custom_code import custom_code

ANY = "an option, the data, the environment or the revision of a part"
NAMED = 4  # changed keys that a message names
AGAIN = "put that back, and the same command trains it"


def planned_id(composition: Composition, run_dir: Path) -> str | None:
    """Return the id that the run was planned with: that of its file, or that which a launcher of
    Hydra named its folder after; None of another run."""
    if composition.planned_id is not None:
        return composition.planned_id
    planned = composition.cfg.study.arm is not None or _launched()
    return id_in(run_dir.name) if planned else None


def _launched() -> bool:
    """Whether a sweep started this run, in this process or another."""
    if not HydraConfig.initialized():
        return False
    hydra = HydraConfig.get()
    return hydra.mode == RunMode.MULTIRUN or "hydra.mode=RUN" in hydra.overrides.hydra


def other_run(composition: Composition, run_dir: Path) -> UserError:
    """Make the error of a run whose id is not the planned one."""
    now = composition.fingerprint  # unreadable data raise another error
    plan = read_plan(run_dir.parent) or {}
    changed = few(_changed(composition, plan, run_dir.name, now), ", ", NAMED)
    return UserError(f"not the run that was planned: {changed or ANY}; {AGAIN}")


def _changed(
    composition: Composition, plan: Mapping[str, Any], folder: str, data: str
) -> Iterator[str]:
    """Describe each key that differs from the plan, as "optimizer.lr=0.1 in the plan and 1 now"."""
    name = composition.cfg.study.arm
    arm = next((arm for arm in plan.get("arms", ()) if arm["name"] == name), None)
    baseline = plan.get("baseline", {})
    if arm is None or "config" not in baseline:
        return
    differs = {key: own for key, (_, own) in arm.get("differs", {}).items()}
    cells = [cell for cell in plan["cells"] if cell["folder"] == folder]
    typed = {key_of(text) for cell in cells for text in cell.get("overrides", ())}
    before = flatten(baseline["config"]) | differs
    for key, now in flatten(public(lambda: content(composition.cfg))).items():
        # Plans have classes as options, a pattern of layers as it was written.
        unlike = key.endswith("_target_") or key.startswith("model.layers.")
        if not unlike and key not in typed and before.get(key) != now:
            yield f"{key}={before.get(key)} in the plan and {now} now"
    recorded = baseline.get("data", {}).get(str(composition.cfg.seed), data)
    if recorded != data and not any(key.startswith("data") for key in differs):
        yield f"the data (fingerprint {recorded} in the plan and {data} now)"


def require_unedited(composition: Composition, run_dir: Path) -> None:
    """Raise UserError if a custom component was edited since the run's study was planned."""
    if composition.cfg.study.arm is None or not (now := custom_code(composition.cfg)):
        return
    plan = read_plan(run_dir.parent) or {"cells": ()}
    if not any(cell["folder"] == run_dir.name for cell in plan["cells"]):
        return
    before = plan.get("custom_code", {})
    if edited := [name for name, file in now.items() if before.get(name, file) != file]:
        raise UserError(f"{', '.join(edited)}: edited since the study was planned; {AGAIN}")
