"""Configs across versions: ids that stay, and old files that stay readable.

A run's id hashes its config in the form that the config had first (`first_form`): by the first name
of every key and module, without keys that were added later and change nothing at the value that
they have. Files of earlier versions are read by today's names (`upgrade`).

Whoever renames a key or moves a part adds a line to RENAMED or MOVED; whoever makes a group
of a key adds it to GROUPED; whoever adds a key whose neutral value is not null adds one to ADDED.
"""

from collections.abc import Iterator, Mapping
from typing import Any

from omegaconf import DictConfig, OmegaConf, open_dict

from ablate.config.keys import EVERYWHERE, OURS, keys_of, option_content
from ablate.config.tree import config_dir

# Today's key -> its first name.
RENAMED = {"model.activation_checkpointing": "model.checkpoint"}  # since 2026-11-23

# Keys that are gone. None of them changed a result.
REMOVED = ("study.batched", "study.pack", "study.packed")  # since 2026-11-24

# Today's _target_ of a part of ours -> its first.
MOVED = {  # since 2026-11-24
    f"ablate.schedule.{name}.{name}": f"ablate.schedule.{name}"
    for name in ("constant", "cosine", "linear", "noam")
}

# Config groups that were keys first: an id counts the name of the option. Since 2026-11-23.
GROUPED = ("model.cell", "model.decoder", "model.ffn", "model.norm_type")

# Key -> the value at which a run is what it was before there was the key.
ADDED: dict[str, Any] = {  # since 2026-11-24
    "data.shift": 0,
    "init_optimizer": False,  # since 2026-11-27
    "model.connection._partial_": True,
    "model.connection._target_": "ablate.model.connection.plain.Plain",
    "model.embedding_scale": 1.0,
    "model.init_depth_scale": True,
    "model.mixer._partial_": True,
    "pos_enc.factor": 2.0,
    "pos_enc.share": 1.0,
    "model.mixer.exclusive": False,
    "model.mixer.key_shift": False,
    "model.mixer.value_residual": False,
    "model.parallel": False,
    "trainer.context_parallel": None,  # since 2026-11-26; a null of the Trainer's counts
    "trainer.shards": None,
    "trainer.tensor_parallel": None,  # since 2026-11-26; a null of the Trainer's counts
    "trainer.val_examples": None,
}

# Until 2026-11-24 the scale of the embeddings was `scale` of this part: true for sqrt, false for 1.
SINUSOIDAL = "ablate.pos_enc.sinusoidal.Sinusoidal"

# A null of any other key of ours does not count: a key that is added with null changes no id.
COUNTED_NULLS = frozenset(
    {
        "data.columns",
        "data.max_length",
        "data.period",
        "data.randaugment",
        "data.test_fraction",
        "data.val_fraction",
        "data.vocab_size",
        "kernel.chunk",
        "model.attention.hidden",
        "model.attention.max_length",
        "model.cross_attention.hidden",
        "model.cross_attention.max_length",
        "model.embedding_dim",
        "model.ffn_dim",
        "model.init_std",
        "model.pretrained",
        "model.stride",
        "task.max_length",
        "trainer.check_val_every_n_epoch",
        "trainer.gradient_clip_val",
        "trainer.max_epochs",
        "trainer.val_check_interval",
    }
)

Path = tuple[str, ...]


def first_form(content: Mapping[str, Any]) -> dict[str, Any]:
    """What an id counts of a config's plain content."""
    first: dict[str, Any] = {}
    for path, value, ours in _leaves(_scaled_by_positions(content)):
        key = ".".join(path)
        if ours and value is None and key not in COUNTED_NULLS:
            continue
        if key in ADDED and value == ADDED[key]:
            continue
        if path[-1] == "_target_":
            value = MOVED.get(value, value)
        *above, leaf = RENAMED[key].split(".") if key in RENAMED else path
        node = first
        for name in above:
            node = node.setdefault(name, {})
        node[leaf] = value
    return first


def upgrade(config: DictConfig) -> DictConfig:
    """A config that an earlier version wrote, by today's names; changed in place."""
    targets = {first: today for today, first in MOVED.items()}
    with open_dict(config):
        for today, first in RENAMED.items():
            above, _, leaf = first.rpartition(".")
            node = OmegaConf.select(config, above) if above else config
            if OmegaConf.is_dict(node) and leaf in node:
                OmegaConf.update(config, today, node.pop(leaf), force_add=True)
        for node, _, leaf in (key.rpartition(".") for key in REMOVED):
            config.get(node, {}).pop(leaf, None)
        for group in GROUPED:
            _regroup(config, group)
        _unscale(config)
        for key, neutral in ADDED.items():
            if _takes(config, key) and OmegaConf.select(config, key) is None:
                OmegaConf.update(config, key, neutral, force_add=True)
        _retarget(config, targets)
    return config


def _leaves(
    node: Mapping[str, Any], path: Path = (), ours: bool = True
) -> Iterator[tuple[Path, Any, bool]]:
    """Path, value, and whether it belongs to a part of ours. An empty mapping is a leaf."""
    if "_target_" in node:
        ours = str(node["_target_"]).startswith(OURS)
    for key, value in node.items():
        if option := _option(".".join((*path, key)), value):
            yield (*path, key), option, True
            for name, inner in value.items():
                if name not in ("_target_", "_partial_"):
                    yield (*path, f"{key}.{name}"), inner, True
        elif isinstance(value, Mapping) and value:
            yield from _leaves(value, (*path, key), ours)
        else:
            yield (*path, key), value, ours


def _option(group: str, node: Any) -> str | None:
    """The name of the option that a node of a group in GROUPED is."""
    if group not in GROUPED or not isinstance(node, Mapping) or "_target_" not in node:
        return None
    name = str(node["_target_"]).split(".")[-2]
    file = config_dir() / group / f"{name}.yaml"
    content = option_content(file)[0] if file.is_file() else {}
    return name if content and all(content[key] == node.get(key) for key in EVERYWHERE) else None


def _regroup(config: DictConfig, group: str) -> None:
    """Put the option in place of its name."""
    name = OmegaConf.select(config, group)
    file = config_dir() / group / f"{name}.yaml"
    if isinstance(name, str) and name.isidentifier() and file.is_file():
        OmegaConf.update(config, group, option_content(file)[0], force_add=True)
        if "choices" in config:  # not in the config of tokens, which is a part of a run's
            config.choices[group] = name


def _scaled_by_positions(content: Mapping[str, Any]) -> Mapping[str, Any]:
    """The content with the scale of the embeddings where it was first: see SINUSOIDAL."""
    model, positions = content.get("model"), content.get("pos_enc")
    if not isinstance(model, Mapping) or not isinstance(positions, Mapping):
        return content  # which is refused
    if positions.get("_target_") != SINUSOIDAL or "scale" in positions:
        return content
    scale = model.get("embedding_scale", 1)
    model = {key: value for key, value in model.items() if key != "embedding_scale"}
    positions = {**positions, "scale": {"sqrt": True, 1: False}.get(scale, scale)}
    return {**content, "model": model, "pos_enc": positions}


def _unscale(config: DictConfig) -> None:
    """Move the scale of the embeddings to the model. A model without that key (captioner) cannot
    be built with a scale any more, and is refused where its positions are made."""
    positions = config.get("pos_enc")
    if not OmegaConf.is_dict(positions) or positions.get("_target_") != SINUSOIDAL:
        return
    if "scale" in positions:
        takes = _takes(config, "model.embedding_scale")
        if takes:
            config.model.embedding_scale = "sqrt" if positions.scale else 1.0
        if takes or not positions.scale:
            del positions["scale"]


def _takes(config: DictConfig, key: str) -> bool:
    """Whether our files give the part that is chosen such a key."""
    node, _, leaf = key.rpartition(".")
    target = OmegaConf.select(config, f"{node}._target_")
    return isinstance(target, str) and leaf in keys_of(target)


def _retarget(node: Any, targets: Mapping[str, str]) -> None:
    if OmegaConf.is_dict(node):
        if node.get("_target_") in targets:
            node["_target_"] = targets[node["_target_"]]
        for key in node:
            if not OmegaConf.is_missing(node, key) and not OmegaConf.is_interpolation(node, key):
                _retarget(node[key], targets)
