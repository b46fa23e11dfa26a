"""A run's model, and its differences from the model's defaults, in a few words."""

from collections.abc import Mapping
from functools import lru_cache
from typing import Any

from ablate.config.composition import unchecked
from ablate.config.keys import flatten, shown, to_dict
from ablate.config.run_id import EXCLUDED
from ablate.errors import UserError

# Keys outside the configuration itself, or named separately.
APART = {*EXCLUDED, "seed", "ablate", "parameters"}


def short_name(config: Mapping[str, Any]) -> str:
    """Such as "gpt attention=additive lr=0.003 seed 0". config: resolved, with its `choices`.

    Of an experiment, the differences from it. Of a custom model, whose defaults are not known here,
    its options.
    """
    choices = config["choices"]
    experiment = [f"experiment={choices['experiment']}"] if choices.get("experiment") else []
    words = [f"{key.rpartition('.')[2]}={shown(value)}" for key, value in differing(config).items()]
    return " ".join([choices["model"], *experiment, *words, f"seed {config['seed']}"])


def differing(config: Mapping[str, Any]) -> dict[str, Any]:
    """The options that the model or the experiment does not bring, and the values that these
    options do not."""
    choices = config["choices"]
    brought = [f"{g}={choices[g]}" for g in ("model", "experiment") if choices.get(g)]
    usual = _composed(*brought).get("choices", {})
    groups = {g: o for g, o in choices.items() if g not in APART and o != usual.get(g)}
    options = {g: o for g, o in groups.items() if g not in ("model", "experiment")}
    typed = [f"{g}={'null' if o is None else o}" for g, o in options.items()]
    # Without those of options that are not ours.
    known = _composed(*brought, *typed)
    defaults = flatten(dict(known or _composed(*brought)))
    skipped = () if known else groups
    changed = {
        key: value
        for key, value in flatten(dict(config)).items()
        if not {key, key.partition(".")[0]} & APART
        and not any(key == group or key.startswith(f"{group}.") for group in skipped)
        and not key.endswith("_target_")
        and key in defaults
        and value != defaults[key]
    }
    return options | changed


@lru_cache(64)  # of many runs with the same options
def _composed(*overrides: str) -> Mapping[str, Any]:
    """Their composition, not checked; empty if they are unknown here."""
    try:
        return to_dict(unchecked(*overrides))
    except UserError:
        return {}
