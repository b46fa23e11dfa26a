"""Claims: hypotheses registered before the first run of a study (study.claims).

    study:
      claims:
        - statement: Attention beats a fixed context vector on long sources.
          source: Bahdanau et al. 2015, figure 2
          arm: model.attention=additive       # as the plan names it
          versus: model.attention=none        # null: the baseline; or a number
          direction: better                   # better, worse, higher, lower, equivalent
          min_effect: 0.05                    # the smallest effect that counts; null: any
        - statement: The two scores differ by less than 0.02 nats.
          arm: model.attention=dot
          direction: equivalent
          margin: 0.02
        - statement: Post-norm needs a warm-up more than pre-norm does.
          arm: model.norm=post schedule.warmup=0
          versus: model.norm=post
          direction: worse
          more_than: {arm: schedule.warmup=0, versus: null}
        - statement: The loss rises beyond the length of training.
          arm: pos_enc=sinusoidal
          versus: nothing                     # its own values, not the difference from another arm
          direction: higher
          rising_over: {val/loss: 0, val/loss@long: 1}   # the slope of a line through them
        - statement: This reaches the published loss.
          arm: baseline
          versus: 1.88                        # a number
          direction: equivalent
          margin: 0.05
        - statement: The gap grows with the number of pairs.
          arm: model.mixer=retention
          direction: worse
          rising_over: {val/accuracy/4_pairs: 4, val/accuracy/8_pairs: 8, val/accuracy/16_pairs: 16}

In a study with blocks (study.blocks) a claim is about the mean over them, or about one with
`block: NAME`; rising_over may name blocks, {16: 16, 64: 64}.

On a ladder of four sizes or more (study.ladder), `metric: effective_compute` with a block is the
baseline's compute for the arm's loss, as a multiple of the arm's, and
`metric: effective_compute_growth` how its logarithm to base 2 changes with each doubling of FLOPs:

        - statement: At 30M rotary positions are worth 1.1 times the compute.
          arm: pos_enc=rotary
          metric: effective_compute
          block: 30M
          versus: 1.1
          direction: higher

Any other claim is about one number for each seed: a sum of values of arms times weights, less a
constant. A claim is fixed with the plan; one that is added or changed when runs exist is
permanently marked.
"""

from __future__ import annotations

import json
from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass
from datetime import UTC, datetime
from typing import Any

from ablate.errors import UserError, suggest
from ablate.run_files.shape import schema_error

DIRECTIONS = ("better", "worse", "higher", "lower", "equivalent")
KEYS = (
    "statement", "source", "arm", "versus", "direction", "min_effect", "margin", "metric", "mode",
    "more_than", "rising_over", "block",
)  # fmt: skip
LEAST = 4  # sizes of a scaling law, which has three parameters
BASELINE = None
COMPUTE, GROWTH = "effective_compute", "effective_compute_growth"
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
    """direction: one of DIRECTIONS; terms: summed with their weights; min_effect: the smallest
    effect that counts, 0: any; margin: of an equivalence; constant: subtracted from the sum."""

    statement: str
    source: str
    direction: str
    terms: tuple[Term, ...]
    min_effect: float = 0.0
    margin: float | None = None
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
    def of_ladder(self) -> bool:
        """Whether it is about effective compute, which no run measures."""
        return self.terms[0].metric in (COMPUTE, GROWTH)

    @property
    def metrics(self) -> list[str]:
        names = dict.fromkeys(term.metric for term in self.terms if term.metric)
        return [] if self.of_ladder else [*names]


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
    """Raise UserError for an unknown key or an invalid value."""
    if unknown := [key for key in node if key not in KEYS]:
        raise UserError(
            f"{where}: unknown key {unknown[0]} (valid: {', '.join(KEYS)})"
            f"{suggest(unknown[0], KEYS)}"
        )
    for key in ("statement", "arm", "direction"):
        if not isinstance(node.get(key), str):
            raise UserError(f"{where}: needs {key}, a string")
    direction = node["direction"]
    if direction not in DIRECTIONS:
        raise UserError(
            f"{where}: direction={direction}: must be {', '.join(DIRECTIONS)}"
            f"{suggest(direction, DIRECTIONS)}"
        )
    for key in ("min_effect", "margin"):
        value = node.get(key)
        if value is not None and number(value) is None:
            raise UserError(f"{where}: {key}={value}: must be a number")
        if value is not None and not value > 0:
            raise UserError(f"{where}: {key}={value}: must be above 0, in units of the metric")
    if (direction == "equivalent") != (node.get("margin") is not None):
        raise UserError(
            f"{where}: direction=equivalent requires `margin`, a number; other directions do not"
            " take it"
        )
    if direction == "equivalent" and node.get("min_effect") is not None:
        raise UserError(f"{where}: direction=equivalent takes `margin` instead of `min_effect`")
    metric = node.get("metric")
    if metric is not None and not isinstance(metric, str):
        raise UserError(f"{where}: metric={metric}: must be a string")
    if node.get("mode") not in (None, "min", "max"):
        raise UserError(f"{where}: mode={node['mode']}: must be min or max")


def _require_ladder(node: Mapping[str, Any], where: str, blocks: Collection[str]) -> None:
    """Raise UserError for a claim about effective compute that a ladder cannot decide."""
    metric, block = node.get("metric"), node.get("block")
    if metric not in (COMPUTE, GROWTH):
        return
    if len(blocks) < LEAST:
        raise UserError(f"{where}: metric={metric} needs {LEAST} sizes (study.ladder)")
    if node["direction"] not in ("higher", "lower") or number(node.get("versus")) is None:
        raise UserError(f"{where}: metric={metric} needs versus, a number, and higher or lower")
    if wrong := [key for key in ("min_effect", "more_than", "rising_over") if node.get(key)]:
        raise UserError(f"{where}: metric={metric} cannot be combined with {wrong[0]}")
    if node.get("arm") in (None, "baseline", NOTHING):
        raise UserError(f"{where}: metric={metric} needs arm, another than the baseline")
    if (block is None) == (metric == COMPUTE):
        needs = "needs block, a size" if metric == COMPUTE else "is of all sizes; leave block out"
        raise UserError(f"{where}: metric={metric} {needs}")


def _parse(
    node: Mapping[str, Any],
    where: str,
    arms: Collection[str],
    baseline: str,
    blocks: Collection[str],
) -> Claim:
    _require_values(node, where)
    _require_ladder(node, where, blocks)
    metric, block = node.get("metric"), node.get("block")
    constant = number(node.get("versus"))
    if block is not None and (block := str(block)) not in blocks:
        raise UserError(f"{where}: unknown block {block}{suggest(block, blocks)}")

    def difference(
        of: Mapping[str, Any], metric: str | None, weight: float, block: str | None
    ) -> list[Term]:
        name, other = (of.get(key) for key in ("arm", "versus"))
        if other == NOTHING or number(other) is not None:
            return [Term(_arm(name, where, arms, baseline), metric, weight, block)]
        names = [_arm(each, where, arms, baseline) for each in (name, other)]
        if names[0] == names[1]:
            raise UserError(f"{where}: compares {names[0] or baseline} with itself")
        return [Term(names[0], metric, weight, block), Term(names[1], metric, -weight, block)]

    rising, more = node.get("rising_over"), node.get("more_than")
    if node.get("versus") == NOTHING and rising is None:
        raise UserError(f"{where}: versus=nothing requires rising_over")
    if constant is not None and (rising is not None or more is not None):
        raise UserError(
            f"{where}: versus={constant:g} cannot be combined with rising_over or more_than"
        )
    over_blocks = isinstance(rising, Mapping) and set(map(str, rising)) <= set(blocks)
    if rising is not None and (more is not None or (metric is not None and not over_blocks)):
        raise UserError(f"{where}: rising_over cannot be combined with more_than or metric")
    if over_blocks and block is not None:
        raise UserError(f"{where}: `block` cannot be combined with rising_over of blocks")
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
            if not isinstance(more, Mapping) or set(more) - {"arm", "versus"}:
                raise UserError(f"{where}: more_than must be {{arm: ..., versus: ...}}")
            if number(more.get("versus")) is not None:
                raise UserError(f"{where}: more_than: versus must be an arm")
            terms += difference(more, metric, -1.0, block)
    return Claim(
        statement=node["statement"],
        source=str(node.get("source") or ""),
        direction=node["direction"],
        terms=tuple(terms),
        min_effect=float(node.get("min_effect") or 0.0),
        margin=node.get("margin"),
        mode=node.get("mode"),
        constant=constant or 0.0,
    )


def number(value: Any) -> float | None:
    """The number, None of anything else: True is none."""
    return None if schema_error(value, float) else float(value)


def _arm(name: Any, where: str, arms: Collection[str], baseline: str) -> str | None:
    if name is None or name in ("baseline", baseline, NOTHING):
        return BASELINE
    if name not in arms:
        raise UserError(f"{where}: unknown arm {name}{suggest(str(name), arms)}")
    return str(name)


def _slope(over: Any, where: str) -> dict[str, float]:
    """The weights whose sum with values at these x is the slope of the least-squares line."""
    if not isinstance(over, Mapping) or len(over) < 2:
        raise UserError(
            f"{where}: rising_over must be {{METRIC: X, ...}} with at least two metrics or blocks"
        )
    if wrong := [x for x in over.values() if number(x) is None]:
        raise UserError(f"{where}: rising_over: {wrong[0]} is not a number")
    mean = sum(over.values()) / len(over)
    squares = sum((x - mean) ** 2 for x in over.values())
    if not squares:
        raise UserError(f"{where}: rising_over: all x values are the same")
    return {str(name): (x - mean) / squares for name, x in over.items()}


def recorded(
    nodes: Sequence[Mapping[str, Any]], before: Sequence[Mapping[str, Any]], *, begun: bool
) -> list[dict[str, Any]]:
    """The claims as stored in plan.json: those of the request, then those that were dropped.

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
    """As stored in plan.json, with strings as keys: a block may be named by a number."""
    written = json.loads(json.dumps({k: v for k, v in node.items() if v is not None}))
    return json.dumps(written, sort_keys=True)
