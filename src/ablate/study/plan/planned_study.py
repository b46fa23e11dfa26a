"""A study that is planned: its arms, matched, measured and tuned, its runs, and its plan.json."""

import json
import sys
from collections.abc import Collection, Iterable, Mapping, Sequence
from dataclasses import replace
from datetime import UTC, datetime
from pathlib import Path
from typing import TYPE_CHECKING, Any

from omegaconf import DictConfig

from ablate.config.keys import to_dict
from ablate.config.parts import locate
from ablate.config.public import public
from ablate.errors import UserError, suggest
from ablate.machine.memory import freeze_imports
from ablate.machine.redact import without_credentials
from ablate.run_files.records import read_plan
from ablate.study.analysis import derived, known
from ablate.study.metric_words import mode_of
from ablate.study.plan import planfile
from ablate.study.plan.blocks import Blocks
from ablate.study.plan.cells import Composed, Composer, PlannedRuns, with_more
from ablate.study.plan.claims import parse_claims
from ablate.study.plan.design import arm_named
from ablate.study.plan.layout import Layout, refusal
from ablate.study.plan.planned_run import Command, PlannedRun
from ablate.study.plan.request import StudyRequest
from ablate.study.plan.tune import Trials, Tuning, tuning
from ablate.training.custom_code import custom_code

if TYPE_CHECKING:
    from ablate.training.same_model import DataSets


class PlannedStudy:
    """State that the phases of a study share. block: its block, in a separate folder within
    `root`; "" without blocks."""

    def __init__(
        self,
        request: StudyRequest,
        layout: Layout,
        composer: Composer,
        root: Path,
        command: Command,
        block: str = "",
    ):
        self.request, self.layout, self.composer = request, layout, composer
        self.root, self.block, self.folder = root, block, root / block
        self.tuning: Tuning | None = tuning(
            request.node["tune"] or {},
            request.node["tune_seeds"],
            seeds=layout.seeds,
            metric=metric_name(request.node, layout.baseline.config),
            taken={key for factor in layout.factors for key in factor.keys}
            | ({request.node["match_by"]} if request.node["match"] else set()),
        )
        self.cells = PlannedRuns(command)
        self.question = planfile.content_of(layout.baseline.config)  # tuning changes it later
        self.data = self.cells.data(layout.baseline, layout.seeds)

    def match_and_measure(self) -> None:
        """Match every arm's budget to the baseline's if requested, and count its cost."""
        from ablate.study.plan.match import match, require_width
        from ablate.training.same_model import DataSets

        freeze_imports()
        sets, arms = DataSets(), self.layout.arms
        self.sets = sets
        for composed in arms:
            composed.config.seed = self.layout.seeds[0]
        baseline, node = self.layout.baseline.name, self.request.node
        configs = {composed.name: composed.config for composed in arms}
        self.metric = metric_of(node, configs[baseline], sets)
        require_measured("study.extra_metrics", node["extra_metrics"], configs[baseline], sets)
        for name in node["extra_metrics"]:
            derived.mode(name)
        require_width(node["match_by"], configs.values(), matched=bool(node["match"]))
        if node["match"]:
            by = node["match_by"]
            widths = match(configs, baseline=baseline, budget=node["match"], by=by, sets=sets)
            for number, composed in enumerate(arms):
                if width := widths.get(composed.name):
                    arms[number] = with_more(composed, [f"{by}={width}"], self.composer)
                    arms[number].set = {by: width}
        self.count_costs()
        self._read_noise()

    def count_costs(self) -> None:
        """Count the cost of every arm as it is configured now: tuning may change it."""
        from ablate.study.plan.budget import budgets

        for composed in self.layout.arms:
            composed.config.seed = self.layout.seeds[0]
        configs = {composed.name: composed.config for composed in self.layout.arms}
        baseline = self.layout.baseline.name
        measured, refused = budgets(configs, baseline=baseline, sets=self.sets)
        self._leave_out(refused)
        for composed in self.layout.arms:
            composed.budget = measured[composed.name]

    def _read_noise(self) -> None:
        """Read the noise that the study assumes. UserError, also for an effect without noise."""
        budget, node = self.layout.baseline.budget, self.request.node
        self.noise = known.read(
            node["noise"],
            recipe=known.recipe(
                self.question, budget.parameters, budget.flops_per_step, budget.steps
            ),
            data=self.data,
            metric=self.metric["name"],
            folder=self.folder,
        )
        if node["effect"] is not None and not self.noise:
            raise UserError(
                f"study.effect={node['effect']}: needs study.noise=FILE, the noise of an earlier"
                f" study in units of {self.metric['name']}"
            )

    def _leave_out(self, refused: Mapping[str, str]) -> None:
        """Leave out arms that cannot be built, which shows only when the data is read."""
        baseline = self.layout.baseline.name
        if baseline in refused:
            raise UserError(f"the baseline cannot be run: {refused[baseline]}")
        if refused and self.request.node["on_invalid"] == "error":
            raise UserError(refusal(refused, len(self.layout.arms)))
        self.layout.invalid |= refused
        self.layout.arms[:] = [
            composed for composed in self.layout.arms if composed.name not in refused
        ]
        if refused and len(self.layout.arms) == 1:
            raise UserError(f"no arm is left to compare with the baseline: {refusal(refused, 1)}")

    def check_claims(self, nodes: Sequence[Mapping[str, Any]], blocks: Blocks) -> None:
        """Reject claims about arms or metrics that the study does not have."""
        names, baseline = [c.name for c in self.layout.arms], self.layout.baseline
        claims = parse_claims(nodes, names, baseline.name, blocks.names)
        if self.request.looks and any(claim.of_ladder for claim in claims):
            raise UserError("study.seeds_up_to: claims about effective compute need fixed seeds")
        metrics = {name for claim in claims for name in claim.metrics}
        require_measured("study.claims: metric", metrics, baseline.config, self.sets)
        for number, claim in enumerate(claims):
            if claim.direction in ("better", "worse") and not claim.mode and claim.metrics:
                try:
                    derived.mode(claim.metrics[0])
                except UserError as error:
                    raise UserError(
                        f"study.claims[{number}]: which {claim.metrics[0]} is better? Set mode: min"
                        " or max, or is: higher or lower"
                    ) from error

    def plan_trials(self) -> None:
        """Plan the tuning after budgets are matched, so that values are tried in the final arms."""
        self.trials = Trials(self.tuning, self.layout, self.composer, self.cells)
        self.custom_code = custom_code({arm.name: to_dict(arm.config) for arm in self.layout.arms})

    def begin(self, *, alone: bool) -> None:
        """Write the plan: with the trials, or, without tuning, the runs that count. UserError if
        the folder has another study, or, unless `alone`, another plan."""
        planfile.refuse_other(self.folder, self.question, self.data)
        # The runs that count stay in the plan while others are tried, for the report and --status.
        counting = self._before() if self.tuning else [run.entry() for run in self.counted()]
        plan = self.content([*(run.entry() for run in self.trials.cells), *counting])
        if alone:
            planfile.write(self.folder, plan)
        else:
            planfile.refuse_unequal(self.folder, plan)

    def write(self, runs: Iterable[PlannedRun]) -> None:
        """Write the plan with these runs."""
        planfile.write(self.folder, self.content([run.entry() for run in runs]))

    def _before(self) -> list[Mapping[str, Any]]:
        arms = {composed.name for composed in self.layout.arms}
        cells = (read_plan(self.folder) or {"cells": []})["cells"]
        return [cell for cell in cells if cell["kind"] == "run" and cell["arm"] in arms]

    def counted(self) -> list[PlannedRun]:
        """Return the runs that count; with looks those of the first, and those of the plan."""
        cells, looks = self._cells(), self.request.looks
        if not looks:
            return cells
        first = self.layout.seeds[: looks[0]]
        known = {(cell["arm"], cell["run_id"]) for cell in self._before()}
        return [cell for cell in cells if cell.seed in first or (cell.arm, cell.run_id) in known]

    def _cells(self) -> list[PlannedRun]:
        return self.cells.by_seed(self.layout.arms, self.layout.seeds)

    def add_seeds(self, arms: Collection[str], count: int) -> None:
        """Plan the first `count` seeds of these arms and of the baseline."""
        names, seeds = {self.layout.baseline.name, *arms}, self.layout.seeds[:count]
        known = {(cell.arm, cell.run_id) for cell in self.counted()}
        cells = [
            cell
            for cell in self._cells()
            if (cell.arm, cell.run_id) in known or (cell.arm in names and cell.seed in seeds)
        ]
        self.write([*self.trials.cells, *cells])

    def named(self, cells: Sequence[PlannedRun]) -> list[PlannedRun]:
        """The cells with their folders as `root` has them."""
        within = f"{self.block}/" if self.block else ""
        return [replace(cell, folder=within + cell.folder) for cell in cells]

    def chosen(self, cells: Sequence[PlannedRun]) -> list[PlannedRun]:
        """The cells of the arms of study.arms, and of the baseline; all without it."""
        only, names = self.request.node["arms"], [composed.name for composed in self.layout.arms]
        if only is None:
            return list(cells)
        chosen = {arm_named(name, names, "study.arms") for name in only}
        return [cell for cell in cells if cell.arm in {*chosen, self.layout.baseline.name}]

    def content(self, cells: Sequence[Mapping[str, Any]]) -> dict[str, Any]:
        """Return the content of plan.json. cells: entries of its runs."""
        request, layout, tuning = self.request, self.layout, self.tuning
        node, folder = request.node, self.folder
        plan = {
            "study": request.name,
            "sweep": request.sweep,
            "asks": request.description,
            "command": sys.argv[1:],
            "written": datetime.now(UTC).isoformat(timespec="seconds"),
            "design": request.design,
            "factors": {factor.name: dict(factor.options) for factor in layout.factors},
            "own": layout.baseline_options,
            "seeds": _seeds(layout, request.looks, cells),
            "looks": planfile.chosen(folder, "looks", "seeds", request.looks),
            "metric": self.metric,
            "also": node["extra_metrics"],
            "margin": node["margin"],
            "noise": planfile.chosen(folder, "noise", "files", self.noise),
            "claims": planfile.claims(folder, request),
            "match": {"budget": node["match"], "by": node["match_by"]} if node["match"] else None,
            "tune": {"keys": tuning.keys, "seeds": tuning.seeds} if tuning else {},
            "baseline": {
                "overrides": list(layout.baseline.overrides),
                "asked": self.question,
                "config": planfile.content_of(layout.baseline.config),  # with the tuned values
                "data": self.data,
            },
            "custom_code": self.custom_code,
            "arms": [_arm(composed, layout) for composed in layout.arms],
            "cells": list(cells),
            "illegal": [{"arm": name, "reason": reason} for name, reason in layout.invalid.items()],
            "excluded": [{"arm": name, "by": entry} for name, entry in layout.excluded.items()],
        }
        public_plan: dict[str, Any] = json.loads(json.dumps(without_credentials(plan)))
        return public_plan


def _seeds(layout: Layout, looks: Sequence[int], cells: Sequence[Mapping[str, Any]]) -> list[int]:
    """The seeds that runs have, or the first look."""
    runs = {cell["seed"] for cell in cells if cell["kind"] == "run"}
    first = layout.seeds[: looks[0] if looks else None]
    return [seed for seed in layout.seeds if seed in first or seed in runs]


def _arm(composed: Composed, layout: Layout) -> dict[str, Any]:
    budget = composed.budget
    return {
        "name": composed.name,
        "is_baseline": composed.arm.is_baseline,
        "changes": dict(composed.arm.changes),
        "overrides": list(composed.arm.overrides),
        "differs": public(lambda: composed.differs(layout.baseline.config)),
        "parameters": budget.parameters,
        "flops_per_step": budget.flops_per_step,
        "steps": budget.steps,
        "no_effect": budget.no_effect,
        "same_as": composed.same_as,
        "set": composed.set,
        "tuned": composed.tuned,
        "tuning": composed.tuning,
        "warnings": composed.warnings,
    }


def metric_name(node: Mapping[str, Any], baseline: DictConfig) -> str:
    """Return the name of the metric that compares the arms, by default the task's."""
    usual = locate(baseline.task._target_).metric
    name = str(node["metric"] or usual)
    derived.require_known(name)
    under = [f"{condition}/" for condition in baseline.get("evaluate") or ()]
    if not name.startswith(("val/", "test/", "cost/", *derived.UNITS, *under)):
        near = suggest(name, [usual]) or f", such as {usual}"
        raise UserError(f"study.metric={name}: must be a name that begins with val/ or test/{near}")
    return name


def metric_of(node: Mapping[str, Any], baseline: DictConfig, sets: "DataSets") -> dict[str, str]:
    """Return the metric that compares the arms, and whether min or max is best. Raises UserError
    for a metric that the baseline's runs will not have."""
    task = locate(baseline.task._target_)
    name, mode = metric_name(node, baseline), node["mode"]
    if name != task.metric:
        require_measured("study.metric", {name}, baseline, sets)
    if derived.measured(name) != name:
        mode = mode or derived.mode(name)
    if name != task.metric and mode is None:
        mode = mode_of(name, typed="study.metric=", by="study.mode=")
    if name == task.metric and mode not in (None, task.mode):
        raise UserError(f"study.mode={mode}: of {name} the best is the {task.mode}imum")
    return {"name": name, "mode": mode or task.mode}


def require_measured(
    where: str, metrics: Collection[str], baseline: DictConfig, sets: "DataSets"
) -> None:
    """UserError for a metric that no run of the baseline will have."""
    from ablate.study.plan.budget import measured

    for metric in metrics:
        derived.require_known(metric)
    needed = {name for metric in metrics if (name := derived.measured(metric)) is not None}
    available = measured(baseline, sets) if needed else []
    if available and (wrong := sorted(needed - {*available})):
        raise UserError(
            f"{where}={wrong[0]}: a run of the baseline measures"
            f" {', '.join(available)}{suggest(wrong[0], available)}"
        )
