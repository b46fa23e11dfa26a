"""Read a study's folder: its plan, the state of every run, and the curves.

A run's folder that is half written, foreign or gone is not an error: it is a run without a result,
and `StudyRun.detail` describes it. Curves are read on demand.
"""

from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, fields, replace
from functools import cache, cached_property
from math import isfinite
from pathlib import Path
from statistics import fmean
from typing import Any, NamedTuple, TypeAlias

from ablate.config.overrides import parse
from ablate.errors import UserError, suggest
from ablate.run_files import PLAN, read_mapping
from ablate.run_files.records import read_plan
from ablate.run_files.shape import schema_error
from ablate.study.analysis import derived, known
from ablate.study.analysis.folder import Folder
from ablate.study.launch.state import state_of
from ablate.study.plan.design import arm_named

TUNED = {"keys": {str: list}, "seeds": [int]}


@dataclass(frozen=True)
class Arm:
    """An arm of plan.json. differs: config key -> value of the baseline, own value.

    set: values from budget matching. tuned: values from tuning. same_as: the arm with the same
    runs.
    """

    name: str
    is_baseline: bool = False
    changes: Mapping[str, str] = field(default_factory=dict)
    overrides: tuple[str, ...] = ()
    differs: Mapping[str, Any] = field(default_factory=dict)
    parameters: int | None = None
    flops_per_step: int | None = None
    steps: int | None = None
    no_effect: bool | None = False
    same_as: str | None = None
    set: Mapping[str, Any] = field(default_factory=dict)
    tuned: Mapping[str, Any] = field(default_factory=dict)
    tuning: tuple[Mapping[str, Any], ...] = ()
    warnings: tuple[str, ...] = ()


class SeedInBlock(NamedTuple):
    """A run of an arm in a study with blocks."""

    seed: int
    block: str

    def __str__(self) -> str:
        return f"{self.seed} ({self.block})"


Seed: TypeAlias = int | SeedInBlock  # of a study: all of one kind


@dataclass(frozen=True)
class StudyRun(Folder):
    """A cell of the plan and the content of its folder. state: as in state.py; detail: why."""

    arm: str
    seed: int
    run_id: str
    overrides: tuple[str, ...]
    state: str
    detail: str
    provenance: Mapping[str, Any]
    block: str = ""

    @property
    def key(self) -> Seed:
        """The seed, with the block if there is one."""
        return SeedInBlock(self.seed, self.block) if self.block else self.seed

    @property
    def finished(self) -> bool:
        return self.state == "finished"

    def value(self, metric: str) -> float | None:
        """The value of a metric; None unless the run is finished and the number is finite."""
        value = derived.value(self, metric) if self.finished else None
        return value if value is not None and isfinite(value) else None


@dataclass(frozen=True)
class Study:
    """A plan and its runs. runs: those that count; tuning: those that chose values before."""

    folder: Path
    plan: Mapping[str, Any]
    arms: tuple[Arm, ...]
    runs: tuple[StudyRun, ...]
    tuning: tuple[StudyRun, ...]

    @property
    def name(self) -> str:
        return str(self.plan["study"])

    @property
    def seeds(self) -> list[Seed]:
        seeds, blocks = self.plan["seeds"], self.plan.get("blocks", {"of": ()})["of"]
        return [SeedInBlock(seed, block) for block in blocks for seed in seeds] or [*seeds]

    @property
    def looks(self) -> tuple[int, ...]:
        """The numbers of seeds at which arms are tested (study.seeds_up_to); empty if fixed."""
        return tuple((self.plan.get("looks") or {"seeds": ()})["seeds"])

    def planned(self, arm: str) -> list[int]:
        """The seeds planned for an arm, in every block: with looks a decided one has fewer."""
        if not self.looks:
            return [*self.plan["seeds"]]
        planned = Counter(run.seed for run in self.runs_of(arm).values())
        return [s for s in self.plan["seeds"] if planned[s] == max(1, len(self.blocks))]

    def seeds_of(self, arm: str) -> list[Seed]:
        """The planned seeds of an arm: with looks a decided one has fewer than others."""
        return [s for s in self.seeds if not self.looks or s in self.runs_of(arm)]

    @property
    def source(self) -> str:
        """The file or folder of results of another program; "" for a study of ablate."""
        return str(self.plan.get("source", ""))

    @cached_property
    def blocks(self) -> dict[str, "Study"]:
        """The study of each block (study.blocks), with the baseline of this one; empty without
        blocks."""
        plan = self.plan.get("blocks") or {"of": {}}
        return {
            name: collect(self.folder / of["folder"]).rebased(self.baseline.name)
            for name, of in plan["of"].items()
        }

    @property
    def metric(self) -> str:
        return str(self.plan["metric"]["name"])

    @property
    def mode(self) -> str:
        return str(self.plan["metric"]["mode"])

    @cached_property
    def baseline(self) -> Arm:
        return next(arm for arm in self.arms if arm.is_baseline)

    @property
    def planned_baseline(self) -> str:
        """The baseline of the plan, which a report may replace (`rebased`)."""
        return str(next(arm["name"] for arm in self.plan["arms"] if arm["is_baseline"]))

    def rebased(self, name: str) -> "Study":
        """The same study with another arm as the baseline. UserError if there is none."""
        arms = {arm.name: arm for arm in self.arms}
        to = arms[arm_named(name, arms, "--baseline")]
        return replace(
            self,
            arms=tuple(
                replace(arm, is_baseline=arm is to, differs=_differs(arm.differs, to.differs))
                for arm in self.arms
            ),
        )

    @cached_property
    def others(self) -> tuple[Arm, ...]:
        return tuple(arm for arm in self.arms if not arm.is_baseline)

    @cached_property
    def _by_arm(self) -> dict[str, dict[Seed, StudyRun]]:
        by_arm: dict[str, dict[Seed, StudyRun]] = {arm.name: {} for arm in self.arms}
        for run in self.runs:
            by_arm[run.arm][run.key] = run
        return by_arm

    def runs_of(self, arm: str) -> dict[Seed, StudyRun]:
        """Seed -> run."""
        return self._by_arm[arm]

    def options(self, arm: str, block: str = "") -> dict[str, Any]:
        """Factor -> the option of an arm, numbers and truth values as such; of one of its runs,
        with the block."""
        # An arm that was left out for its tuning has no changes here.
        changes = next((each.changes for each in self.arms if each.name == arm), {})
        options: dict[str, Any] = {**self.plan.get("own", {}), **changes}
        if block:
            options[self.plan["blocks"]["factor"]] = block
        return {factor: _value(option) for factor, option in options.items()}

    def values(self, arm: str, metric: str) -> dict[Seed, float]:
        """Seed -> value of the finished runs that have one."""
        runs = self.runs_of(arm).items()
        return {s: value for s, run in runs if (value := run.value(metric)) is not None}

    def by_seed(self, arm: str, metric: str) -> dict[int, float]:
        """Seed -> value, with blocks the mean over them, of the seeds with a value in every block.

        A seed may do alike in all blocks, so that its runs do not count as several seeds.
        """
        found: dict[int, list[float]] = {}
        runs = self.runs_of(arm)
        for key, value in self.values(arm, metric).items():
            found.setdefault(runs[key].seed, []).append(value)
        count = len(self.plan.get("blocks", {"of": "1"})["of"])
        return {seed: fmean(each) for seed, each in found.items() if len(each) == count}

    @cached_property
    def metrics(self) -> list[str]:
        """Names of all metrics of finished runs."""
        recorded = [run.result.get("metrics", {}) for run in self.runs if run.finished]
        return sorted({name for metrics in recorded for name in metrics})


@cache
def _value(option: str) -> Any:
    try:
        value = parse(f"option={option}").value()
    except UserError:  # a name
        return option
    return value if isinstance(value, bool | int | float) else option.strip('"')


def _differs(of_arm: Mapping[str, Any], of_other: Mapping[str, Any]) -> dict[str, Any]:
    """The differences from another arm, [there, here] by key, computed from both arms' differences
    from the baseline."""
    differs = {}
    for key in {**of_other, **of_arm}:
        base = (of_arm.get(key) or of_other[key])[0]
        there, here = (side[key][1] if key in side else base for side in (of_other, of_arm))
        if there != here:
            differs[key] = [there, here]
    return differs


def collect(study_dir: str | Path) -> Study:
    """Read a study's folder. UserError if it is not one."""
    folder = Path(study_dir)
    plan = read_plan(folder)
    if plan is None:
        raise UserError(not_a_study(folder))
    arms = tuple(_arm(content) for content in plan["arms"])
    require_consistent(folder, plan, arms)
    read: dict[str, StudyRun] = {}
    runs: dict[str, list[StudyRun]] = {"run": [], "tune": []}
    for cell in plan["cells"]:
        runs[cell["kind"]].append(_run(folder, cell, read))
    return Study(folder, plan, arms, tuple(runs["run"]), tuple(runs["tune"]))


def require_consistent(folder: Path, plan: Mapping[str, Any], arms: Sequence[Arm]) -> None:
    """Raise UserError unless there is one baseline, every run is of an arm, or of the tuning of one
    that was left out for it, every factor and every tuned key is described, and no arm, no seed
    and, if factors are crossed, no combination of options occurs twice."""
    names, wrong = {arm.name for arm in arms}, ""
    own, crossed = plan.get("own", {}), plan.get("design") == "factorial"
    alone = [arm for arm in arms if arm.same_as is None]
    settings = [sorted((own | dict(arm.changes)).items()) for arm in alone]
    twins = [arm.name for n, arm in enumerate(alone) if settings[n] in settings[:n]]
    left_out = {("tune", entry["arm"]) for entry in plan.get("illegal", ())}
    of_arms = {cell["arm"] for cell in plan["cells"] if (cell["kind"], cell["arm"]) not in left_out}
    if sum(arm.is_baseline for arm in arms) != 1:
        wrong = "it does not have exactly one baseline"
    elif unknown := of_arms - names:
        wrong = f"it has runs of unknown arms: {', '.join(sorted(unknown))}"
    elif other := {cell["kind"] for cell in plan["cells"]} - {"run", "tune"}:
        wrong = f"it has runs of unknown kinds: {', '.join(sorted(other))}"
    elif described := schema_error(
        plan.get("own", {}), dict.fromkeys(plan.get("factors", {}), str)
    ):
        wrong = f"own: {described}"
    elif bad := next(filter(None, map(known.noise_file_error, known.files(plan))), None):
        wrong = f"noise: {bad}"
    elif (looks := (plan.get("looks") or {"seeds": [1]})["seeds"]) != sorted({*looks}) or (
        looks[:1] < [1]
    ):
        wrong = f"its looks must be ascending numbers of seeds: {looks}"
    elif plan.get("tune") and (tuned := schema_error(plan["tune"], TUNED)):
        wrong = f"tune: {tuned}"
    elif strange := sorted({f for arm in arms for f in arm.changes} - {*plan.get("factors", own)}):
        wrong = f"its arms change unknown factors: {', '.join(strange)}"
    elif lost := sorted({arm.same_as for arm in arms if arm.same_as} - {a.name for a in alone}):
        wrong = f"its arms have the runs of unknown arms: {', '.join(lost)}"
    elif len(names) < len(arms) or len({*plan["seeds"]}) < len(plan["seeds"]):
        wrong = "it has a duplicate arm or seed"
    elif crossed and twins:
        wrong = f"it has the combination of {twins[0]} twice"
    elif any(len(both) != 2 for arm in arms for both in arm.differs.values()):
        wrong = "an arm's differences must be [baseline's value, arm's value]"
    if wrong:
        raise UserError(f"{folder / PLAN} cannot be used: {wrong}")


def not_a_study(folder: Path) -> str:
    """Describe in one line the folder that is not a study, and name the nearest studies."""
    if (folder.parent / PLAN).exists():
        return f"{folder} is a folder inside a study; did you mean '{folder.parent}'?"
    what = "it has no plan.json" if folder.is_dir() else "no such folder"
    if inside := _studies(folder):
        return f"{folder} is not a study's folder: {what}; studies in it: {', '.join(inside)}"
    beside = [*_studies(folder.parent), *_studies(Path("outputs"))]
    hint = suggest(str(folder), beside) or suggest(str(Path("outputs", folder.name)), beside)
    if not hint and beside:
        hint = f"; studies nearby: {', '.join(sorted({*beside})[:8])}"
    return f"{folder} is not a study's folder: {what}{hint}"


def _studies(folder: Path) -> list[str]:
    return [str(path.parent) for path in sorted(folder.glob(f"*/{PLAN}"))][:8]


def _arm(content: Mapping[str, Any]) -> Arm:
    known = {field.name for field in fields(Arm)}
    values = {key: value for key, value in content.items() if key in known}
    listed = {key: tuple(v) for key, v in values.items() if isinstance(v, list)}
    return Arm(**(values | listed))


def _run(folder: Path, cell: Mapping[str, Any], read: dict[str, StudyRun]) -> StudyRun:
    """Read a cell's run; a folder that several arms share is read once."""
    entry = {key: cell[key] for key in ("arm", "seed", "run_id")} | {
        "block": cell.get("block", ""), "overrides": tuple(cell.get("overrides", ()))
    }  # fmt: skip
    if (known := read.get(cell["folder"])) is not None:
        return replace(known, **entry)
    path = folder / cell["folder"]
    now = state_of(path, cell["run_id"])
    read[cell["folder"]] = StudyRun(
        **entry,
        folder=path,
        state=now.name,
        detail=now.detail,
        result=now.result,
        provenance=read_mapping(path / "provenance.json") if now.result else {},
    )
    return read[cell["folder"]]
