"""report.json: the report for programs (docs/reference/report.md)."""

from dataclasses import asdict
from typing import Any

from ablate.run_files import finite
from ablate.study.analysis.crossed import in_short
from ablate.study.analysis.judged_claims import JudgedClaim
from ablate.study.analysis.ladder import Ladder
from ablate.study.analysis.noise import Noise
from ablate.study.analysis.rows import Report, Row
from ablate.study.analysis.stats import Interval
from ablate.study.report.sentences import certainty

VERSION = 2


def to_json(report: Report) -> dict[str, Any]:
    """The content of report.json. Numbers that are not finite are null."""
    study = report.study
    content = {
        "version": VERSION,
        "study": study.name,
        "question": study.plan.get("asks") or "",
        "command": study.plan.get("command") or [],
        "metric": {"name": report.metric, "mode": report.mode},
        "seeds": study.seeds,
        "looks": list(study.looks),
        "baseline": study.baseline.name,
        "arms": [*map(arm_content, report.rows)],
        "claims": [_claim(entry) for entry in report.claims],
        "dropped_claims": list(report.dropped),
        "blocks": {block: to_json(part) for block, part in report.blocks.items()},
        "ladder": _ladder(report.ladder) if report.ladder else None,
        "extra_metrics": {
            metric: [*map(arm_content, other.rows)] for metric, other in report.also.items()
        },
        "measures": {
            metric: {arm: asdict(each) for arm, each in by_arm.items()}
            for metric, by_arm in report.measures.items()
        },
        "examples": [
            asdict(each)
            | {"interval": _interval(each.interval), "crossed": _interval(each.crossed)}
            for each in report.examples
        ],
        "noise": {metric: _noise(noise) for metric, noise in report.noises.items()},
        "effects": in_short(report),
        "warnings": [*report.remarks, *certainty(report)],
    }
    return finite(content)


def _ladder(found: Ladder) -> dict[str, Any]:
    content = asdict(found)
    for climb in content["climbs"]:
        del climb["samples"]
    return content


def arm_content(row: Row) -> dict[str, Any]:
    """An entry of `arms`."""
    comparison = row.comparison
    return {
        "name": row.arm.name,
        "changes": dict(row.arm.changes),
        "verdict": row.kind,
        "verdict_text": row.verdict,
        **_of(row.summary, "n", "mean", "sd"),
        "values": {str(seed): value for seed, value in row.values.items()},
        "difference": row.difference,
        "interval": _interval(comparison.interval) if comparison else None,
        "p": comparison.p if comparison else None,
        "effect_size": comparison.size if comparison else None,
        "seeds_needed": comparison.verdict.seeds_needed if comparison else None,
        "look": asdict(row.look) if row.look else None,
        **_of(row.arm, "parameters", "flops_per_step", "steps", "same_as"),
    }


def _noise(noise: Noise) -> dict[str, Any]:
    parts = {"found": noise.found, "assumed": noise.assumed}
    return {
        **{
            name: {"sd": p.variance**0.5, "df": p.df} if p.df else None for name, p in parts.items()
        },
        "p": noise.agreement if noise.assumed.df else None,
        "assumed_used": bool(noise.known.df),
    }


def _claim(entry: JudgedClaim) -> dict[str, Any]:
    settled, claim = entry.settled, entry.settled.claim
    return {
        **_of(claim, "statement", "source"),
        "verdict": settled.verdict,
        "scale": entry.scale,
        **_of(claim, "direction", "min_effect", "margin", "constant"),
        "terms": [asdict(term) for term in claim.terms],
        "effect": settled.effect,
        "interval": _interval(settled.interval),
        **_of(settled, "p", "n", "seeds_needed", "why"),
        "look": asdict(settled.look) if settled.look else None,
        "made": entry.made,
        "after_the_fact": entry.after,
    }


def _of(of: object, *names: str) -> dict[str, Any]:
    return {name: getattr(of, name) for name in names}


def _interval(interval: Interval | None) -> list[float] | None:
    return None if interval is None else [interval.low, interval.high]
