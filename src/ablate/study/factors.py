"""study.factors as a person writes it: KEY: [OPTION, ..], or NAME: {OPTION: [OVERRIDE, ..]}."""

from collections.abc import Mapping
from typing import Any

from ablate.errors import UserError
from ablate.study.override import key_of, parse, value_text
from ablate.study.plan import Factor

NO_FACTOR = ("study", "hydra", "output_dir", "logger", "checkpoint_every", "sweep")


def read_factor(name: str, given: Any) -> Factor:
    """One entry: a key and its options, or a name and for each option the overrides that it moves.
    Raises UserError."""
    where = f"study.factors: {name}"
    if name == "seed":
        raise UserError(f"{where}: the seeds of a study are study.seeds")
    if name.split(".")[0].split("/")[0] in NO_FACTOR and not isinstance(given, dict):
        raise UserError(f"{where}: changes no result, so it is no factor")
    options = _named(where, given) if isinstance(given, dict) else _listed(name, given, where)
    if not options:
        raise UserError(f"{where} has no options; list them, as in [additive, dot]")
    return Factor(name, options)


def _listed(name: str, given: Any, where: str) -> dict[str, tuple[str, ...]]:
    texts = [value_text(value) for value in (given if isinstance(given, list) else [given])]
    if twice := [text for number, text in enumerate(texts) if text in texts[:number]]:
        raise UserError(f"{where}: has the option {twice[0]} twice")
    parse(f"{name}=0", where)
    return {text: (f"{name}={text}",) for text in texts}


def _named(where: str, given: Mapping[Any, Any]) -> dict[str, tuple[str, ...]]:
    """option: [overrides], or option: override."""
    options: dict[str, tuple[str, ...]] = {}
    for key, texts in given.items():
        option = _label(key)
        listed = [texts] if isinstance(texts, str) else texts
        if not isinstance(listed, list) or not all(isinstance(text, str) for text in listed):
            raise UserError(f"{where}: {option} must be a list of overrides, [KEY=VALUE, ...]")
        lines = [parse(text, f"{where}: {option}").input_line or "" for text in listed]
        keys = [key_of(line) for line in lines]
        if twice := [key for number, key in enumerate(keys) if key in keys[:number]]:
            raise UserError(f"{where}: {option} sets {twice[0]} twice")
        if hidden := [key for key in keys if key == "seed" or key.split(".")[0] in NO_FACTOR]:
            raise UserError(f"{where}: {option} sets {hidden[0]}, which no factor may")
        options[option] = tuple(lines)
    return options


def _label(option: Any) -> str:
    """The name of an option as it stands in a file: `off`, a boolean in YAML, is false."""
    return option if isinstance(option, str) else value_text(option)


def which(option: Any, options: Mapping[str, Any]) -> str:
    """The option of a factor that study.exclude names: a value, or the name of a named one."""
    return _label(option) if _label(option) in options else value_text(option)
