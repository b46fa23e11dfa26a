"""Rules that decide which arms may be compared with the baseline.

Runs are compared in pairs of one seed, so data, code and budget must agree with the baseline's run
of the same seed, and both or none may see their targets. The user can allow the violation of a rule
by its name.
"""

from collections.abc import Callable, Collection, Mapping
from dataclasses import dataclass
from typing import Any

from ablate.errors import UserError, suggest
from ablate.machine.version import NAME
from ablate.study.analysis import derived
from ablate.study.analysis.collect import Seed, Study, StudyRun
from ablate.study.metric_words import BUDGETS

LEAKAGE = "leakage"
RULES = ("seeds", "data", "code", "budget", LEAKAGE)
TOLERANCE = 0.02  # relative difference of budgets; study.match guarantees as much


@dataclass(frozen=True)
class Objection:
    """Why an arm must not be compared. allowed: the user asked to compare it nevertheless."""

    rule: str
    arm: str
    reason: str
    allowed: bool


def objections(study: Study, metric: str, allow: Collection[str] = ()) -> list[Objection]:
    """Return all objections, in the order of arms and rules. UserError for an unknown rule."""
    for rule in allow:
        if rule not in RULES:
            hint = suggest(rule, RULES)
            raise UserError(f"--allow {rule}: the rules are {', '.join(RULES)}{hint}")
    objections = []
    for arm in study.others:
        pairs = _pairs(study, arm.name, metric)
        reasons = {
            "seeds": _seeds(study, arm.name, metric),
            "data": _unequal("data", pairs, _fingerprint),
            "code": _unequal("code", pairs, _code) or _edited(pairs),
            "budget": _budget(study, pairs),
            LEAKAGE: "" if metric in derived.COSTS else _leakage(pairs),
        }
        if study.source:  # neither is recorded
            reasons |= {"data": "", "code": ""}
        objections += [Objection(r, arm.name, why, r in allow) for r, why in reasons.items() if why]
    return objections


def lines(objections: Collection[Objection]) -> list[str]:
    """Write a line for each broken rule that is not allowed: arms, reasons, how to allow it."""
    texts = []
    for rule in RULES:
        by_reason: dict[str, list[str]] = {}
        for objection in objections:
            if objection.rule == rule and not objection.allowed:
                by_reason.setdefault(objection.reason, []).append(objection.arm)
        if by_reason:
            arms = "; ".join(f"{', '.join(names)}: {why}" for why, names in by_reason.items())
            texts.append(f"not compared (rule {rule}): {arms}; --allow {rule} includes them")
    return texts


def missing(study: Study, arm: str, metric: str) -> list[Seed]:
    """Planned seeds of the arm for which it has no number."""
    values = study.values(arm, metric)
    return [seed for seed in study.seeds_of(arm) if seed not in values]


def why_missing(study: Study, arm: str, seed: Seed, metric: str) -> str:
    """Describe why a seed has no value, as "failed" or "not run"."""
    run = study.runs_of(arm).get(seed)
    if run is None or run.state == "missing":
        unread = run.detail if run and not run.result else ""
        return f"not read ({unread})" if unread else "not run"
    return f"without {metric}" if run.finished else run.state


def _seeds(study: Study, arm: str, metric: str) -> str:
    """As `lost`, also of the baseline: "seed 3 failed; of the baseline seed 1 failed"."""
    own, base = lost(study, arm, metric), lost(study, study.baseline.name, metric)
    return "; ".join(filter(None, [own, base and f"of the baseline {base}"]))


def lost(study: Study, arm: str, metric: str) -> str:
    """Describe the missing seeds of an arm, as "seed 3 failed, seed 4 not run"; "" for none."""
    by_reason: dict[str, list[Seed]] = {}
    for seed in missing(study, arm, metric):
        by_reason.setdefault(why_missing(study, arm, seed, metric), []).append(seed)
    count = len(study.seeds_of(arm))
    return ", ".join(f"{_named(seeds, count)} {why}" for why, seeds in by_reason.items())


def _named(seeds: list[Seed], of: int) -> str:
    if len(seeds) == of > 1:
        return f"all {of} seeds"
    if len(seeds) == 1:
        return f"seed {seeds[0]}"
    few = ", ".join(map(str, seeds[:4]))
    return f"seeds {few}" + (f" and {len(seeds) - 4} more" if len(seeds) > 4 else "")


def _pairs(study: Study, arm: str, metric: str) -> list[tuple[StudyRun, StudyRun]]:
    of_baseline, of_arm = study.runs_of(study.baseline.name), study.runs_of(arm)
    without = {*missing(study, study.baseline.name, metric), *missing(study, arm, metric)}
    both = set(study.seeds_of(study.baseline.name)) - without
    return [(of_baseline[seed], of_arm[seed]) for seed in study.seeds_of(arm) if seed in both]


def _unequal(
    what: str, pairs: list[tuple[StudyRun, StudyRun]], of: Callable[[StudyRun], str | None]
) -> str:
    for of_baseline, of_arm in pairs:
        for run, whose in ((of_arm, "its"), (of_baseline, "the baseline's")):
            if of(run) is None:
                return f"{whose} {what} was not recorded"
        if of(of_baseline) != of(of_arm):
            return f"{what} differs from the baseline's: {of(of_arm)}, not {of(of_baseline)}"
    return ""


def _fingerprint(run: StudyRun) -> str | None:
    recorded = run.provenance.get("data_fingerprint")
    return None if recorded is None else str(recorded)


def _code(run: StudyRun) -> str | None:
    """Describe a run's code, as "69eaca4d77, torch 2.15.0" or "69eaca4d77 with changes (source
    0b1f), torch 2.15.0"; None if it is not recorded."""
    git, source = run.provenance.get("git"), run.provenance.get("source")
    packages = run.provenance.get("packages")
    packages = packages if isinstance(packages, dict) else {}
    ours, certain = f"ablate {packages.get(NAME, packages.get('ablate'))}", False
    if isinstance(git, dict):
        certain = not git.get("dirty")
        ours = str(git.get("commit"))[:10] + ("" if certain else " with changes")
    if not certain:
        if source is None:
            return None
        ours += f" (source {source})"
    return f"{ours}, torch {packages.get('torch')}"


def _edited(pairs: list[tuple[StudyRun, StudyRun]]) -> str:
    """Describe a custom component whose file was edited between two of the runs."""
    seeds: dict[str, dict[str, set[int]]] = {}  # module -> hash of its file -> seeds
    for run in (run for pair in pairs for run in pair):
        parts = run.provenance.get("custom_code")
        for module, file in (parts if isinstance(parts, dict) else {}).items():
            seeds.setdefault(module, {}).setdefault(str(file), set()).add(run.seed)
    return "; ".join(
        f"{module} was edited between runs of seeds"
        f" {' and '.join(str(min(s)) for s in files.values())} (study.rerun=all trains them again)"
        for module, files in seeds.items()
        if len(files) > 1
    )


def _budget(study: Study, pairs: list[tuple[StudyRun, StudyRun]]) -> str:
    for of_baseline, of_arm in pairs:
        if of_baseline.number("steps") != of_arm.number("steps"):
            steps = [f"{run.number('steps') or 0:,.0f}" for run in (of_arm, of_baseline)]
            return f"{steps[0]} steps, the baseline {steps[1]}"
        unit = f"{of_arm.unit or 'examples'} in training"
        if off := _off(of_baseline.trained, of_arm.trained, unit):
            return off
        validations = of_arm.validations(), of_baseline.validations()
        if all(validations) and len({*validations}) > 1:
            return (
                f"{validations[0]} validations, the baseline {validations[1]}: the best of more"
                " is better by chance"
            )
    matched: Mapping[str, Any] | None = study.plan.get("match")
    if not matched:
        return ""
    budget = matched["budget"]
    path = ("parameters", "total") if budget == "parameters" else ("flops_per_step",)
    offs = (_off(a.number(*path), b.number(*path), BUDGETS[budget]) for a, b in pairs)
    return next(filter(None, offs), "")


def _leakage(pairs: list[tuple[StudyRun, StudyRun]]) -> str:
    """Describe a leak of targets that only one of two arms has."""
    for of_baseline, of_arm in pairs:
        theirs, own = (run.result.get("caution") for run in (of_baseline, of_arm))
        if bool(own) != bool(theirs):
            return str(own) if own else f"the baseline: {theirs}"
    return ""


def _off(target: float | None, value: float | None, unit: str) -> str:
    """Describe a difference, as "900,000 parameters, +10.5% of the baseline's 814,720", or ""."""
    if not target or value is None or abs(value / target - 1) <= TOLERANCE:
        return ""
    return f"{value:,.0f} {unit}, {value / target - 1:+.1%} of the baseline's {target:,.0f}"


def versions(study: Study) -> dict[str, dict[str, list[str]]]:
    """Return the environment of the finished runs: heading -> value -> arms that have it."""
    heads: dict[str, Callable[[StudyRun], str | None]] = {
        "code": _code,
        "data": _fingerprint,
        "host": lambda run: str(run.provenance.get("host")),
        "device": _device,
        "python": lambda run: str(run.provenance.get("python")),
        "packages": _packages,
    }
    versions: dict[str, dict[str, list[str]]] = {head: {} for head in heads}
    for run in study.runs:
        if run.finished and run.provenance:
            for head, of in heads.items():
                arms = versions[head].setdefault(of(run) or "not recorded", [])
                if run.arm not in arms:
                    arms.append(run.arm)
    return versions


def _device(run: StudyRun) -> str:
    gpus = run.provenance.get("gpus") or "CPU"
    return ", ".join(map(str, gpus)) if isinstance(gpus, list) else str(gpus)


def _packages(run: StudyRun) -> str:
    packages = run.provenance.get("packages")
    return ", ".join(f"{k} {v}" for k, v in packages.items()) if isinstance(packages, dict) else ""
