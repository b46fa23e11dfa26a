"""The rules of values.py for people who make a data set in Python, without the command line."""

from typing import TypeVar

from ablate.errors import UserError
from ablate.rules import Int, Rule, refusal
from ablate.values import rule_of

Value = TypeVar("Value")


def checked(key: str, value: Value, rule: Rule | None = None) -> Value:
    """`value`, if the rule of `data.KEY` allows it; a data set that takes less gives its `rule`."""
    path = f"data.{key}"
    rule = rule or rule_of(path)
    assert rule is not None, f"values.py has no rule for {path}"
    if not rule.allows(value):
        raise UserError(refusal(path, value, rule))
    return value


def examples(*, least: int = 1, **counts: int) -> dict[str, int]:
    """How many examples each split of made data has: train=... is `data.train_examples`."""
    return {split: checked(f"{split}_examples", n, Int(least)) for split, n in counts.items()}
