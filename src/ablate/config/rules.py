"""Rules for the values of a key; the text of a rule describes the valid values.

The names at the end are annotations of a part's parameters: `dropout: Share`.
"""

import math
from collections.abc import Mapping
from ctypes import c_float
from dataclasses import dataclass
from typing import Annotated, Protocol, runtime_checkable

from omegaconf import ListConfig

from ablate.config.overrides import value_text
from ablate.errors import suggest


@runtime_checkable
class Rule(Protocol):
    def allows(self, value: object) -> bool: ...

    def __str__(self) -> str: ...


@dataclass(frozen=True)
class Int:
    """An integer from `least` to `most`; true and 4.0 are not."""

    least: float = -math.inf
    most: float = math.inf

    def allows(self, value: object) -> bool:
        if not isinstance(value, int) or isinstance(value, bool):
            return False
        return self.least <= value <= self.most

    def __str__(self) -> str:
        ends = [f"of at least {self.least}"] if self.least > -math.inf else []
        ends += [f"of at most {self.most:,}"] if self.most < math.inf else []
        return " ".join(["an integer", " and ".join(ends)]).rstrip()


@dataclass(frozen=True)
class Real:
    """A finite number from `least` to `most`; the ends can be excluded.

    The rule also applies in single precision, since models compute in it: 1e-320 is 0 there.
    """

    least: float = -math.inf
    most: float = math.inf
    above: bool = False
    below: bool = False

    def allows(self, value: object) -> bool:
        if not isinstance(value, int | float) or isinstance(value, bool):
            return False
        return self._holds(single(value)) and self._holds(value)

    def _holds(self, value: float) -> bool:
        low = value > self.least if self.above else value >= self.least
        high = value < self.most if self.below else value <= self.most
        return low and high and math.isfinite(value)

    def __str__(self) -> str:
        low = f"{'more than' if self.above else 'of at least'} {self.least:g}"
        high = f"{'less than' if self.below else 'of at most'} {self.most:g}"
        ends = [low] * (self.least > -math.inf) + [high] * (self.most < math.inf)
        kind = "a number" if len(ends) == 2 else "a finite number"
        return " ".join([kind, " and ".join(ends)]).rstrip()


@dataclass(frozen=True)
class String:
    text: str = "a text"

    def allows(self, value: object) -> bool:
        return isinstance(value, str) and bool(value.strip())

    def __str__(self) -> str:
        return self.text


@dataclass(frozen=True)
class RunFolder(String):
    """The folder of a finished run, whose weights count in the id of the run that names it."""

    text: str = "the folder of a run"


@dataclass(frozen=True)
class WeightsFile(RunFolder):
    """A file of weights, which also count in the id."""

    text: str = "a file of weights"


@dataclass(frozen=True)
class Below:
    """A path that stays inside `folder`."""

    folder: str

    def allows(self, value: object) -> bool:
        return (
            isinstance(value, str)
            and not value.startswith(("/", "~"))
            and not {"", ".", ".."} & set(value.split("/"))
        )

    def __str__(self) -> str:
        return f"a name of a folder inside of {self.folder}, without '..'"


@dataclass(frozen=True)
class OneOf:
    options: tuple[str | int | None, ...]

    def allows(self, value: object) -> bool:
        return any(value == one and type(value) is type(one) for one in self.options)

    def __str__(self) -> str:
        *most, last = (one if isinstance(one, str) else value_text(one) for one in self.options)
        return f"{', '.join(most)} or {last}" if most else last


@dataclass(frozen=True)
class Named:
    """An external name: `prefix`, then a name or path. form: of the name, in messages."""

    prefix: str
    form: str = "NAME_OR_PATH"

    def allows(self, value: object) -> bool:
        return isinstance(value, str) and value.startswith(self.prefix) and value != self.prefix

    def __str__(self) -> str:
        return f"{self.prefix}{self.form}"


@dataclass(frozen=True)
class ListOf:
    """A list, of `length` items if that is fixed, else of at least `least`."""

    item: Rule
    length: int | None = None
    least: int = 1

    def allows(self, value: object) -> bool:
        if not isinstance(value, list | tuple | ListConfig) or len(value) < self.least:
            return False
        right_length = self.length is None or len(value) == self.length
        return right_length and all(self.item.allows(item) for item in value)

    def __str__(self) -> str:
        count = "" if self.length is None else f"{self.length} items, each "
        return f"a list [..] of {count}{self.item}"


@dataclass(frozen=True)
class Keys:
    """A node with free keys, which are strings; its reader checks its content."""

    def allows(self, value: object) -> bool:
        return isinstance(value, Mapping) and all(isinstance(key, str) for key in value)

    def __str__(self) -> str:
        return "{NAME: VALUE, ...} with names that are not numbers"


@dataclass(frozen=True)
class Either:
    rules: tuple[Rule, ...]

    def allows(self, value: object) -> bool:
        return any(rule.allows(value) for rule in self.rules)

    def __str__(self) -> str:
        return ", or ".join(str(rule) for rule in self.rules)


BOOL, NULL = OneOf((True, False)), OneOf((None,))
# The rule that a type is.
OF_TYPE: dict[type, Rule] = {bool: BOOL, int: Int(), float: Real(), str: String()}


def names_run(rule: Rule | None) -> bool:
    """Whether a value that is a text is the folder of a run."""
    return any(isinstance(each, RunFolder) for each in alternatives(rule))


def alternatives(rule: Rule | None) -> tuple[Rule | None, ...]:
    """The rules, at least one of them must allow a value."""
    return rule.rules if isinstance(rule, Either) else (rule,)


def single(value: float) -> float:
    """The nearest number of single precision; infinity for a number beyond all of them."""
    try:
        return c_float(value).value
    except OverflowError:  # an integer beyond double precision
        return math.copysign(math.inf, value)


# Values of other tools, and their equivalents here.
MEANT = {"logger.mode=disabled": "logger=none logs nothing"}
# The kind of string of these keys.
ONE_FILE = "the path or URL of one file"
TEXTS = {"data.root": "the path of one folder", "data.path": ONE_FILE} | {
    f"data.{split}{side}": ONE_FILE
    for split in ("", "val_", "test_")
    for side in ("source", "target")
}
# Examples of values that are neither numbers nor names.
EXAMPLES = {
    "study.baseline": "[model.attention=dot]",
    "study.factors": "{model.attention: [dot, additive]}",
    "study.blocks": "{data.seq_len: [64, 128]}",
    "study.tune": "{optimizer.lr: [1e-3, 3e-3]}",
    "study.seeds": "3",
    "study.tune_seeds": "3",
    "study.arms": "[dot, additive]",
}


def refusal(path: str, value: object, rule: Rule) -> str:
    """Return the error for a value that its rule does not allow, with the nearest valid name."""
    near = suggest(str(value), names_of(rule)) if isinstance(value, str) else ""
    if isinstance(value, float) and value != (rounded := single(value)) in (0, 1, math.inf):
        near = f", and this is {rounded:g} in single precision"
    if isinstance(value, bool | int | float) and rule.allows(str(value)):
        near = "; in a file write it in quotes"
    text = f"{path}={value_text(value)}"
    if path in EXAMPLES:
        near = f"; write {path}={EXAMPLES[path]}"
    if text in MEANT:
        near = f"; {MEANT[text]}"
    allowed = str(rule).replace(str(String()), TEXTS.get(path, str(String())))
    return f"{text}: must be {allowed}{near}"


def names_of(rule: Rule) -> list[str]:
    every = [n for each in alternatives(rule) if isinstance(each, OneOf) for n in each.options]
    return [name for name in every if isinstance(name, str)]


HUGGING_FACE = "hf:"  # prefix of names on the Hugging Face Hub
# The largest published ones or more; larger ones would take minutes to be rejected for their
# memory.
TOKENS = 10**6  # of a vocabulary
PIXELS = 2**14  # of a side
PROCESSES = 1024

RunDir = Annotated[str, RunFolder()]
HubName = Annotated[str, Named(HUGGING_FACE)]  # of pretrained weights
Count = Annotated[int, Int(1, 2**31 - 1)]  # the product of two of them still fits in 64 bits
Seed = Annotated[int, Int(0, 2**63 - 1)]
Processes = Annotated[int, Int(1, PROCESSES)]
Depth = Annotated[int, Int(1, 1000)]  # DeepNet, Wang et al. 2022, https://arxiv.org/abs/2203.00555
Width = Annotated[int, Int(1, 2**24)]
Vocabulary = Annotated[int, Int(1, TOKENS)]
Positive = Annotated[float, Real(0, above=True)]
NotNegative = Annotated[float, Real(0)]
Share = Annotated[float, Real(0, 1, below=True)]  # of units dropped, of labels smoothed
Fraction = Annotated[float, Real(0, 1, above=True, below=True)]  # some and not all
Probability = Annotated[float, Real(0, 1)]
