"""A combination that is refused."""

from collections.abc import Callable
from dataclasses import dataclass

from ablate.config.facts import Facts


@dataclass(frozen=True)
class Conflict:
    """`says` names the overrides; {model.heads} stands for a value, {:name} for a fact.

    without_effect: the parts go together, but one has nothing to act on; where layers differ, this
    must be so in all of them.
    """

    when: Callable[[Facts], bool]
    says: str
    without_effect: bool = False
