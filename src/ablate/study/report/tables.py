"""The tables of the report except the one of its arms, as texts."""

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass

from ablate.study.analysis.collect import Arm, StudyRun
from ablate.study.analysis.comparable import versions
from ablate.study.analysis.ladder import Ladder
from ablate.study.analysis.rows import Report
from ablate.study.numbers import NOTHING, counted, decimals, estimate, listed, signed
from ablate.study.plan.design import entry_text
from ablate.study.plan.tune import edges
from ablate.study.report.sentences import CLAIM_COLORS


@dataclass(frozen=True)
class Table:
    """A table with its title, and a note above it. kinds: the verdict that colors the first cell of
    each row; remarks: warnings below."""

    title: str
    heads: Sequence[str]
    rows: Sequence[Sequence[str]]
    note: str = ""
    kinds: Sequence[str] = ()
    remarks: Sequence[str] = ()


def claims(report: Report) -> Iterator[Table]:
    """The claims with their verdicts, and those dropped after the first run."""
    words = "Positive effects support the claim; p values are Holm-corrected across claims."
    if not report.study.source:
        words = f"Registered before the first run unless marked post hoc. {words}"
    if report.claims or report.dropped:
        yield Table(
            "Claims",
            ("verdict", "claim", "evidence"),
            [(entry.scaled_verdict, entry.sentence, entry.evidence) for entry in report.claims],
            words,
            [CLAIM_COLORS[entry.verdict][0] for entry in report.claims],
            [f"Dropped after the first run, so not tested: {claim}." for claim in report.dropped],
        )


def blocks(report: Report) -> Iterator[Table]:
    """Each arm in each block (study.blocks), and on the ladder of their sizes."""
    if not report.blocks:
        return
    yield Table(
        f"By {report.study.plan['blocks']['factor']}",
        *_verdicts(report, {**report.blocks, "over all": report}),
        "Each block is a separate study, with its own baseline; over all blocks each seed"
        " counts once, by its mean over them. A verdict over all blocks applies only to these"
        " blocks.",
    )
    if report.ladder:
        yield from _ladder(report.ladder, report)


def _ladder(found: Ladder, report: Report) -> Iterator[Table]:
    sizes = [f"speed-up at {block}" for block in found.compute]
    yield Table(
        "By compute",
        ["arm", "slope", *sizes, "with size"],
        [
            [climb.arm, estimate(climb.slope, climb.interval),
             *(each.words() if each else NOTHING for each in climb.speedups.values()),
             climb.trend() or NOTHING]
            for climb in found.climbs
        ],
        "Slope: how much the difference grows with each doubling of the baseline's training FLOPs,"
        " by seed. Speed-up (effective compute): the FLOPs that the baseline needs for the arm's"
        f" value, as a multiple of the arm's; * extrapolated; inf: its law never reaches that"
        f" value. {found.basis(report.decimals)}",
    )  # fmt: skip
    if any(each.clock for each in found.speedups):
        yield Table(
            "By wall clock",
            ["arm", *sizes],
            [
                [climb.arm, *(each.clock_words() if each else NOTHING
                              for each in climb.speedups.values())]
                for climb in found.climbs
            ],
            "The same speed-ups in training time, as measured in these runs: a part that needs"
            " fewer FLOPs for a loss may still be slower.",
        )  # fmt: skip


def trends(report: Report) -> list[str]:
    """A sentence for each arm on a ladder with a scaling law."""
    return [
        f"With size, the speed-up of {report.labels[climb.arm]} {climb.trend()} of the FLOPs"
        for climb in (report.ladder.climbs if report.ladder else ())
        if climb.growth is not None
    ]


def metrics(report: Report) -> Iterator[Table]:
    """Other metrics of the task, those of study.extra_metrics, and differences over examples."""
    if report.measures:
        columns = [[row.arm.name for row in report.rows]]
        for by_arm in report.measures.values():
            means = [each.mean for each in by_arm.values() if each.mean is not None]
            digits = decimals(means, [each.sd for each in by_arm.values()])
            columns.append([by_arm[row.arm.name].words(digits) for row in report.rows])
        yield Table(
            "Measures",
            ["arm", *report.measures],
            [*zip(*columns, strict=True)],
            "Other metrics of the task, from the same weights: mean ± standard deviation over the"
            " seeds, not tested; study.extra_metrics=[METRIC] adds tests. Measures by length or"
            " class: runs.csv.",
        )
    if report.also:
        yield Table(
            "Other metrics",
            *_verdicts(report, report.also),
            "Additional metrics: difference from the baseline and verdict. p values are"
            " corrected over the arms of each metric, not over metrics.",
        )
    if report.examples:
        yield Table(
            "Over examples",
            ("arm", "difference over examples", "over seeds and examples", "better", "examples",
             "seeds"),
            [
                (each.arm, estimate(each.difference, each.interval),
                 estimate(each.difference, each.crossed) if each.crossed else "-",
                 f"on {each.better:.0%}", f"{each.examples:,}", str(each.seeds))
                for each in report.examples
            ],
            "Uncertainty from the evaluation examples: loss per example (for items of a table: the"
            " metric), averaged over seeds, minus the baseline's. The first interval is over"
            " examples with the models fixed, the second over seeds and examples together; that of"
            " the main table is over seeds with the examples fixed.",
        )  # fmt: skip


def _verdicts(
    report: Report, columns: Mapping[str, Report]
) -> tuple[Sequence[str], Sequence[Sequence[str]]]:
    """Heads and rows of the difference and the verdict of each arm in other reports."""
    words = [
        {
            row.arm.name: f"{signed(row.difference, each.digits)}, {row.comparison.verdict.kind}"
            if row.comparison
            else "not compared"
            for row in each.rows
        }
        for each in columns.values()
    ]
    arms = [row.arm.name for row in report.others]
    return ["arm", *columns], [[arm, *(by_arm[arm] for by_arm in words)] for arm in arms]


def details(report: Report) -> Iterator[Table]:
    """Runs without a result, config differences, tuning, and the environment of the runs."""
    if rows := [*_failures(report)]:
        heads = ("arm", "seed", "state", "reason")
        yield Table("Failed, rejected and excluded runs", heads, rows)
    if report.others and not report.study.source:  # the configs of other programs are unknown
        yield Table(
            "Config differences",
            ("arm", "differs from the baseline by"),
            [(arm.name, _differences(arm)) for arm in report.study.others],
            "Config keys that differ from the baseline; all others are equal.",
        )
    if rows := [*_trials(report)]:
        seeds = report.study.plan.get("tune", {}).get("seeds", [])
        yield Table(
            "How each arm was tuned",
            ("arm", "tried", "mean", "chosen", "remarks"),
            rows,
            f"Each arm was tuned separately by the mean of {report.study.metric} over"
            f" {counted(len(seeds), 'seed')} ({listed(map(str, seeds))}), on seeds not used in the"
            " comparison.",
        )
    if not report.study.source:
        environment = [
            (head, value, "every run" if len(values) == 1 else listed(arms))
            for head, values in versions(report.study).items()
            for value, arms in values.items()
        ]
        environment.append(("plan written", str(report.study.plan.get("written")), "every run"))
        yield Table("Environment", ("property", "value", "runs"), environment)


def _failures(report: Report) -> Iterator[Sequence[str]]:
    study = report.study
    yield from _grouped(study.runs)
    yield from _grouped(study.tuning, " (tuning)")
    for entry in study.plan.get("illegal") or ():
        yield entry["arm"], NOTHING, "invalid", entry["reason"]
    for entry in study.plan.get("excluded") or ():
        yield entry["arm"], NOTHING, "excluded", f"study.exclude: {entry_text(entry['by'])}"
    same = "the model is the baseline's: same parameters, same initial outputs"
    for arm in study.others:
        if arm.no_effect and arm.same_as is None:
            yield arm.name, NOTHING, "no effect", same


STATES = {"missing": "not run yet", "queued": "waits", "running": "trains now"}


def _grouped(runs: Sequence[StudyRun], note: str = "") -> list[Sequence[str]]:
    """Put runs of an arm that ended in the same way into one row."""
    by_outcome: dict[tuple[str, str, str], list[int]] = {}
    for run in runs:
        if not run.finished:
            reason = run.detail or STATES.get(run.state, "")
            by_outcome.setdefault((run.arm + note, run.state, reason), []).append(run.seed)
    return [
        (arm, listed(map(str, seeds), 12), state, reason)
        for (arm, state, reason), seeds in by_outcome.items()
    ]


def _differences(arm: Arm) -> str:
    lines = []
    for key, values in arm.differs.items():
        how = " (matched to the baseline's budget)" if key in arm.set else ""
        how = " (tuned)" if key in arm.tuned else how
        old, new = ("unset" if value is None else str(value) for value in values)
        lines.append(f"{key}: {old} → {new}{how}")
    same = f"nothing: these are the runs of {arm.same_as}" if arm.same_as else "nothing"
    return "\n".join(lines) or same


def _trials(report: Report) -> Iterator[Sequence[str]]:
    for arm in report.study.arms:
        for trial in arm.tuning:
            point = " ".join(f"{key}={value}" for key, value in trial["point"].items())
            mean = NOTHING if trial["mean"] is None else f"{trial['mean']:.4g}"
            doubts = edges(trial["point"], arm.tuning) if trial["chosen"] else ()
            remarks = "; ".join([*trial["problems"], *doubts])
            yield arm.name, point, mean, "chosen" * trial["chosen"], remarks
