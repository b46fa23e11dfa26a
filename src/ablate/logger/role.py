"""The role of a run in its study; loggers group runs by it."""

from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from ablate.errors import UserError
from ablate.run_files.records import read_plan

TOGETHER = " + "  # joins factors that an arm changes together


@dataclass(frozen=True)
class Role:
    """The role of a run. For a run outside a study, only the folder's name, `study`, is known.

    arm: its name; tuning runs append " (tuning)", so that runs with the same name differ only in
    the seed. factor, option: the key that the arm changes and its value, "a + b" and "x + y" for
    several keys; None for the baseline. is_baseline: None without a plan.
    """

    study: str
    arm: str | None = None
    factor: str | None = None
    option: str | None = None
    is_baseline: bool | None = None
    tunes: bool = False

    @classmethod
    def of(cls, run_dir: Path, study: str, arm: str | None) -> "Role":
        """Read the role from the plan in the study's folder; ignore a missing or damaged plan."""
        if arm is None:
            return cls(study)
        plan = _plan(run_dir.parent)
        kinds = {cell["folder"]: cell["kind"] for cell in plan.get("cells", ())}
        tunes = kinds.get(run_dir.name) == "tune"
        label = f"{arm} (tuning)" if tunes else arm
        known = next((entry for entry in plan.get("arms", ()) if entry["name"] == arm), None)
        if known is None:
            return cls(study, label, tunes=tunes)
        changes: Mapping[str, Any] = known["changes"]
        return cls(
            study,
            label,
            factor=TOGETHER.join(changes) or None,
            option=TOGETHER.join(map(str, changes.values())) or None,
            is_baseline=known["is_baseline"] and not tunes,
            tunes=tunes,
        )

    def block(
        self, *, seed: int, parameters: int, flops: int, commit: str | None
    ) -> dict[str, Any]:
        """Return the flat block `ablate` of a run's config. flops: of one optimizer step."""
        return {
            "study": self.study,
            "arm": self.arm,
            "factor": self.factor,
            "option": self.option,
            "seed": seed,
            "is_baseline": self.is_baseline,
            "parameters": parameters,
            "flops": flops,
            "commit": commit,
        }


def _plan(folder: Path) -> dict[str, Any]:
    try:
        return read_plan(folder) or {}
    except (OSError, UserError):
        return {}
