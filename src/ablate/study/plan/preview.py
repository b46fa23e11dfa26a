"""study.dry_run: the plan as a table, before anything is launched."""

from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from shutil import disk_usage

from rich.table import Column, Table

from ablate.config.overrides import value_text
from ablate.config.parts import locate
from ablate.machine.memory import written
from ablate.machine.terminal.console import Console
from ablate.machine.terminal.say import say
from ablate.study.analysis import known
from ablate.study.analysis.confounding import inestimable, varied
from ablate.study.launch.estimate import Durations
from ablate.study.launch.running import selected
from ablate.study.metric_words import best_together, direction
from ablate.study.numbers import amount, counted, duration, listed, seeds_in_words
from ablate.study.plan.design import entry_text
from ablate.study.plan.layout import SHOWN, Layout
from ablate.study.plan.planned_run import PlannedRun
from ablate.study.plan.planned_study import PlannedStudy
from ablate.study.plan.request import StudyRequest

LIKE_FIXED = 0.92  # seeds of a fixed study with the power of one with looks (benchmarks/looks.py)
KEYS = 4  # at most so many keys of an arm


def show(study: PlannedStudy, slots: int) -> None:
    """Print the plan. slots: runs at once."""
    if study.tuning and all(cell.finished(study.folder) for cell in study.trials.cells):
        study.trials.choose(study.folder, study.metric)
        study.count_costs()
    layout, metric = study.layout, study.metric
    cells = [*study.trials.cells, *study.chosen(study.counted())]
    states = {cell.folder: cell.state(study.folder) for cell in cells}
    console = Console(highlight=False, markup=False)
    counting = [cell for cell in cells if cell.kind == "run"]
    flops = {composed.name: composed.budget.flops for composed in layout.arms}
    durations = Durations(states, {cell.folder: cell.arm for cell in cells}, flops)
    of_block = f", {study.block}" if study.block else ""
    title = f"{study.request.name}{of_block} (dry run)"
    console.print(_arms(layout, counting, durations, title=title))
    for line in [*_also(layout), *_notes(study), *_power(study)]:
        console.print(line, soft_wrap=True)
    rerun = study.request.node["rerun"]
    to_do = [Path(cell.folder).name for cell in selected(study.named(cells), study.root, rerun)]
    finished = sum(state.name == "finished" for state in states.values())
    # Finished runs that are only measured again take little of the time.
    train = [each for each in to_do if rerun == "all" or states[each].name != "finished"]
    rest = durations.left(train, slots)
    console.print(
        f"{counted(len(layout.arms), 'arm')}, {_seeds(study)},"
        f" {counted(len(states), 'run')} in {study.folder}:"
        f" {finished} finished, {len(to_do)} to do"
        f"{f', about {rest}' if rest else ''}."
        f" Arms are compared by {metric['name']}, {direction(metric['mode'])}"
        f"{_weights(layout, metric)}.",
        soft_wrap=True,
    )
    console.print(_disk(layout, cells, study.folder), soft_wrap=True)


def show_rungs(studies: Sequence[PlannedStudy]) -> None:
    """Print the sizes of study.ladder: recipe and cost of the baseline, the largest memory of any
    arm, and the time of all runs. Memory and time are measured in finished runs; before, memory is
    a lower bound for the baseline."""
    recipe = ("size", "dim", "depth", "heads", "batch", "rate", "weight decay", "steps")
    cost = ("size", "parameters", "tokens", "FLOPs", "memory", "time/run", "all runs")
    recipes, costs = (
        Table(*(Column(head, justify="right") for head in heads)) for heads in (recipe, cost)
    )
    cells = {study.block: [*study.trials.cells, *study.counted()] for study in studies}
    states, arms, flops = {}, {}, {}
    for study in studies:
        for cell in cells[study.block]:
            states[folder := f"{study.block}/{cell.folder}"] = cell.state(study.folder)
            arms[folder] = f"{cell.arm} {study.block}"
        for composed in study.layout.arms:
            flops[f"{composed.name} {study.block}"] = composed.budget.flops
    durations = Durations(states, arms, flops)
    finished = {f: state.result for f, state in states.items() if state.name == "finished"}
    for study in studies:
        base, size = study.layout.baseline, study.block.partition("=")[2]
        budget, model, optimizer = base.budget, base.config.model, base.config.optimizer
        batch = base.config.data.batch_size * base.config.trainer.accumulate_grad_batches
        recipes.add_row(
            *map(str, (size, model.dim, model.depth, model.heads, batch)), f"{optimizer.lr:.3g}",
            f"{optimizer.get('weight_decay') or 0:.3g}", f"{budget.steps:,}",
        )  # fmt: skip
        own = [result for f, result in finished.items() if f.startswith(f"{study.block}/")]
        peaks = [peak for result in own if (peak := result.get("peak_memory_bytes"))]
        least = budget.checkpoints.state + 4 * budget.parameters  # and the gradients
        time = durations.seconds(name := f"{base.name} {study.block}")
        folders = [folder for folder in arms if folder.startswith(f"{study.block}/")]
        times = [durations.seconds(arms[folder]) for folder in folders]
        total = None if None in times else sum(filter(None, times))
        costs.add_row(
            size, f"{budget.parameters:,}",
            amount(batch * base.config.data.seq_len * budget.steps), amount(flops[name]),
            written(max(peaks)) if peaks else f"> {written(least)}",
            *("?" if t is None else duration(round(t)) for t in (time, total)),
        )  # fmt: skip
    rules = studies[0].request.node["ladder"]["rules"]
    recipes.title, recipes.title_justify = f"Ladder by the rules of {rules}", "left"
    console = Console(highlight=False, markup=False)
    console.print(recipes)
    console.print(costs)
    if not finished:
        console.print(
            "Memory is that of weights, gradients and optimizer, without activations. Times are"
            " known once a run has finished."
        )


def say_begin(study: PlannedStudy, cells: Sequence[PlannedRun], *, notes: bool) -> None:
    """Print how many runs there are before they start. cells: with their folders in `root`."""
    once = {cell.folder: cell for cell in cells}
    finished = sum(cell.finished(study.root) for cell in once.values())
    arms, runs = counted(len(study.layout.arms), "arm"), counted(len(once), "run")
    say(f"{arms}, {_seeds(study)}: {runs} in {study.folder}, {finished} finished")
    if notes:
        lines = _notes(study)
        more = [f"and {len(lines) - SHOWN} more, in the report"] if len(lines) > SHOWN else []
        for line in [*lines[:SHOWN], *more, *_power(study)]:
            say(line)


def _disk(layout: Layout, cells: Sequence[PlannedRun], folder: Path) -> str:
    """The size of the checkpoints, and the free space."""
    sizes = {composed.name: composed.budget.checkpoints for composed in layout.arms}
    wanted = layout.baseline.config.checkpoint_keep
    arms = {cell.folder: cell.arm for cell in cells}
    kept = sum(sizes[arm].kept(wanted) for arm in arms.values() if arm in sizes)
    largest = max(size.at_most for size in sizes.values())
    place = next(path for path in (folder, *folder.absolute().parents) if path.exists())
    return (
        f"Checkpoints take about {written(kept)} when all runs have finished"
        f" (checkpoint_keep={wanted}), and up to {written(largest)} per running run;"
        f" {written(disk_usage(place).free)} are free."
    )


def _weights(layout: Layout, metric: Mapping[str, str]) -> str:
    """The weights that a validation metric refers to if it does not select them itself."""
    chosen_by = locate(layout.baseline.config.task._target_).metric
    if not metric["name"].startswith("val/") or best_together(metric["name"], chosen_by):
        return ""
    return f", of the weights with the best {chosen_by}"


def _arms(
    layout: Layout, cells: Sequence[PlannedRun], durations: Durations, *, title: str
) -> Table:
    table = Table(
        Column("arm", overflow="fold"),
        Column("parameters", justify="right"),
        Column("FLOPs/step", justify="right"),
        Column("time/run", justify="right"),
        Column("done", justify="right"),
        title=title,
        title_justify="left",
    )
    for composed in layout.arms:
        cells_of_arm = [cell for cell in cells if cell.arm == composed.name]
        ended = sum(durations.states[c.folder].name == "finished" for c in cells_of_arm)
        budget = composed.budget
        time = durations.seconds(composed.name)
        table.add_row(
            composed.name,
            f"{budget.parameters:,}",
            f"{budget.flops_per_step:.3g}",
            "?" if time is None else duration(round(time)),
            f"{ended}/{len(cells_of_arm)}" if cells_of_arm else "left out",
        )
    return table


def _also(layout: Layout) -> Iterator[str]:
    """Changes of an arm that its name does not show: other keys than those of its factors, and of
    the options that these choose."""
    for composed in layout.arms:
        if composed.same_as:
            yield f"{composed.name}: the same runs as {composed.same_as}"
            continue
        pairs = composed.differs(layout.baseline.config)
        followed = tuple(f"{key}." for key in (*composed.arm.changes, *pairs))
        texts = [
            f"{key}={value_text(new)} (baseline {value_text(old)})"
            for key, (old, new) in pairs.items()
            if key not in {**composed.arm.changes, **composed.set, **composed.tuned}
            and not key.startswith(followed)
        ]
        if texts and not composed.arm.is_baseline:
            more = f" and {len(texts) - KEYS} more" if len(texts) > KEYS else ""
            yield f"{composed.name}: {', '.join(texts[:KEYS])}{more}"


def _notes(study: PlannedStudy) -> list[str]:
    """Describe values set in addition to the factors, arms without effect, and cells left out."""
    request, layout, tuning = study.request, study.layout, study.tuning
    lines = [
        f"{composed.name}: study.match={request.node['match']} sets {key}={value}"
        for composed in layout.arms
        for key, value in composed.set.items()
    ]
    if request.grid and len(layout.arms) > 1:
        lines.append(f"The baseline is {layout.baseline.name}.")
    if tuning:
        grid = ", ".join(f"{key} from {values}" for key, values in tuning.keys.items())
        seeds = seeds_in_words(tuning.seeds)
        lines.append(f"Each arm gets its own {grid}, tried with {seeds}.")
        lines += [
            f"{composed.name}: tuned to {key}={value}"
            for composed in layout.arms
            for key, value in composed.tuned.items()
        ]
    lines += [
        f"{composed.name}: no effect: its model is the baseline's"
        for composed in layout.arms
        if composed.budget.no_effect
    ]
    lines += [f"skipped: {name}: {reason}" for name, reason in layout.invalid.items()]
    lines += [f"excluded: {name}: {entry_text(entry)}" for name, entry in layout.excluded.items()]
    lines += [f"claim: {claim['statement']}" for claim in request.node["claims"]]
    return lines + _inestimable(request, layout)


def _inestimable(request: StudyRequest, layout: Layout) -> list[str]:
    """Describe effects that the cells that are left do not show, before the launch."""
    if request.design != "factorial":
        return []
    cells = [layout.baseline_options | dict(composed.arm.changes) for composed in layout.arms]
    return [f"{line}." for line in inestimable(cells, varied(cells, layout.baseline_options))]


def _seeds(study: PlannedStudy) -> str:
    """Count the seeds, as "5 seeds" or "3 to 12 seeds (looks at 3, 5, 8 and 12)"."""
    if not (looks := study.request.looks):
        return counted(len(study.layout.seeds), "seed")
    return f"{looks[0]} to {looks[-1]} seeds (looks at {listed(map(str, looks))})"


def _power(study: PlannedStudy) -> list[str]:
    """Which effect the study shows with `power.POWER`, and how many seeds show study.effect, in
    units of the metric if the noise of earlier studies is known."""
    from ablate.study.analysis import power  # scipy is slow to import
    from ablate.study.analysis.noise import FEWEST, FEWEST_KNOWN

    request, layout, metric = study.request, study.layout, study.metric["name"]
    noise, effect = known.pooled(study.noise, metric), request.node["effect"]
    arms = sum(not each.arm.is_baseline and each.same_as is None for each in layout.arms)
    if not arms:
        return []
    fewest, df = (FEWEST_KNOWN, noise.df) if noise else (FEWEST, 0)
    sd = noise.variance**0.5 if noise else 1.0
    unit, more = (
        (f"on {metric}", f" (noise {sd:.3g}, {counted(int(df), 'degree')} of freedom)")
        if noise
        else ("standard deviations of the noise", f"; study.noise=FILE converts it to {metric}")
    )
    count = len(layout.seeds)
    alike = int(LIKE_FIXED * count) if request.looks else count
    up_to = "up to " if request.looks else ""
    line = f"{counted(count, 'seed')}: a verdict needs {fewest}"
    line += "" if noise else f", or {FEWEST_KNOWN} with study.noise=FILE"
    if count >= fewest:
        shown = power.smallest_effect(arms, alike, df) * sd
        line = (
            f"With {up_to}{counted(count, 'seed')} an effect of {shown:.2g} {unit} is shown with a"
            f" probability of {power.POWER:.0%}{more}"
        )
    if effect is None:
        return [f"{line}."]
    needed = power.seeds_for(effect / sd, arms, df)
    words = counted(needed, "seed") if needed else f"more than {power.MOST} seeds"
    return [f"{line}.", f"An effect of {effect:g} needs {words}."]
