"""Values by layer: `model.layers.KEY=[A,B]` sets the blocks to A, B, A, B, ...

KEY is a key of a block (heads, norm, ...), the short spelling of a key of its mixer (kv_heads), or
a group, whose options are named as on the command line: `model.layers.pos_enc=[rotary,none]`. The
model's option keeps its values, another has those of its file, and either may name others:
`{window: {size: 8}}`. In an encoder-decoder the pattern applies to each side; the mask is the
decoder's.
"""

import json
import math
from collections.abc import Iterable, Iterator, Mapping
from pathlib import Path
from typing import Any

from omegaconf import DictConfig, OmegaConf, open_dict

from ablate.config.keys import option_content, plain, shown
from ablate.config.overrides import ALIASES
from ablate.config.parts import class_attribute
from ablate.config.tree import groups, readable_file
from ablate.errors import UserError, suggest

NODE = "model.layers"
SIDES = ("encoder", "decoder")
Values = Mapping[str, Any]


def group_of(key: str) -> str | None:
    """The config group of a key of model.layers; None for a value."""
    group = key if key == "pos_enc" else f"model.{key}"
    return group if group in groups() else None


def _layer_keys(values: Values) -> dict[str, Any]:
    model = values.get("model")
    layers = model.get("layers") if isinstance(model, Mapping) else None
    layers = layers if isinstance(layers, Mapping) else {}
    return {str(key): pattern for key, pattern in layers.items() if pattern is not None}


def patterns(values: Values) -> dict[str, list[Any]]:
    """The keys that differ by layer, each with its pattern."""
    items = _layer_keys(values).items()
    return {key: pattern for key, pattern in items if isinstance(pattern, list) and pattern}


def expand(cfg: DictConfig, sources: Iterable[DictConfig]) -> None:
    """Replace in the node model.layers, if there is one, named options by their content, and keys
    of the mixer by mixers with their values, in place.

    sources: `hydra.runtime.config_sources`. Raises UserError.
    """
    node = OmegaConf.select(cfg, NODE)
    if not OmegaConf.is_dict(node):
        return
    lists: dict[str, list[Any]] = {
        str(key): plain(pattern) for key, pattern in node.items() if OmegaConf.is_list(pattern)
    }
    folders = [Path(source.path) for source in sources if source.schema == "file"]
    for key, pattern in lists.items():
        if group := group_of(key):
            lists[key] = [_content(cfg, group, option, folders) for option in pattern]
    with open_dict(node):
        for key, pattern in [*lists.items()]:
            path, varies = ALIASES.get(f"model.{key}"), any(v != pattern[0] for v in pattern)
            if path and varies and len(pattern) <= _depth(cfg):  # else see wrong_patterns
                group, _, leaf = path.rpartition(".")
                name = group.removeprefix("model.")
                options = lists.get(name) or [plain(OmegaConf.select(cfg, group))]
                lists[name] = _with_values(options, leaf, pattern, _depth(cfg))
                node[key] = None
                del lists[key]
        node.update(lists)


def _with_values(
    options: list[dict[str, Any]], key: str, values: list[Any], depth: int
) -> list[dict[str, Any]]:
    """The options of layers, those that have a key with its values in turn."""
    if not any(key in option for option in options):
        raise _no_key(f"{NODE}.{key}", shown({"_target_": options[0]["_target_"]}), key, options[0])
    count = min(math.lcm(len(options), len(values)), max(depth, len(options), len(values)))
    layers = [options[n % len(options)] for n in range(count)]
    read = {n % len(values) for n, option in enumerate(layers) if key in option}
    for n, value in enumerate(values):
        if n not in read and value is not None:
            raise UserError(
                f"{NODE}.{key}: no block that would have the value {value} has a key {key}; write"
                " null in its place"
            )
    return [
        option | {key: values[n % len(values)]} if key in option else option
        for n, option in enumerate(layers)
    ]


def _no_key(name: str, option: str, key: str, content: Mapping[str, Any]) -> UserError:
    keys = sorted(content.keys() - {"_target_", "_partial_"})
    allowed = f"allowed: {', '.join(keys)}" if keys else "it has no keys to set"
    return UserError(f"{name}: {option} has no key {key}; {allowed}")


def _content(cfg: DictConfig, group: str, option: Any, folders: list[Path]) -> Any:
    changes: Mapping[str, Any] = {}
    if isinstance(option, Mapping):
        if "_target_" in option or len(option) != 1:
            return option
        ((option, changes),) = option.items()
    name = f"{NODE}.{group.removeprefix('model.')}"
    if not isinstance(option, str) or not isinstance(changes, Mapping):
        raise UserError(
            f"{name}: {option} is not an option of {group}; write NAME or {{NAME: {{..}}}}"
        )
    files = [folder / group / f"{option}.yaml" for folder in folders]
    file = next((file for file in files if file.is_file()), None)
    if file is None:
        names = sorted({f.stem for folder in folders for f in (folder / group).glob("*.yaml")})
        raise UserError(
            f"{name}: unknown option {group}={option}; allowed: {', '.join(names)}"
            f"{suggest(option, names)}"
        )
    with readable_file(file):
        content = option_content(file)[0]
    if cfg.choices.get(group) == option:
        content = plain(OmegaConf.select(cfg, group))
    if unknown := sorted(changes.keys() - content.keys()):
        raise _no_key(name, option, unknown[0], content)
    return {**content, **changes}


def of_layers(values: Values) -> list[dict[str, Any]]:
    """For every layer its keys and values; nothing if all layers are equal."""
    by_key = patterns(values)
    return [
        {key: pattern[layer % len(pattern)] for key, pattern in by_key.items()}
        for layer in range(_depth(values) if by_key else 0)
    ]


def compositions(values: Values) -> list[tuple[int, Values]]:
    """The composition as each kind of layer has it, after the number of its first layer from 0."""
    kinds: dict[str, tuple[int, dict[str, Any]]] = {}
    for layer, layer_values in enumerate(of_layers(values)):
        kind = json.dumps(layer_values, sort_keys=True, default=str)
        kinds.setdefault(kind, (layer, layer_values))
    return [(layer, _uniform(values, layer_values)) for layer, layer_values in kinds.values()]


def wrong_patterns(values: Values) -> Iterator[str]:
    """Yield a line for every pattern that cannot be applied."""
    for key, pattern in _layer_keys(values).items():
        name, depth = f"{NODE}.{key}", _blocks(values, key)
        if not isinstance(pattern, list) or not pattern:
            yield f"{name}={pattern}: must be a list of per-block values, cycled over the blocks"
        elif len(pattern) > depth:
            yield f"{name} has {len(pattern)} values for {depth} blocks; set at most {depth}"
        elif len({json.dumps(value, sort_keys=True, default=str) for value in pattern}) == 1:
            replacement = group_of(key) or f"model.{key}"
            yield f"{name} has one value for all blocks; set {replacement} instead"
        elif key == "pos_enc":
            added = (
                node
                for node in (values["pos_enc"], *pattern)
                if class_attribute(str(node["_target_"]), "acts_in") == "input"
            )
            if (first := next(added, None)) is not None:
                yield (
                    f"pos_enc={shown(first)} is added to the input of the first block, so that"
                    f" {NODE}.pos_enc has nothing to vary; set pos_enc, and every option of the"
                    " list, to one that acts in attention (rotary, alibi, relative, t5) or to none"
                )
    if patterns(values) and values["model"].get("share_layers"):
        yield f"{NODE} has no effect with model.share_layers=true, whose blocks are one"


def _uniform(values: Values, layer_values: Mapping[str, Any]) -> Values:
    """The composition whose layers all have the values of one, without patterns."""
    model = {**values["model"], "layers": {}}
    outside = {key: value for key, value in layer_values.items() if key == "pos_enc"}
    return {
        **values,
        **outside,
        "model": model | {key: value for key, value in layer_values.items() if key not in outside},
        # The names of options are in `choices`; those of layers follow from their class.
        "choices": {
            group: name
            for group, name in (values.get("choices") or {}).items()
            if group not in {group_of(key) for key in layer_values}
        },
    }


def _blocks(values: Values, key: str) -> int:
    """The number of blocks with a key: cross-attention, and the mask of a model with a source, are
    the decoder's."""
    model = values["model"]
    decoder = model.get("decoder")
    decodes = isinstance(decoder, Mapping) and isinstance(decoder.get("depth"), int)
    if decodes and (key == "cross_attention" or (key == "mask" and "depth" not in model)):
        return int(decoder["depth"])
    return _depth(values)


def _depth(values: Values) -> int:
    model = values["model"]
    sides = [model, *(model[side] for side in SIDES if isinstance(model.get(side), Mapping))]
    depths = [side.get("depth") for side in sides]
    return max((depth for depth in depths if isinstance(depth, int)), default=0)
