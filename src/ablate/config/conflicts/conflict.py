"""A combination that is refused."""

from collections.abc import Callable
from dataclasses import dataclass

from ablate.config.facts import Facts


@dataclass(frozen=True)
class Conflict:
    """`says` names the overrides; {model.heads} stands for a value, {:name} for a fact."""

    when: Callable[[Facts], bool]
    says: str
