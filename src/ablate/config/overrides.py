"""Override strings, `key=value`: read and written with Hydra's grammar."""

import re
from collections.abc import Iterable, Mapping, Sequence
from functools import lru_cache
from itertools import product
from typing import Any

from hydra.core.config_loader import ConfigLoader
from hydra.core.override_parser.overrides_parser import OverridesParser
from hydra.core.override_parser.types import Override, Quote, QuotedString, RangeSweep
from hydra.errors import HydraException

from ablate.errors import UserError

_PLAIN = re.compile(r"[A-Za-z_/][A-Za-z0-9_./-]*")
_SPECIAL = re.compile(r"[\\()\[\]{}:=, \t]")
_PATH = re.compile(r"[^\s'\"\\,\[\]{}()$]*/[^\s'\"\\,\[\]{}()$]*")
MOST = 10_000  # values of one key, and seeds of a study
# study.arms=[model.attention=dot]: the names of arms have = in them, or are options, such as 4.
_ARMS = re.compile(r"(\+*study\.arms)=\[([^\[\]{}'\"]*)\]")
# study.factors.model.attention=[dot]: keys of these nodes are keys of the config, dots included.
_DOTTED = re.compile(r"\+*(study\.(?:factors|blocks|tune))\.([\w.]+)=(\[.*\])")
# Values after commas, or a list. Some are not strings to Hydra: 2024_05, 1e3, nan, true.
_LISTED = re.compile(r"[^\[\]{}()'\"\\$]+|\[[^\[\]{}()'\"\\$]*\]")
_LITERAL = re.compile(
    r"(?<![^,\[\s])[-+]?(?:\d[\d_]*(?:\.[\d_]*)?(?:e[-+]?[\d_]+)?|\.\d[\d_]*(?:e[-+]?[\d_]+)?|inf|nan"
    r"|true|false)(?![^,\]\s])",
    re.IGNORECASE,
)
# Short spellings of keys that are read by the mixer, in overrides and in files.
ALIASES = {
    f"model.{key}": f"model.mixer.{key}"
    for key in ("kv_heads", "qk_norm", "softcap", "sink", "output_gate")
}
_ALIAS = re.compile(rf"(?<![\w./-])({'|'.join(map(re.escape, ALIASES))})(?=\s*[=:])")
# Names of keys that are texts, also if they look like numbers.
_TEXT_KEY = re.compile(
    r"(?:.+\.)?(?:(?:\w+_)?(?:dir|source|target)|init_from|name|path|root|subdir|project|entity"
    r"|group|job_type|tags|notes|sha256)"
)
_NOT_TEXT = {"null", "true", "false", "inf", "nan"}  # unquoted


def in_full(text: str) -> str:
    """An override, or a text with several, without short spellings of keys."""
    return _ALIAS.sub(lambda match: ALIASES[match[0]], text)


def quote_override(text: str) -> str:
    """An override in Hydra's grammar: quoted if it is a path with = or ~, such as a run's folder,
    the name of an arm, or a string that looks like a number; a factor of a study as the item of a
    mapping. Keys are in full."""
    text = in_full(text)
    if dotted := _DOTTED.fullmatch(text):
        node, name, options = dotted.groups()
        return in_full(f"++{node}={{{name}:{options}}}")  # also of one that does not exist
    if arms := _ARMS.fullmatch(text):
        quoted = re.sub(r"[^\s,](?:[^,]*[^\s,])?", r"'\g<0>'", arms[2])
        return f"{arms[1]}=[{quoted}]"
    key, _, value = text.partition("=")
    if {"=", "~"} & {*value} and _PATH.fullmatch(value):
        return f"{key}='{value}'"
    if _TEXT_KEY.fullmatch(key_of(text)) and _LISTED.fullmatch(value):
        return f"{key}=" + _LITERAL.sub(r"'\g<0>'", value)
    return text


def parse_all(texts: Iterable[str], loader: ConfigLoader | None = None) -> list[Override]:
    """Parse overrides. Raises HydraException. loader: finds the options that glob(*) names."""
    return [_parsed(quote_override(text), loader) for text in texts]


@lru_cache(maxsize=1_000)
def _parsed(text: str, loader: ConfigLoader | None) -> Override:
    """An override is parsed to be checked and again to be composed: a millisecond each time."""
    return OverridesParser.create(config_loader=loader).parse_overrides([text])[0]


def parse(text: str) -> Override:
    """Parse one override. Raises UserError."""
    try:
        return parse_all([text])[0]
    except HydraException as error:
        # Of a function; other messages of Hydra are about its grammar.
        said = re.search(r"while evaluating .*?': (.*)", " ".join(str(error).split()))
        reason = f": {said[1]}" if said else ""
        if any(text.count(quote) % 2 for quote in "'\""):
            reason = ": a quote is not closed"
        raise UserError(
            f"cannot read '{text}'{reason}; write KEY=VALUE, or quote a string: \"KEY='TEXT'\""
        ) from error


def require_few(override: Override) -> None:
    """Count the values of KEY=range(..) before they are made. Raises UserError."""
    span = override.value()
    if not isinstance(span, RangeSweep) or span.start is None or span.stop is None:
        return
    if not span.step:
        raise UserError(f"'{override.input_line}': the step of a range must not be 0")
    if not (span.stop - span.start) / span.step <= MOST:
        raise UserError(f"'{override.input_line}' names more than {MOST:,} values")


def parse_one(text: object, where: str) -> Override:
    """Parse an override with one value, or raise a UserError with the prefix `where`."""
    try:
        override = parse(str(text))
    except UserError as error:
        raise UserError(f"{where}: {error}") from error
    if override.is_sweep_override():
        raise UserError(f"{where}: '{text}' names several values, and only one is allowed here")
    return override


def values_of(arguments: list[str]) -> dict[str, list[Any]]:
    """Map each key to its values: `data.seq_len=64,128` has two."""
    values: dict[str, list[Any]] = {}
    for override in map(parse, arguments):
        if override.is_delete() or override.is_add():
            raise UserError(f"{override.input_line}: only KEY=VALUE is supported here")
        require_few(override)
        sweep = override.is_sweep_override()
        alternatives = list(override.sweep_iterator()) if sweep else [override.value()]
        if not alternatives:
            raise UserError(f"'{override.input_line}' names no value")
        values[override.key_or_group] = alternatives
    return values


def variants(values: dict[str, list[Any]]) -> list[dict[str, Any]]:
    """Return every combination of the values as a dictionary; one empty one if there are none."""
    return [dict(zip(values, row, strict=True)) for row in product(*values.values())]


def key_of(text: str) -> str:
    """Return the key of an override: `model.heads` of `++model.heads=4`."""
    return text.partition("=")[0].lstrip("+~")


def merged(*groups: Iterable[str]) -> tuple[str, ...]:
    """Merge overrides; of those that set the same key, keep the last."""
    by_key: dict[str, str] = {}
    for text in (text for group in groups for text in group):
        by_key.pop(key_of(text), None)
        by_key[key_of(text)] = text
    return tuple(by_key.values())


def value_text(value: Any) -> str:
    """Write a value as in an override, after `key=`: Hydra's parser reads the same value.

    Not of a mapping whose key is a text that looks like another value, such as "true": Hydra's
    grammar has no quotes for keys.
    """
    if value is None or isinstance(value, bool):
        return {None: "null", True: "true", False: "false"}[value]
    if isinstance(value, str):
        plain = _PLAIN.fullmatch(value) and value.lower() not in _NOT_TEXT
        return value if plain else QuotedString(text=value, quote=Quote.double).with_quotes()
    if isinstance(value, Mapping):
        keys = (_SPECIAL.sub(r"\\\g<0>", str(key)) for key in value)
        items = map(value_text, value.values())
        return "{" + ",".join(map(":".join, zip(keys, items, strict=True))) + "}"
    if isinstance(value, Sequence):
        return "[" + ",".join(map(value_text, value)) + "]"
    return str(value)


def equal(first: Any, second: Any) -> bool:
    """Whether two values of a key are the same: 1 and 1.0 are, 1 and true are not."""
    if isinstance(first, bool) or isinstance(second, bool):
        return first is second
    if isinstance(first, list) and isinstance(second, list):
        return len(first) == len(second) and all(map(equal, first, second))
    return bool(first == second)
