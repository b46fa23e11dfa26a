"""Claims: what a study is expected to show, said before its first run (study.claims).

    study:
      claims:
        - says: Attention beats a fixed context vector on long sources.
          source: Bahdanau et al. 2015, figure 2
          arm: model.attention=additive       # as the plan names it
          than: model.attention=none          # null: the baseline; or a number
          is: better                          # better, worse, higher, lower, equivalent
          by: 0.05                            # the smallest effect that counts; null: any
        - says: The two scores differ by less than 0.02 nats.
          arm: model.attention=dot
          is: equivalent
          within: 0.02
        - says: Post-norm needs a warm-up more than pre-norm does.
          arm: model.norm=post schedule.warmup=0
          than: model.norm=post
          is: worse
          more_than: {arm: schedule.warmup=0, than: null}
        - says: The loss rises beyond the length of training.
          arm: pos_enc=sinusoidal
          than: nothing                       # its own values, not the difference from another arm
          is: higher
          rising_over: {val/loss: 0, val/loss@long: 1}   # the slope of a line through them
        - says: This reaches the published loss.
          arm: baseline
          than: 1.88                          # a number
          is: equivalent
          within: 0.05
        - says: The gap grows with the number of pairs.
          arm: model.mixer=retention
          is: worse
          rising_over: {val/accuracy/4_pairs: 4, val/accuracy/8_pairs: 8, val/accuracy/16_pairs: 16}

In a study with blocks (study.blocks) a claim is about the mean over them, or about one with
`block: NAME`; rising_over may name blocks, {16: 16, 64: 64}.

A claim is about one number for each seed: a sum of values of arms times weights, less a constant.
It is fixed with the plan; one that is added or changed when runs exist is marked, for ever.
"""

from __future__ import annotations

import json
from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass
from datetime import UTC, datetime
from typing import Any

from ablate.errors import UserError, suggest
from ablate.run_files.shape import misfit

WAYS = ("better", "worse", "higher", "lower", "equivalent")
KEYS = (
    "says", "source", "arm", "than", "is", "by", "within", "metric", "mode", "more_than",
    "rising_over", "block",
)  # fmt: skip
BASELINE = None
NOTHING = "nothing"


@dataclass(frozen=True)
class Term:
    """A value of an arm, None: the baseline, times a weight."""

    arm: str | None
    metric: str | None  # None: the study's
    weight: float
    block: str | None = None  # None: of all blocks


@dataclass(frozen=True)
class Claim:
    """way: of WAYS; terms: what it is about; by: the smallest effect that counts, 0: any; within:
    of an equivalence; constant: a number that is subtracted from the sum of the terms."""

    says: str
    source: str
    way: str
    terms: tuple[Term, ...]
    by: float = 0.0
    within: float | None = None
    mode: str | None = None
    constant: float = 0.0

    @property
    def differences(self) -> list[tuple[Term, Term | None]]:
        """The terms, each with the one that it is compared with; None: with nothing."""
        pairs: list[tuple[Term, Term | None]] = []
        for term in self.terms:
            last = pairs[-1] if pairs else None
            of_last = (last[0].metric, last[0].block) if last and last[1] is None else None
            if last and of_last == (term.metric, term.block):
                pairs[-1] = (last[0], term)
            else:
                pairs.append((term, None))
        return pairs

    @property
    def metrics(self) -> list[str]:
        return list(dict.fromkeys(term.metric for term in self.terms if term.metric))


def parse_claims(
    nodes: Sequence[Mapping[str, Any]],
    arms: Collection[str],
    baseline: str,
    blocks: Collection[str] = (),
) -> list[Claim]:
    """Parse the claims of a study with these arms and blocks. Raises UserError."""
    return [
        _parse(node, f"study.claims[{index}]", arms, baseline, blocks)
        for index, node in enumerate(nodes)
    ]


def _require_values(node: Mapping[str, Any], where: str) -> None:
    """Raise UserError for a key, or the value of one, that no claim has."""
    if unknown := [key for key in node if key not in KEYS]:
        raise UserError(
            f"{where}: has no key {unknown[0]}; its keys: {', '.join(KEYS)}"
            f"{suggest(unknown[0], KEYS)}"
        )
    for key in ("says", "arm", "is"):
        if not isinstance(node.get(key), str):
            raise UserError(f"{where}: needs {key}, a text")
    way = node["is"]
    if way not in WAYS:
        raise UserError(f"{where}: is={way}: must be {', '.join(WAYS)}{suggest(way, WAYS)}")
    for key in ("by", "within"):
        value = node.get(key)
        if value is not None and number(value) is None:
            raise UserError(f"{where}: {key}={value}: must be a number")
        if value is not None and not value > 0:
            raise UserError(f"{where}: {key}={value}: must be above 0, in units of the metric")
    if (way == "equivalent") != (node.get("within") is not None):
        raise UserError(f"{where}: is=equivalent needs within, a number, and nothing else has it")
    if way == "equivalent" and node.get("by") is not None:
        raise UserError(f"{where}: is=equivalent has no by; within says what counts")
    metric = node.get("metric")
    if metric is not None and not isinstance(metric, str):
        raise UserError(f"{where}: metric={metric}: must be a text")
    if node.get("mode") not in (None, "min", "max"):
        raise UserError(f"{where}: mode={node['mode']}: must be min or max")


def _parse(
    node: Mapping[str, Any],
    where: str,
    arms: Collection[str],
    baseline: str,
    blocks: Collection[str],
) -> Claim:
    _require_values(node, where)
    metric, block = node.get("metric"), node.get("block")
    constant = number(node.get("than"))
    if block is not None and (block := str(block)) not in blocks:
        raise UserError(f"{where}: there is no block {block}{suggest(block, blocks)}")

    def difference(
        of: Mapping[str, Any], metric: str | None, weight: float, block: str | None
    ) -> list[Term]:
        name, than = (of.get(key) for key in ("arm", "than"))
        if than == NOTHING or number(than) is not None:
            return [Term(_arm(name, where, arms, baseline), metric, weight, block)]
        names = [_arm(each, where, arms, baseline) for each in (name, than)]
        if names[0] == names[1]:
            raise UserError(f"{where}: compares {names[0] or baseline} with itself")
        return [Term(names[0], metric, weight, block), Term(names[1], metric, -weight, block)]

    rising, more = node.get("rising_over"), node.get("more_than")
    if node.get("than") == NOTHING and rising is None:
        raise UserError(f"{where}: than=nothing needs rising_over")
    if constant is not None and (rising is not None or more is not None):
        raise UserError(f"{where}: than={constant:g} stands alone, without rising_over, more_than")
    over_blocks = isinstance(rising, Mapping) and set(map(str, rising)) <= set(blocks)
    if rising is not None and (more is not None or (metric is not None and not over_blocks)):
        raise UserError(f"{where}: rising_over stands alone, without more_than and metric")
    if over_blocks and block is not None:
        raise UserError(f"{where}: rising_over names blocks already; leave out block")
    if rising is not None:
        terms = [
            term for name, slope in _slope(rising, where).items()
            for term in (
                difference(node, metric, slope, name) if over_blocks
                else difference(node, name, slope, block)
            )
        ]  # fmt: skip
    else:
        terms = difference(node, metric, 1.0, block)
        if more is not None:
            if not isinstance(more, Mapping) or set(more) - {"arm", "than"}:
                raise UserError(f"{where}: more_than must be {{arm: ..., than: ...}}")
            if number(more.get("than")) is not None:
                raise UserError(f"{where}: more_than: than must be an arm")
            terms += difference(more, metric, -1.0, block)
    return Claim(
        says=node["says"],
        source=str(node.get("source") or ""),
        way=node["is"],
        terms=tuple(terms),
        by=float(node.get("by") or 0.0),
        within=node.get("within"),
        mode=node.get("mode"),
        constant=constant or 0.0,
    )


def number(value: Any) -> float | None:
    """The number, None of anything else: True is none."""
    return None if misfit(value, float) else float(value)


def _arm(name: Any, where: str, arms: Collection[str], baseline: str) -> str | None:
    if name is None or name in ("baseline", baseline, NOTHING):
        return BASELINE
    if name not in arms:
        raise UserError(f"{where}: there is no arm {name}{suggest(str(name), arms)}")
    return str(name)


def _slope(over: Any, where: str) -> dict[str, float]:
    """The weights with which values at these places make the slope of a line through them."""
    if not isinstance(over, Mapping) or len(over) < 2:
        raise UserError(f"{where}: rising_over must be {{METRIC: NUMBER, ...}}, at least two")
    if wrong := [x for x in over.values() if number(x) is None]:
        raise UserError(f"{where}: rising_over: {wrong[0]} is no number")
    mean = sum(over.values()) / len(over)
    squares = sum((x - mean) ** 2 for x in over.values())
    if not squares:
        raise UserError(f"{where}: rising_over: all places are the same")
    return {str(name): (x - mean) / squares for name, x in over.items()}


def recorded(
    nodes: Sequence[Mapping[str, Any]], before: Sequence[Mapping[str, Any]], *, begun: bool
) -> list[dict[str, Any]]:
    """The claims as plan.json holds them: those of the request, then those that were dropped.

    before: those of the existing plan; begun: whether a run of it exists. A claim
    that is new when runs exist is made `after` the fact, and stays so.
    """
    now = datetime.now(UTC).isoformat(timespec="seconds")
    known = {_identity(entry["claim"]): entry for entry in before}
    kept = [
        {**known[_identity(node)], "dropped": False}
        if _identity(node) in known
        else {"claim": dict(node), "made": now, "after": begun, "dropped": False}
        for node in nodes
    ]
    requested = {_identity(node) for node in nodes}
    dropped = [
        {**entry, "dropped": True} for key, entry in known.items() if begun and key not in requested
    ]
    return [*kept, *dropped]


def _identity(node: Mapping[str, Any]) -> str:
    """As plan.json holds it, whose keys are texts: a block may be named by a number."""
    written = json.loads(json.dumps({k: v for k, v in node.items() if v is not None}))
    return json.dumps(written, sort_keys=True)
