"""The words of verdicts, and the sentences of the page and report.md: the question, the results
and their certainty."""

from collections import Counter
from collections.abc import Sequence
from typing import NamedTuple

from ablate.config.keys import flatten
from ablate.machine.terminal.say import command_line
from ablate.study.analysis.compare import FEW
from ablate.study.analysis.curves import TRAINING
from ablate.study.analysis.rows import Report, Row
from ablate.study.metric_words import BUDGETS, direction, metric_words
from ablate.study.numbers import NOTHING, certain, counted, listed, share, shortened, signed
from ablate.study.report.chart_data import Points


class VerdictWords(NamedTuple):
    """In the list of results, in the page, in a LaTeX table; style: the color on a terminal."""

    heading: str
    page: str
    latex: str
    style: str | None = None


VERDICT_WORDS = {
    "better": VerdictWords("Better than the baseline", "▲ better", "better", "green"),
    "worse": VerdictWords("Worse than the baseline", "▼ worse", "worse", "red"),
    "equivalent": VerdictWords("Equivalent to the baseline", "≈ equivalent", "equivalent", "cyan"),
    "inconclusive": VerdictWords("No difference shown", "no difference shown", "not shown"),
    "too_few_seeds": VerdictWords("Too few seeds for a verdict", "too few seeds", "too few seeds"),
    "excluded": VerdictWords("Not compared", "not compared", "not compared", "yellow"),
    "baseline": VerdictWords("", "baseline", NOTHING, "bold"),
}
# Of claims: the verdict of an arm with the same color in the page, and the color on a terminal.
CLAIM_COLORS = {
    "confirmed": ("equivalent", "green"),
    "refuted": ("worse", "red"),
    "undecided": ("inconclusive", None),
    "not tested": ("inconclusive", None),
}
DESIGNS = {
    "one_factor": "when one factor at a time is changed",
    "leave_one_out": "when one component at a time is taken out",
    "pairs": "when one factor, or two together, are changed",
    "factorial": "in every combination of",
}
# Rules that an arm breaks; of missing seeds the reason is as short: "all 2 seeds failed".
BROKEN = {rule: f"other {rule}" for rule in ("data", "code", "budget")}
BROKEN["leakage"] = "label leakage"
# Overrides of the study's folder and logging, which do not describe its baseline.
BESIDE = ("study.", "output_dir=", "logger", "checkpoint_every=")
# The settings of a training that readers look for first.
SETTINGS = (
    "model.dim", "model.depth", "model.heads", "data.seq_len", "data.batch_size", "optimizer.lr",
    "trainer.max_steps", "trainer.max_epochs",
)  # fmt: skip
UNSET = (None, -1)  # max_steps of a training by max_epochs
LONGEST = 60  # letters of a name inside a sentence


def purpose(report: Report) -> list[str]:
    """Return the comment at the top of the sweep's file: the question, then its source."""
    text = " ".join(str(report.study.plan.get("asks") or "").split())
    question, mark, rest = text.partition("? ")
    return [part for part in (question + mark.strip(), rest) if part]


def plan_sentence(report: Report) -> str:
    """Describe the plan in one sentence."""
    study, what = report.study, subject(report)
    if study.source:
        return f"How does {metric_name(report)} differ between the arms in {study.source}?"
    parts = []
    for factor, options in (study.plan.get("factors") or {}).items():
        baseline = study.plan["own"][factor]
        others = listed(option for option in options if option != baseline)
        parts.append(f"{factor} ({baseline} → {others})")
    changes = f"How does {metric_name(report)}{f' of {what}' if what else ''} change"
    if len(parts) == 1:
        return f"{changes} with {parts[0]}?"
    how = DESIGNS.get(str(study.plan.get("design")), "when these are changed")
    return f"{changes} {how}: {listed(parts, 12)}?"


def subject(report: Report) -> str:
    """Name model and data, as "gpt on pydoc"."""
    choices = report.study.plan.get("baseline", {}).get("config", {}).get("choices", {})
    return " on ".join(str(choices[key]) for key in ("model", "data") if choices.get(key))


def settings(report: Report) -> str:
    """Return the main settings of the baseline, wherever they were set."""
    values = flatten(report.study.plan.get("baseline", {}).get("config", {}))
    return " ".join(f"{key}={values[key]}" for key in SETTINGS if values.get(key) not in UNSET)


def metric_name(report: Report) -> str:
    words = metric_words(report.metric)
    name = f"{report.metric}, " if words != report.metric else ""
    return f"{words} ({name}{direction(report.mode)})"


def answers(report: Report) -> list[tuple[str, str, str]]:
    """Return (kind, heading, arms) for every kind of verdict that occurs."""
    by_size = sorted(report.others, key=lambda row: -abs(row.difference or 0.0))
    answers = []
    for kind, words in VERDICT_WORDS.items():
        if arms := [_in_short(row, report) for row in by_size if row.kind == kind]:
            within = certain(report.study.plan["margin"]) if kind == "equivalent" else ""
            head = words.heading + (f" within ± {within}" if within else "")
            answers.append((kind, head, listed(arms, 8)))
    return answers


def _in_short(row: Row, report: Report) -> str:
    name = shortened(report.labels[row.arm.name], LONGEST)
    if row.comparison is None:
        reasons = zip(row.broken, row.why, strict=False)  # none are broken by the baseline's runs
        why = [BROKEN.get(rule, reason) for rule, reason in reasons] or row.why
        return f"{name} ({', '.join(why)})"
    return f"{name} ({signed(row.difference, report.digits)})"


def reference(report: Report) -> str:
    """Describe the result of the baseline."""
    summary = report.baseline.summary
    if summary.mean is None:
        return f"The baseline has no finished run with {report.metric}, so no arm can be compared."
    what = "" if summary.sd is None else " (standard deviation)"
    seeds = counted(summary.n, "seed")
    return f"The baseline reaches {summary.words(report.decimals)}{what} over {seeds}."


def certainty(report: Report) -> list[str]:
    """Explain the intervals and verdicts, and their limits."""
    comparisons = [row.comparison for row in report.compared if row.comparison]
    if not comparisons:
        return []
    pairs = sorted({comparison.n for comparison in comparisons})
    count = f"{pairs[0]} to " * (len(pairs) > 1) + counted(pairs[-1], "pair")
    text = f"Each arm is compared with the baseline by paired differences over seeds ({count})"
    text += (
        ". The data, code and cost of the runs are not recorded, and were not checked. "
        if report.study.source
        else ": paired runs share the data order and the initial values of all common parameters. "
    )
    if pairs == [1]:
        text += "One seed allows neither an interval nor a verdict"
    else:
        text += (
            "Differences are tested against the noise, the variation that neither arm nor seed"
            " explains, estimated from every arm of the study"
        )
        judged = [each.verdict for each in comparisons if each.verdict.kind != FEW]
        if judged and judged[0].family > 1:
            text += (
                f"; p values and the 95 % intervals are Holm-corrected for {judged[0].family}"
                " arms, so an interval excludes zero exactly if a difference is shown"
            )
    return [f"{line}." for line in (text, *report.warnings)]


def curve_words(report: Report, points: Points) -> str:
    """Caption of the learning curves, or why there are none."""
    if not points.curves:
        return (
            "No learning curves: no finished run has recorded two values of its metric, or of its"
            " training loss."
        )
    words = "Learning curves are means over the finished seeds"
    if any(curve.seeds > 1 for curve in points.curves):
        words += ", with bands of ± one standard deviation"
    if points.column == TRAINING:
        words += "; the runs were validated only once, so this is the training loss"
    elif points.column != report.metric:
        words += f"; {report.metric} is measured at the end only, so this is {points.column}"
    if len(points.curves) > len(report.colors) + 1:
        words += f"; in color the {len(report.colors)} arms with the largest differences"
    values = [mean for curve in points.curves for mean in curve.means]
    high, low = points.limits.high, points.limits.low
    beyond = [f"above {report.text(high)}"] if max(values) > high else []
    beyond += [f"below {report.text(low)}"] if min(values) < low else []
    if beyond:
        early = all(map(points.limits.inside, points.settled()))
        words += f"; values {listed(beyond)}{', at the start,' * early} are not shown"
    return f"{words}."


def relative(row: Row, report: Report) -> str:
    """The difference as a share of the baseline's value; "" if that is not positive."""
    base = report.baseline.summary.mean or 0.0
    return "" if row.difference is None or base <= 0 else share(row.difference / base)


def plan_lines(report: Report) -> list[tuple[str, str]]:
    """Describe the plan in a few lines: (heading, text)."""
    study, plan = report.study, report.study.plan
    states = Counter(run.state for run in study.runs)
    each = plan["seeds"]
    many = f"{each[0]} to {each[-1]} ({len(each)})" if len(each) > 12 else ""
    seeds = many or ", ".join(map(str, each))
    if study.blocks:
        seeds += f" in each of {len(study.blocks)} blocks"
    set_ = (plan.get("baseline") or {}).get("overrides") or []
    baseline = " ".join(text for text in set_ if not text.startswith(BESIDE)) or (
        study.baseline.name if study.source else "the defaults"
    )
    if what := subject(report):
        baseline = f"{what}: {baseline}"
    lines = [
        ("Source", study.source),
        ("Baseline", baseline),
        ("Settings", settings(report)),
        ("Design", str(plan.get("design", "")).replace("_", " ")),
        ("Arms", f"{len(study.arms)}, including the baseline"),
        ("Seeds", seeds),
        ("Metric", metric_name(report)),
        ("Runs", ", ".join(f"{count:,} {state}" for state, count in sorted(states.items()))),
    ]
    lines = [(what, words) for what, words in lines if words]
    if plan.get("margin") is not None:
        lines.append(("Margin", f"differences within ± {plan['margin']} count as equivalent"))
    if plan.get("match"):
        by, budget = plan["match"]["by"], BUDGETS[plan["match"]["budget"]]
        words = f"{by} is set so that every arm matches the baseline's {budget} within 2 %"
        lines.append(("Matching", words))
    if plan.get("tune"):
        keys = "; ".join(f"{k} of {listed(map(str, v))}" for k, v in plan["tune"]["keys"].items())
        lines.append(("Tuning", f"every arm has its own best {keys}, chosen on separate seeds"))
    return lines


def commands(report: Report) -> Sequence[str]:
    """Return the commands that run the study, and that make this report again."""
    typed = report.study.plan.get("command") or []
    if report.study.source:
        return [command_line("ablate.judge", *typed)]
    run = [command_line("ablate", *typed)] if typed else []
    own = [word for name, value in report.chosen.items() for word in (f"--{name}", value)]
    return [*run, command_line("ablate.report", report.study.folder, *own)]
