"""study.match: set one width of each arm so that it costs as much as the baseline.

Widths that the check rejects, such as a model.dim that the heads do not divide, are skipped. Counts
are made on torch's meta device; nothing is computed.
"""

from collections.abc import Callable, Iterable, Mapping

from omegaconf import DictConfig, OmegaConf

from ablate.config.check import check
from ablate.config.keys import default_of, flatten, to_dict
from ablate.config.rules import Either, Int, Rule
from ablate.config.schema import ruled
from ablate.errors import UserError, suggest
from ablate.study.metric_words import BUDGETS
from ablate.training.build import count_flops
from ablate.training.same_model import MODEL_SIDE, DataSets, on_meta, parameters

NEAR = 0.02  # a difference of this share of the baseline's budget counts as equal
WIDEST = 2**16
REACH = 128  # widths on each side that are searched for an allowed one

Measure = Callable[[DictConfig], int]


def match(
    configs: Mapping[str, DictConfig], *, baseline: str, budget: str, by: str, sets: DataSets
) -> dict[str, int]:
    """Return the width to set by arm; the baseline, and arms near enough to it, keep theirs.

    budget: parameters or flops, of a step; by: the key of a width. Raises a UserError that lists
    every arm that cannot be matched.
    """
    unit = BUDGETS[budget]

    def measure(cfg: DictConfig) -> int:
        task = on_meta(cfg, sets(cfg))
        if budget == "parameters":
            return parameters(task.model)
        return count_flops(cfg, task, task.model)

    target = measure(configs[baseline])
    widths: dict[str, int] = {}
    problems: list[str] = []
    for arm, cfg in configs.items():
        try:
            before = measure(cfg)
        except Exception:  # an arm that cannot be built: `budgets` reports why
            continue
        if _off(before, target) <= NEAR:
            continue
        try:
            _require_own(cfg, configs[baseline], by)
            widths[arm] = _solve(cfg, by, target, measure, unit)
        except UserError as error:
            problems.append(f"arm '{arm}' ({_compared(before, target, unit)}): {error}")
    if problems:
        raise UserError(f"study.match={budget}: {'; '.join(problems)}")
    return widths


def _off(value: int, target: int) -> float:
    return abs(value - target) / target


def _compared(value: int, target: int, unit: str) -> str:
    side = "above" if value > target else "below"
    return f"{value:,} {unit}, {_off(value, target):.1%} {side} the baseline's {target:,}"


def require_width(by: str, configs: Iterable[DictConfig], *, matched: bool) -> None:
    """Raise UserError unless a composition has this key and it takes integers, or nothing is
    matched and the key is the default."""
    if not matched:
        if by != default_of("study.match_by"):
            raise UserError(
                f"study.match_by={by} has no effect without study.match; set study.match to"
                " parameters or flops, or leave study.match_by out"
            )
        return
    widths = dict.fromkeys(
        key
        for cfg in configs
        for key, value, rule in ruled(cfg)  # None: of external code
        if key.split(".")[0] in MODEL_SIDE
        and (type(value) is int if rule is None else _whole(rule))
    )
    if by not in widths:
        raise UserError(
            f"study.match_by={by}: must be an integer of the model: {', '.join(widths)}"
            f"{suggest(by, widths)}"
        )


def _whole(rule: Rule) -> bool:
    return isinstance(rule, Int) or (isinstance(rule, Either) and any(map(_whole, rule.rules)))


def _require_own(cfg: DictConfig, baseline: DictConfig, by: str) -> None:
    """Raise UserError for a key that the arm does not have, or that it sets itself."""
    keys = [*flatten(to_dict(cfg))]
    if by not in keys:
        raise UserError(f"its model has no key study.match_by={by}{suggest(by, keys)}")
    value = OmegaConf.select(cfg, by)
    if value != OmegaConf.select(baseline, by):
        raise UserError(
            f"it sets study.match_by={by} itself; choose another key, such as model.dim"
        )
    if value is not None and not Int().allows(value):
        raise UserError(f"study.match_by={by}: {value!r} is not an integer")


def _solve(cfg: DictConfig, by: str, target: int, measure: Measure, unit: str) -> int:
    widths = Widths(cfg, by, measure)
    low = widths.first_from(1)
    if low is None:
        raise UserError(f"no {by} can be set in it: {widths.reason}")
    high = widths.above(low, target)
    # Rounding may hide the effect of a few steps from the narrowest width.
    wider = high if high > low else widths.first_from(64 * low) or low
    if widths[low] == widths[wider]:
        raise UserError(f"{by} has no influence on it; choose another study.match_by")
    low, high = widths.narrow(low, high, target)
    best = min((low, high), key=lambda width: _off(widths[width], target))
    if _off(widths[best], target) > NEAR:
        raise UserError(
            f"no value of {by} matches the baseline within {NEAR:.0%}; closest: {by}={best} with"
            f" {_compared(widths[best], target, unit)}"
        )
    return best


class Widths:
    """The cost of an arm at each allowed width; it grows with the width."""

    def __init__(self, cfg: DictConfig, by: str, measure: Measure) -> None:
        self.cfg, self.by, self.measure = cfg, by, measure
        self.known: dict[int, int | None] = {}
        self.reason = ""

    def __getitem__(self, width: int) -> int:
        value = self.get(width)
        assert value is not None
        return value

    def get(self, width: int) -> int | None:
        """Return the cost at a width; None if the width is rejected."""
        if width not in self.known:
            try:
                cfg = self.cfg.copy()
                OmegaConf.update(cfg, self.by, width)
                check(cfg)
                self.known[width] = self.measure(cfg)
            except UserError as error:
                self.known[width], self.reason = None, self.reason or str(error)
        return self.known[width]

    def first_from(self, width: int) -> int | None:
        within = range(width, width + REACH)
        return next((candidate for candidate in within if self.get(candidate) is not None), None)

    def above(self, low: int, target: int) -> int:
        """Return a width that costs at least the target, or the widest one found."""
        high = low
        while self[high] < target and high < WIDEST:
            wider = self.first_from(4 * high)
            if wider is None:
                break
            high = wider
        return high

    def narrow(self, low: int, high: int, target: int) -> tuple[int, int]:
        """Return neighboring widths on both sides of the target, if it lies between the two.

        Guesses alternate between linear interpolation and bisection: the first is exact for a
        feed-forward layer, the second is fast for costs that grow with the square of the width.
        """
        line = True
        while True:
            rise = self[high] - self[low]
            share = (target - self[low]) / rise if line and rise else 0.5
            guess = low + round(min(max(share, 0.0), 1.0) * (high - low))
            between = self._nearest(guess, low, high)
            if between is None:
                return low, high
            low, high = (between, high) if self[between] < target else (low, between)
            line = not line

    def _nearest(self, guess: int, low: int, high: int) -> int | None:
        order = sorted(range(guess - REACH, guess + REACH + 1), key=lambda w: abs(w - guess))
        return next((w for w in order if low < w < high and self.get(w) is not None), None)
