"""Pretrained weights, model.pretrained=NAME: loaded so that the outputs are equal, or rejected.

A file for each family and library lists the components of a network (`parts`, by our keys) and
our names of its parameters (`translate`).
"""

from __future__ import annotations

from types import ModuleType
from typing import TYPE_CHECKING, Any

from omegaconf import DictConfig

from ablate.config.overrides import value_text
from ablate.config.rules import HUGGING_FACE
from ablate.errors import UserError
from ablate.training.pretrained import hugging_face
from ablate.training.transfer import FREE, TOKEN_KEYS, load_into, parts_of

if TYPE_CHECKING:
    from ablate.model.base import Model

# The parts that every network has.
COMMON: dict[str, Any] = {
    "model.mixer": "attention",
    "model.attention": "scaled_dot",
    "model.normalizer": "softmax",
    "model.norm_type": "layer",
    "model.residual": True,
    "model.bias": True,
    "model.share_layers": False,
    "pos_enc": "learned",
}
# Of the keys that no network changes, those whose neutral value is not null.
NEUTRAL: dict[str, Any] = {
    "model.connection": "plain",
    "model.embedding_scale": 1.0,
    "model.logit_scale": False,
    "model.mixer.exclusive": False,
    "model.mixer.key_shift": False,
    "model.mixer.value_embedding": False,
    "model.mixer.value_residual": False,
    "model.parallel": False,
    "model.smear": False,
    "model.unit_weights": False,
    "pos_enc.factor": 2.0,
    "pos_enc.share": 1.0,
}
# Keys that may have any value: those of training, and those that a shape or a token's id shows.
ANY = FREE | TOKEN_KEYS | {"model.ffn_dim"}


def start_from(model: Model, cfg: DictConfig) -> None:
    """Load the weights that cfg.model.pretrained names; recorded in `model.started_from`.

    UserError that lists the overrides to use, or the parameters that do not fit.
    """
    name = cfg.model.pretrained
    what = f"model.pretrained={name}"
    family, network = _family(name, model)
    require_parts(cfg, COMMON | family.parts(network, what), what)
    load_into(model, family.translate(network, model.state_dict(), what), what, run=name)


def _family(name: str, model: Model) -> tuple[ModuleType, Any]:
    """The module that reads a network, and the network."""
    if name.startswith(HUGGING_FACE):
        return hugging_face.fetch(name)
    from ablate.training.pretrained import timm  # which takes a second to import

    patches: Any = model.get_submodule("patches")
    return timm, timm.fetch(name, channels=patches.in_channels)


def require_parts(cfg: DictConfig, required: dict[str, Any], what: str) -> None:
    """Raise UserError that lists the overrides to use, unless a model has the parts `required`.

    A key that is neither in `required` nor in ANY must have its neutral value: null, or that in
    NEUTRAL. So must those that are added later.
    """
    parts = parts_of(cfg)
    wanted: dict[str, Any] = {key: NEUTRAL.get(key) for key in parts.keys() - ANY} | required
    different = {key: value for key, value in wanted.items() if parts.get(key) != value}
    # Keys of a part that is another one go with it.
    inside = tuple(f"{key}." for key in different)
    if lines := [
        f"{key}={value_text(value)}"
        for key, value in sorted(different.items())
        if not key.startswith(inside)
    ]:
        raise UserError(f"{what} has a different architecture than this model: {' '.join(lines)}")
