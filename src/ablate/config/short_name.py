"""A run's model, and what differs from the model's defaults, in a few words."""

from collections.abc import Mapping
from typing import Any

from ablate.config.composition import compose
from ablate.config.keys import flatten, plain, shown
from ablate.config.run_id import EXCLUDED
from ablate.errors import UserError

# What is not of the configuration itself, or is said apart.
APART = {*EXCLUDED, "seed", "ablate", "parameters"}


def short_name(config: Mapping[str, Any]) -> str:
    """Such as "gpt attention=additive lr=0.003 seed 0". config: resolved, with its `choices`.

    Of an experiment, what differs from it. Of a model that is not ours, whose defaults are not
    known here, its options.
    """
    choices = config["choices"]
    experiment = [f"experiment={choices['experiment']}"] if choices.get("experiment") else []
    try:
        base = plain(compose(f"model={choices['model']}", *experiment))
    except UserError:
        base = {"choices": {}}
    usual = base["choices"]
    groups = {g: o for g, o in choices.items() if g not in APART and o != usual.get(g)}
    defaults = flatten(base)
    changed = {
        key: value
        for key, value in flatten(dict(config)).items()
        if not {key, key.partition(".")[0]} & APART
        and not any(key == group or key.startswith(f"{group}.") for group in groups)
        and not key.endswith("_target_")
        and key in defaults
        and value != defaults[key]
    }
    named = {**{g: o for g, o in groups.items() if g not in ("model", "experiment")}, **changed}
    words = [f"{key.rpartition('.')[2]}={shown(value)}" for key, value in named.items()]
    return " ".join([choices["model"], *experiment, *words, f"seed {config['seed']}"])
