"""Run a study, from its request to its report."""

import logging
import os
from collections.abc import Iterable, Sequence
from functools import partial
from itertools import chain
from pathlib import Path

from hydra.plugins.launcher import Launcher
from hydra.types import HydraContext, TaskFunction
from omegaconf import DictConfig

from ablate.errors import RunFailed, UserError, unwrap
from ablate.logger import refuse_secrets
from ablate.machine.terminal.pipe import Output
from ablate.machine.terminal.say import command_line, say
from ablate.run_files.created import created
from ablate.study.launch.local import LocalSettings
from ablate.study.launch.locks import one_plan
from ablate.study.launch.running import (
    end_rerun,
    launch,
    launcher_of,
    refuse_unfinished,
    refuse_unknown,
)
from ablate.study.launch.state import State
from ablate.study.numbers import counted
from ablate.study.plan import planfile, preview
from ablate.study.plan.blocks import Blocks, with_budgets
from ablate.study.plan.cells import Composed, Composer
from ablate.study.plan.ladder import as_blocks
from ablate.study.plan.layout import lay_out
from ablate.study.plan.planned_run import Command, PlannedRun
from ablate.study.plan.planned_study import PlannedStudy
from ablate.study.plan.request import StudyRequest, parse_request
from ablate.training.preflight import check_output

log = logging.getLogger(__name__)


def sweep(
    config: DictConfig, arguments: Sequence[str], context: HydraContext, task: TaskFunction
) -> list[State]:
    """Run the missing runs of a study. Raises UserError (rejected), RunFailed, Interrupted."""
    request = parse_request(config, arguments, context.config_loader)
    refuse_unknown(config)
    settings = _settings(config.hydra.launcher)
    composer = Composer(context.config_loader, config, request.fixed)
    request = as_blocks(request, partial(composer, ()))  # whose rules may make it valid
    request = with_budgets(request, partial(composer.checked, ()))
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
    if settings or config.hydra.runtime.choices["hydra/launcher"] == "basic":
        check_arms(
            (composed for _, _, layout, _ in made for composed in layout.arms),
            settings.gpus_per_run if settings else 0,
        )
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
        if request.node["ladder"]["sizes"]:
            preview.show_rungs(studies)
        for study in studies:
            preview.show(study, at_once)
        every = chain(*(study.named(study.chosen(study.counted())) for study in studies))
        share(studies, [*every], request.node["rerun"])
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
            fail_fast = bool(config.hydra.launcher.get("fail_fast"))
            for study in studies:
                tune(study, launcher, fail_fast=fail_fast)
            return run(studies, launcher, request, blocks, fail_fast=fail_fast)


def tune(study: PlannedStudy, launcher: Launcher, *, fail_fast: bool) -> None:
    """Find each arm's own best values, before the runs that count, and plan these. fail_fast: start
    no run after one that failed."""
    if not study.tuning:
        return
    trials = study.named(study.trials.cells)
    states, trouble = train(launcher, trials, study.root, study.request.node["rerun"])
    failed = any(each.name == "failed" for each in states.values())
    if trouble is not None or (fail_fast and failed):
        refuse_unfinished(trials, states, trouble, study.request.node["rerun"])
    study.trials.choose(study.folder, study.metric)
    study.count_costs()
    for composed in study.layout.arms:
        for line in composed.warnings:
            say(line)
    study.write([*study.trials.cells, *study.counted()])


def run(
    studies: Sequence[PlannedStudy],
    launcher: Launcher,
    request: StudyRequest,
    blocks: Blocks,
    *,
    fail_fast: bool,
) -> list[State]:
    """Launch the runs that count, of all blocks and look after look, write the reports and return
    the runs' states. fail_fast: no look follows a run that failed."""
    root, rerun = studies[0].root, request.node["rerun"]
    every, states, trouble = run_planned(studies, launcher, request, blocks)
    while trouble is None and rerun != "failed":
        failed = any(each.name == "failed" for each in states.values())
        if (fail_fast and failed) or not add_seeds(studies, blocks):
            break
        every, states, trouble = run_planned(studies, launcher, request, blocks, first=False)
    # Of any other command, only one that finds the whole study finished ends study.rerun=all.
    planned = chain(*(study.named(study.counted()) for study in studies))
    end_rerun(every if rerun == "all" else [*planned], root)
    finished = {cell.run_id for cell in every if states[cell.folder].name == "finished"}
    for path in root.glob("**/checkpoints/branch-*.ckpt"):
        if path.stem.removeprefix("branch-") in finished:
            path.unlink(missing_ok=True)
    for folder in dict.fromkeys([*(study.folder for study in studies), root]):
        report(folder, printed=folder == root)
    refuse_unfinished(every, states, trouble, rerun)
    if untuned := [reason for study in studies for reason in study.trials.untuned.values()]:
        raise RunFailed("; ".join(untuned))
    return list(states.values())


def add_seeds(studies: Sequence[PlannedStudy], blocks: Blocks) -> bool:
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
    studies: Sequence[PlannedStudy],
    launcher: Launcher,
    request: StudyRequest,
    blocks: Blocks,
    *,
    first: bool = True,
) -> tuple[list[PlannedRun], dict[str, State], Exception | None]:
    """Launch the planned runs that count. Returns them, their states by folder, and the launcher's
    exception, if any.

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
        preview.say_begin(study, of_block, notes=first)
    rerun = request.node["rerun"] if first else "missing"
    every = share(studies, every, rerun, launcher)
    return every, *train(launcher, every, root, rerun)


def train(
    launcher: Launcher, cells: Sequence[PlannedRun], root: Path, rerun: str
) -> tuple[dict[str, State], Exception | None]:
    """Launch runs. Returns the states of all by folder, and the launcher's exception, if any."""
    trouble = launch(launcher, cells, root, rerun)
    return {cell.folder: cell.state(root) for cell in cells}, trouble


def share(
    studies: Sequence[PlannedStudy],
    cells: Sequence[PlannedRun],
    rerun: str,
    launcher: Launcher | None = None,
) -> list[PlannedRun]:
    """The runs with the steps that they share, unless the launcher cannot pass these on; prints the
    cost."""
    from ablate.study.plan.trunks import with_trunks  # torch is slow to import

    shared, lines = with_trunks(cells, studies[0].root, studies[0].sets, again=rerun == "all")
    able = launcher is None or hasattr(launcher, "train")
    if lines and not able:
        lines = [
            f"{type(launcher).__name__} trains every run from step 0; with hydra/launcher=local"
            " shorter runs begin at states of longer ones"
        ]
    for line in lines:
        say(line)
    return shared if able else list(cells)


def check_arms(arms: Iterable[Composed], gpus_per_run: int) -> None:
    """Raise UserError if an arm needs something that this machine, which trains it, lacks.
    gpus_per_run: GPUs that a run sees; 0: all."""
    from ablate.training.preflight import check_machine

    for composed in arms:
        try:
            check_machine(composed.config, gpus_per_run)
        except UserError as error:
            of_arm = "" if composed.arm.is_baseline else f"[{composed.name}] "
            raise UserError(*(f"{of_arm}{mistake}" for mistake in error.args)) from error


def _settings(launcher: DictConfig) -> LocalSettings | None:
    """Return the settings of hydra/launcher=local, or of a file with its class, None of another.
    Raises UserError."""
    if launcher.get("_target_") != "hydra_plugins.ablate.Local":
        return None
    return LocalSettings(
        **{str(key): value for key, value in launcher.items() if key != "_target_"}
    )


def _jobs(launcher: DictConfig) -> int:
    """Return the number of jobs at once, as far as the config of another launcher states it."""
    parallel = launcher.get("array_parallelism")
    return parallel if isinstance(parallel, int) and parallel > 0 else 1


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
        known = unwrap(error)
        log.warning(
            "ablate: no report (%s); %s", known or error, again, exc_info=None if known else error
        )
