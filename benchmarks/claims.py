"""Judge the claims of finished studies: write docs/results/claims.csv and the page claims.md.

python benchmarks/claims.py outputs/recall_mixers outputs/claims/*

Studies that are not named keep their rows. Without arguments only the page is written again.
"""

import csv
import re
import sys
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any

import yaml
from tables import table, write

from ablate.config.tree import config_file
from ablate.study.analysis.collect import Study, collect
from ablate.study.analysis.judged_claims import JudgedClaim, judged_claims
from ablate.study.numbers import certain, probability

ROOT = Path(__file__).parents[1]
DATA = ROOT / "docs" / "results" / "claims.csv"
FIELDS = (
    "study", "claim", "source", "arm", "versus", "verdict", "scale", "measure", "unit", "effect",
    "low", "high", "expected", "seeds", "p", "remark", "date", "commit",
)  # fmt: skip
VERDICTS = ("confirmed", "undecided", "refuted")
# By the last part of a metric's name, or its kind.
UNITS = {
    "loss": "nats",
    "accuracy": "fraction",
    "exact_match": "fraction",
    "aer": "fraction",
    "der": "fraction",
    "bleu": "BLEU",
    "rmse": "unit of the series",
    "horizon_rmse": "unit of the series",
    "cost/throughput": "tokens/s",
    "cost/memory": "bytes",
    "steps_to": "steps",
    "effective_compute": "times the compute",
    "effective_compute_growth": "per doubling of the compute",
}
HEAD = """# Claims

Claims of papers and lectures about attention models, [registered before the first
run](../how-to/preregister-claims.md) of a study and [judged](../explanation/verdicts.md#claims) by
it. The models are small, so a verdict is about the settings of its sweep, not about the paper.

[claims.csv](claims.csv) lists every claim. Effects are positive in the direction of the claim;
accuracies and error rates are fractions. `scale` is the size and the training of the baseline's
runs; it is empty for studies that were judged before reports recorded it. `python
benchmarks/claims.py STUDY_DIRS` writes both files.
"""

Row = dict[str, str]


def measure(node: Mapping[str, Any], metric: str) -> tuple[str, str]:
    """Return the quantity of a claim and its unit. metric: the study's."""
    metric = str(node.get("metric") or metric)
    over = dict(node.get("rising_over") or {})
    names = [str(key) for key in over]
    of_metrics = any("/" in name for name in names)
    base = names[0] if of_metrics else metric
    kind = base.split("@")[0].split(":")[0]
    leaf = kind.split("/")[1] if kind.count("/") > 1 else kind.rpartition("/")[2]
    unit = UNITS.get(kind) or UNITS[leaf]
    if not over:
        return metric, unit
    places = names if of_metrics else [f"block {name}" for name in names]
    start = "" if of_metrics else f"{metric}, "
    if [*over.values()] == [0, 1]:
        return f"{start}{places[1]} minus {places[0]}", unit
    at = ", ".join(f"{name}: {x}" for name, x in zip(places, over.values(), strict=True))
    return f"{start}slope over x = {at}", f"{unit} per unit of x"


def rows(study: Study) -> Iterator[Row]:
    """A row for each claim."""
    found, _ = judged_claims(study)
    nodes = [entry["claim"] for entry in study.plan.get("claims") or () if not entry["dropped"]]
    code = {str(run.provenance.get("git", {}).get("commit") or "")[:7] for run in study.runs} - {""}
    added = bool((study.plan.get("looks") or {}).get("after"))
    for entry, node in zip(found, nodes, strict=True):
        name, unit = measure(node, study.metric)
        yield {
            "study": str(study.plan["sweep"]),
            "claim": entry.settled.claim.statement.rstrip("."),
            "source": entry.settled.claim.source,
            "arm": str(node["arm"]),
            "versus": str(node.get("versus") or "baseline"),
            "measure": name,
            "unit": unit,
            **_outcome(entry, added),
            "date": str(study.plan["written"])[:10],
            "commit": " ".join(sorted(code)),
        }


def _outcome(entry: JudgedClaim, added: bool) -> Row:
    """added: whether seeds were added to a study that was planned with a fixed number."""
    settled, claim = entry.settled, entry.settled.claim
    known = settled.effect is not None
    bounds = (settled.interval.low, settled.interval.high) if settled.interval else ()
    low, high = [certain(bound, settled.interval) for bound in bounds] or ("", "")
    needed = f"about {settled.seeds_needed} seeds needed" if settled.seeds_needed else ""
    look = (
        f"{settled.look.words()}{', chosen after the first runs' * added}" if settled.look else ""
    )
    return {
        "verdict": settled.verdict,
        "scale": entry.scale,
        "effect": certain(settled.effect, settled.interval) if known else "",
        "low": low,
        "high": high,
        "expected": f"> {claim.min_effect:g}"
        if claim.margin is None
        else f"within ±{claim.margin:g}",
        "seeds": str(settled.n),
        "p": probability(settled.p) if known else "",
        "remark": "; ".join(filter(None, (settled.why, look, needed, entry.after and "post hoc"))),
    }


def overrides(study: str) -> str:
    """Return the overrides of a sweep, from the header of its file."""
    text = config_file(f"sweep/{study}.yaml").read_text()
    command = rf"python -m ablate (sweep={study}.*?)"
    found = re.search(rf"# (?:Then:  )?{command}(?:  +.*)?$", text, re.M)
    assert found, study
    return found[1]


def page(every: list[Row]) -> str:
    verdicts = [row["verdict"] for row in every]
    counts = ", ".join(f"{verdicts.count(kind)} {kind}" for kind in dict.fromkeys(verdicts))
    studies: dict[str, list[str]] = {}
    for row in every:
        studies.setdefault(row["study"], []).append(row["verdict"])
    by_study = [
        (f"`{overrides(study)}`", " / ".join(str(of_study.count(kind)) for kind in VERDICTS))
        for study, of_study in sorted(studies.items())
    ]
    refuted = []
    known = yaml.safe_load(Path(__file__).with_name("claims_why.yaml").read_text())
    for row in every:
        if row["verdict"] == "refuted":
            interval = f" ({row['low']} to {row['high']})" if row["low"] else ""
            unit = "" if row["unit"] == "fraction" else f" {row['unit']}"
            effect = f"{row['measure']}: {row['effect']}{interval}{unit}"
            why = known.pop(row["claim"], "").strip()
            refuted.append((f"{row['claim']} ({row['study']})", effect, row["expected"], why))
    if known:
        raise SystemExit(f"claims_why.yaml: not refuted: {', '.join(sorted(known))}")
    heads = ("claim", "effect (95 % interval)", "expected", "possible reason")
    return (
        f"{HEAD}\n{len(every)} claims: {counts}.\n\n## By study\n\n"
        "The head of each sweep file has its number of runs and its time.\n\n"
        f"{table(('overrides', ' / '.join(VERDICTS)), by_study)}\n"
        f"## Refuted claims\n\n{table(heads, refuted)}"
    )


if __name__ == "__main__":
    with DATA.open(newline="") as file:
        every = [*csv.DictReader(file)]
    for made in ([*rows(collect(Path(name)))] for name in sys.argv[1:]):
        every = [row for row in every if row["study"] != made[0]["study"]] + made
    write(DATA, every, FIELDS)
    DATA.with_suffix(".md").write_text(page(every))
