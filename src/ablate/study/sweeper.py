"""Run a study, from its request to its report."""

import logging
import os
from collections.abc import Collection, Iterable, Mapping, Sequence
from dataclasses import replace
from itertools import chain
from pathlib import Path
from typing import TYPE_CHECKING, Any

from hydra.plugins.launcher import Launcher
from hydra.types import HydraContext, TaskFunction
from omegaconf import DictConfig

from ablate.cli import job
from ablate.config.keys import to_dict
from ablate.config.parts import locate
from ablate.errors import RunFailed, UserError, suggest
from ablate.logger import refuse_secrets
from ablate.machine.memory import freeze_imports
from ablate.machine.terminal.pipe import Output
from ablate.machine.terminal.say import command_line, say
from ablate.run_files.created import created
from ablate.study.analysis import derived, known
from ablate.study.launch.local import LocalSettings
from ablate.study.launch.locks import one_plan
from ablate.study.launch.running import (
    end_rerun,
    launch,
    launcher_of,
    refuse_unfinished,
    refuse_unknown,
)
from ablate.study.launch.state import State, state_of
from ablate.study.metric_words import mode_of
from ablate.study.numbers import counted
from ablate.study.plan import planfile, preview
from ablate.study.plan.blocks import Blocks
from ablate.study.plan.cells import Composed, Composer, PlannedRuns, with_more
from ablate.study.plan.claims import parse_claims
from ablate.study.plan.design import arm_named
from ablate.study.plan.layout import SHOWN, Layout, lay_out, refusal
from ablate.study.plan.planned_run import Command, PlannedRun
from ablate.study.plan.request import StudyRequest, parse_request
from ablate.study.plan.tune import Trials, Tuning, tuning
from ablate.training.custom_code import custom_code
from ablate.training.preflight import check_output

if TYPE_CHECKING:
    from ablate.study.plan.budget import DataSets

log = logging.getLogger(__name__)


def sweep(
    config: DictConfig, arguments: Sequence[str], context: HydraContext, task: TaskFunction
) -> list[State]:
    """Run the missing runs of a study. Raises UserError (rejected), RunFailed, Interrupted."""
    request = parse_request(config, arguments, context.config_loader)
    refuse_unknown(config)
    settings = _settings(config.hydra.launcher)
    blocks = Blocks.of(request)
    if blocks and request.node["noise"]:
        raise UserError(
            "study.noise with study.blocks: each block has its own noise; leave one out"
        )
    made = [
        (part, block, lay_out(part, composer), composer)
        for block, part in blocks.requests(request)
        for composer in [Composer(context.config_loader, config, part.fixed)]
    ]
    config.study.name = request.name
    folder = Path(str(config.hydra.sweep.dir))
    launcher = launcher_of(config, context, task)
    if config.hydra.runtime.choices["hydra/launcher"] in ("basic", "local"):
        check_arms(composed for _, _, layout, _ in made for composed in layout.arms)
    command = Command.of(config)
    studies = [
        PlannedStudy(part, layout, composer, folder, command, block)
        for part, block, layout, composer in made
    ]
    for study in studies:
        refuse_secrets(study.layout.baseline.config)
        planfile.refuse_other(study.folder, study.question, study.data)
        planfile.refuse_other_blocks(folder, blocks)
        study.match_and_measure()
        study.check_claims(request.node["claims"], blocks)
        study.plan_trials()
    blocks.require_alike({study.block: study.layout for study in studies})
    for study in studies:
        study.chosen([])  # rejected before anything is written
    if request.node["arms"] and studies[0].tuning:
        raise UserError("study.arms with study.tune: every arm is tuned, or none; leave one out")
    if request.node["dry_run"]:
        Output.trains = False
        at_once = settings.at_once(os.environ) if settings else _jobs(config.hydra.launcher)
        for study in studies:
            study.show(slots=at_once)
        return []

    def decide(alone: bool) -> None:
        """Plan, unless other commands run the study now: they have the same plan, or are rejected
        this one."""
        planfile.refuse_other_blocks(folder, blocks)
        for study in studies:
            study.begin(alone=alone)

    # A launcher may reject all runs.
    with created(folder, of_study=True):
        check_output(folder)
        with one_plan(folder, decide):
            for study in studies:
                study.tune(launcher)
            return run(studies, launcher, request, blocks)


def run(
    studies: Sequence["PlannedStudy"], launcher: Launcher, request: StudyRequest, blocks: Blocks
) -> list[State]:
    """Launch the runs that count, of all blocks and look after look, write the reports and return
    the runs' states."""
    root, rerun = studies[0].root, request.node["rerun"]
    every, trouble = run_planned(studies, launcher, request, blocks)
    while trouble is None and rerun != "failed" and add_seeds(studies, blocks):
        every, trouble = run_planned(studies, launcher, request, blocks, first=False)
    if trouble is None:
        end_rerun(root)
    states = {cell.folder: state_of(root / cell.folder, cell.run_id) for cell in every}
    for folder in dict.fromkeys([*(study.folder for study in studies), root]):
        report(folder, printed=folder == root)
    refuse_unfinished(every, states, trouble)
    if untuned := [reason for study in studies for reason in study.trials.untuned.values()]:
        raise RunFailed("; ".join(untuned))
    return list(states.values())


def add_seeds(studies: Sequence["PlannedStudy"], blocks: Blocks) -> bool:
    """Plan the next look: more seeds of the arms of open verdicts and claims, in the blocks that
    need them. Whether there is one."""
    looks = studies[0].request.looks
    if not looks:
        return False
    from ablate.study.analysis.collect import collect
    from ablate.study.analysis.rows import assemble

    number, going = assemble(collect(studies[0].root)).going()
    for study, block in zip(studies, blocks.names or ("",), strict=True):
        if arms := {arm for of, arm in going if of in (None, block)}:
            study.add_seeds(arms, looks[number])
    if going:
        more = counted(looks[number] - looks[number - 1], "more seed")
        arms = {arm for _, arm in going} - {studies[0].layout.baseline.name}
        say(
            f"look {number} of {len(looks)}, with {looks[number - 1]} seeds: {more} of the baseline"
            f" and {counted(len(arms), 'arm')}, as verdicts or claims are undecided"
        )
    return bool(going)


def run_planned(
    studies: Sequence["PlannedStudy"],
    launcher: Launcher,
    request: StudyRequest,
    blocks: Blocks,
    *,
    first: bool = True,
) -> tuple[list[PlannedRun], Exception | None]:
    """Launch the planned runs that count. Returns them, and the launcher's exception, if any.

    first: the first look, which repeats the runs that study.rerun selects.
    """
    cells = [study.counted() for study in studies]
    root = studies[0].root
    if blocks:
        planfile.write_together(root, request, blocks, [study.folder for study in studies])
    chosen = [
        study.named(study.chosen(of_block)) for study, of_block in zip(studies, cells, strict=True)
    ]
    # All blocks with the first seed, and so on, so that an interrupted study can be compared.
    every = sorted(chain(*chosen), key=lambda cell: studies[0].layout.seeds.index(cell.seed))
    for study, of_block in zip(studies, chosen, strict=True):
        study.say(of_block, notes=first)
    rerun = request.node["rerun"] if first else "missing"
    return every, studies[0].launch(launcher, every, rerun)


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
            taken=self._taken(),
        )
        self.cells = PlannedRuns(command)
        self.question = planfile.content_of(layout.baseline.config)  # tuning changes it later
        self.data = self.cells.data(layout.baseline, layout.seeds)

    def _taken(self) -> set[str]:
        """Keys that the study sets in its arms, which tuning cannot set too."""
        keys = {key for factor in self.layout.factors for key in factor.keys}
        return keys | ({self.request.node["match_by"]} if self.request.node["match"] else set())

    def match_and_measure(self) -> None:
        """Match every arm's budget to the baseline's if requested, and count its cost."""
        from ablate.study.plan.budget import DataSets, budgets
        from ablate.study.plan.match import match, require_width

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
                    arms[number].config.seed = self.layout.seeds[0]
        configs = {composed.name: composed.config for composed in arms}
        measured, refused = budgets(configs, baseline=baseline, sets=sets)
        self._leave_out(refused)
        for composed in self.layout.arms:
            composed.budget = measured[composed.name]
        self._read_noise()

    def _read_noise(self) -> None:
        """Read the noise that the study assumes. UserError, also for an effect without noise."""
        budget, node = self.layout.baseline.budget, self.request.node
        assert budget is not None
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
        arms = {composed.name for composed in self.layout.arms}
        # The runs that count stay in the plan while others are tried, for the report and --status.
        counting = (
            planfile.runs_in_plan(self.folder, arms) if self.tuning else _entries(self.counted())
        )
        plan = self._plan([*_entries(self.trials.cells), *counting])
        if alone:
            planfile.write(self.folder, plan)
        else:
            planfile.refuse_unequal(self.folder, plan)

    def tune(self, launcher: Launcher) -> None:
        """Find each arm's own best values, before the runs that count, and plan these."""
        if not self.tuning:
            return
        self.launch(launcher, self.named(self.trials.cells), self.request.node["rerun"])
        self.trials.choose(self.folder, self.metric)
        for composed in self.layout.arms:
            for line in composed.warnings:
                say(line)
        planfile.write(self.folder, self._plan(_entries([*self.trials.cells, *self.counted()])))

    def counted(self) -> list[PlannedRun]:
        """Return the runs that count; with looks those of the first, and those of the plan."""
        cells, looks = self._cells(), self.request.looks
        if not looks:
            return cells
        first = self.layout.seeds[: looks[0]]
        before = planfile.runs_in_plan(
            self.folder, {composed.name for composed in self.layout.arms}
        )
        known = {(cell["arm"], cell["run_id"]) for cell in before}
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
        planfile.write(self.folder, self._plan(_entries([*self.trials.cells, *cells])))

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

    def launch(
        self, launcher: Launcher, cells: Sequence[PlannedRun], rerun: str
    ) -> Exception | None:
        """Run cells, whose folders are in `root`."""
        try:
            return launch(launcher, cells, self.root, rerun)
        finally:
            job.failures.clear()  # of runs in this process; also in their folders

    def say(self, cells: Sequence[PlannedRun], *, notes: bool) -> None:
        folders = {cell.folder: cell.run_id for cell in cells}
        states = [state_of(self.root / name, run_id) for name, run_id in folders.items()]
        finished = sum(each.name == "finished" for each in states)
        arms = counted(len(self.layout.arms), "arm")
        seeds = preview.seeds(self.request, self.layout)
        runs = counted(len(folders), "run")
        say(f"{arms}, {seeds}: {runs} in {self.folder}, {finished} finished")
        if notes:
            lines = preview.notes(self.request, self.layout, self.tuning)
            more = [f"and {len(lines) - SHOWN} more, in the report"] if len(lines) > SHOWN else []
            for line in [*lines[:SHOWN], *more, *self._power()]:
                say(line)

    def show(self, *, slots: int) -> None:
        """Print the plan."""
        cells = self.trials.cells
        if self.tuning and all(self._state(c).name == "finished" for c in cells):
            self.trials.choose(self.folder, self.metric)
        cells = [*cells, *self.chosen(self.counted())]
        preview.show(
            self.request,
            self.layout,
            folder=self.folder,
            metric=self.metric,
            tuning=self.tuning,
            cells=cells,
            states={cell.folder: self._state(cell) for cell in cells},
            slots=slots,
            power=self._power(),
        )

    def _power(self) -> list[str]:
        metric, effect = self.metric["name"], self.request.node["effect"]
        return preview.power(
            self.request, self.layout, metric, known.pooled(self.noise, metric), effect
        )

    def _state(self, cell: PlannedRun) -> State:
        return state_of(self.folder / cell.folder, cell.run_id)

    def _plan(self, cells: Sequence[Mapping[str, Any]]) -> dict[str, Any]:
        return planfile.planned(
            self.folder,
            self.request,
            self.layout,
            question=self.question,
            metric=self.metric,
            tuning=self.tuning,
            data=self.data,
            custom_code=self.custom_code,
            noise=self.noise,
            cells=cells,
        )


def _entries(runs: Iterable[PlannedRun]) -> list[dict[str, Any]]:
    return [run.entry() for run in runs]


def check_arms(arms: Iterable[Composed]) -> None:
    """Raise UserError if an arm needs something that this machine, which trains it, lacks."""
    from ablate.training.preflight import check_machine

    for composed in arms:
        try:
            check_machine(composed.config)
        except UserError as error:
            of_arm = "" if composed.arm.is_baseline else f"[{composed.name}] "
            raise UserError(*(f"{of_arm}{mistake}" for mistake in error.args)) from error


def _settings(launcher: DictConfig) -> LocalSettings | None:
    """Return the settings of hydra/launcher=local, None of another. Raises UserError."""
    if "max_parallel_runs" not in launcher:
        return None
    return LocalSettings(
        **{str(key): value for key, value in launcher.items() if key != "_target_"}
    )


def _jobs(launcher: DictConfig) -> int:
    """Return the number of jobs at once, as far as the config of another launcher states it."""
    parallel = launcher.get("array_parallelism")
    return parallel if isinstance(parallel, int) and parallel > 0 else 1


def metric_name(node: Mapping[str, Any], baseline: DictConfig) -> str:
    """Return the name of the metric that compares the arms, by default the task's."""
    usual = locate(baseline.task._target_).metric
    name = str(node["metric"] or usual)
    derived.require_known(name)
    if not name.startswith(("val/", "test/", "cost/", *derived.UNITS)):
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


def report(folder: Path, *, printed: bool = True) -> None:
    """Write the report and print its table; an error is only logged, since the runs are done."""
    try:
        from ablate.study.report import write
        from ablate.study.report.terminal import show

        written = write(folder)
        if printed:
            show(written)
    except Exception as error:
        again = f"{command_line('ablate.report', folder)} writes it again"
        known = isinstance(error, UserError)
        log.warning("ablate: no report (%s); %s", error, again, exc_info=None if known else error)
