"""Rules that replace human annotators: each maps a text to a score; higher is better.

No human preferences ship with any package, so generated preferences are those of a rule. Unlike
people's taste it is known exactly: a reward model, and a model trained on it, can be measured
against it (the "gold" reward of Gao et al. 2022, https://arxiv.org/abs/2210.10760).
"""

import re
from collections.abc import Callable
from typing import Literal

WORD = re.compile(r"[^\W\d_]{2,}")


def letters(text: str) -> float:
    """Letters in ten characters. Each counts by itself, so that nothing but letters raises it."""
    return 10 * sum(character.isalpha() for character in text) / max(1, len(text))


def words(text: str) -> float:
    """Different words of two letters or more. A reward model sees few texts that repeat themselves
    and may take any word for a good one: a model trained on it can repeat one word."""
    return float(len({word.lower() for word in WORD.findall(text)}))


RuleName = Literal["letters", "words"]
RULES: dict[str, Callable[[str], float]] = {"letters": letters, "words": words}
