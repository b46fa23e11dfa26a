"""Keys of the model that a run sets without an effect.

There is no table of them: for each value that is not the default, the model is compared with the
one that has the default. A key that no part of the composition reads makes no difference, such as
model.heads with model.mixer=convolution.
"""

import json
from collections.abc import Iterator
from typing import Any

from omegaconf import DictConfig, OmegaConf, open_dict, read_write

from ablate.config.composition import Composition
from ablate.config.conflicts import conflicts
from ablate.config.keys import EVERYWHERE, flatten, option_content, plain, shown
from ablate.config.layers import NODE
from ablate.config.parts import OURS
from ablate.config.run_id import EXCLUDED, content
from ablate.config.tree import config_file
from ablate.data import Data
from ablate.errors import UserError
from ablate.model.base import ROLES, Model
from ablate.training.build import model_on_meta
from ablate.training.same_model import SameModel

LARGEST = 20_000_000  # parameters of a model that is compared: larger ones would take many seconds
# Keys compared elsewhere, or too slow: pretrained weights are loaded only for equal keys,
# and an embedding may learn from the data before the model does.
LEFT_OUT = ("model.pretrained", "model.embedding", *EXCLUDED)
# The components of a model, and its input.
MADE_OF = ("model", "pos_enc", "kernel", "data", "task", "init_from")
# Keys of models that were compared in this process and do act: a notebook trains the same model
# with many seeds, and comparing took half of the start of a tiny run.
ACTS: set[str] = set()


def left_out(path: str) -> bool:
    """Whether a key, or its node, is left out: not model.embedding_dim."""
    return any(f"{path}.".startswith(f"{name}.") for name in LEFT_OUT)


def refuse_without_effect(composition: Composition, data: Data, model: Model | None = None) -> None:
    """Raise UserError for keys and options of the model that change nothing. model: of the
    composition, on the meta device, if it exists.

    Arms of a study are not rejected: its plan lists the arms that equal the baseline's model.
    """
    if composition.cfg.study.arm is not None:
        return
    cfg = composition.cfg
    lines = [*_without_effect(composition, data, model), *_rules_without_role(cfg, data, model)]
    if lines:
        raise UserError("; ".join(lines))


def _without_effect(composition: Composition, data: Data, model: Model | None) -> Iterator[str]:
    if not (others := [*_with_defaults(composition)]):
        return
    same = SameModel(composition.cfg, lambda _: data, largest=LARGEST, built=model)
    counted = content(composition.cfg)
    made_of = [composition.fingerprint, *(counted.get(key) for key in MADE_OF)]
    for name, default, other in others:
        question = json.dumps([made_of, name, default], sort_keys=True)
        if question in ACTS or any(conflicts(other)):
            continue
        try:
            equal = same(other, model_on_meta(other, data))
        except Exception:  # the default does not fit the other components: nothing to compare
            continue
        if equal:
            yield f"{name} has no effect on this model; leave it out, or set {default}"
        else:
            ACTS.add(question)


def _rules_without_role(cfg: DictConfig, data: Data, model: Model | None) -> Iterator[str]:
    """Values of an optimizer's rule for a role that no parameter of the model has."""
    file = config_file(f"optimizer/{cfg.choices.optimizer}.yaml")
    if not file.is_file():
        return
    roles: set[str] = set()
    for key, default in flatten(option_content(file)[0]).items():
        role = key.split(".")[0]
        value = plain(OmegaConf.select(cfg, f"optimizer.{key}"))
        if role in ROLES and value != default:
            roles = roles or set((model or model_on_meta(cfg, data)).roles().values())
            if role not in roles:
                yield (
                    f"optimizer.{key}={shown(value)} has no effect: no parameter of this model has"
                    f" the role {role}"
                )


def _with_defaults(composition: Composition) -> Iterator[tuple[str, str, DictConfig]]:
    """Each value that is not its default as NAME=VALUE, the default so too, and the composition
    that has the default in its place."""
    cfg, choices = composition.cfg, composition.cfg.choices
    file = config_file(f"model/{choices.model}.yaml")
    if not file.is_file():  # a custom family has no built-in defaults
        return
    content, defaults = option_content(file)
    usual = {
        name.removeprefix("override ").removeprefix("/"): option
        for entry in defaults
        if isinstance(entry, dict)
        for name, option in entry.items()
    }
    groups = {
        f"model.{key}"
        for key, value in cfg.model.items()
        if OmegaConf.is_dict(value) and "_target_" in value
    }
    for group in sorted(groups | {"pos_enc"}):
        option, default = choices.get(group), usual.get(group)
        ours = str(OmegaConf.select(cfg, group)["_target_"]).startswith(OURS)
        if default is not None and option != default and ours:
            node = option_content(config_file(f"{group}/{default}.yaml"))[0]
            yield from _replaced(cfg, group, option, node, default)
        file = config_file(f"{group}/{option}.yaml")
        if file.is_file():
            yield from _values(cfg, group, option_content(file)[0])
    yield from _values(cfg, "model", {k: v for k, v in content.items() if k not in groups})


def _values(
    cfg: DictConfig, node: str, defaults: dict[str, Any]
) -> Iterator[tuple[str, str, DictConfig]]:
    for key, default in flatten(defaults).items():
        path = f"{node}.{key}"
        value = plain(OmegaConf.select(cfg, path))
        if key not in EVERYWHERE and value != default:
            yield from _replaced(cfg, path, value, default, default)


def _replaced(
    cfg: DictConfig, path: str, value: Any, new: Any, default: Any
) -> Iterator[tuple[str, str, DictConfig]]:
    if left_out(path):
        return
    other = cfg.copy()
    with read_write(other), open_dict(other):
        OmegaConf.update(other, path, new, merge=False)
        if path in other.choices:
            other.choices[path] = default
        group, _, key = path.rpartition(".")
        target = OmegaConf.select(other, f"{group}._target_")
        for node in OmegaConf.select(other, f"{NODE}.{group.removeprefix('model.')}") or ():
            if node["_target_"] == target and node.get(key) == value:  # it has the model's value
                node[key] = new
    yield f"{path}={shown(value)}", f"{path}={shown(default)}", other
