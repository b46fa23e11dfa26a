"""Mixers: parts that act inside attention only, and the limits of convolutions."""

from ablate.config.conflicts.conflict import Conflict
from ablate.config.conflicts.pos_enc import INSIDE
from ablate.config.facts import Facts


def _without_attention(c: Facts) -> bool:
    """Whether no layer has attention; a Transformer's decoder always attends to its source."""
    return c.option("model.mixer") != "attention" and c.option("model") != "transformer"


MIXER: list[Conflict] = [
    *(
        Conflict(
            lambda c, group=group, usual=usual: (  # type: ignore[misc]
                _without_attention(c) and c.option(group) != usual
            ),
            f"{group}={{{group}}} acts inside attention, and model.mixer={{model.mixer}} has none;"
            f" use {group}={usual}",
        )
        for group, usual in (
            ("model.attention", "scaled_dot"),
            ("model.normalizer", "softmax"),
            ("kernel", "auto"),
        )
    ),
    Conflict(
        lambda c: c.option("model.mixer") != "attention" and c.option("pos_enc") in INSIDE,
        "pos_enc={pos_enc} acts inside attention, and model.mixer={model.mixer} has none; use"
        " pos_enc=learned, sinusoidal, learned_from_sinusoidal or none",
    ),
    Conflict(
        lambda c: (
            c.option("model.mixer") in ("convolution", "none")
            and c.option("model.mask") in ("window", "prefix")
        ),
        "model.mask={model.mask} says which positions have weights, and model.mixer={model.mixer}"
        " has none for all; use model.mixer=attention or fixed",
    ),
    Conflict(
        lambda c: (
            c.option("model.mixer") == "none"
            and c.option("model.mask") == "none"
            and c.option("model") not in ("vit", "bert")
        ),
        "model.mask=none has no effect with model.mixer=none; use model.mask=causal",
    ),
    Conflict(
        lambda c: (
            c.option("model") == "bert"
            and c.option("model.mixer") == "none"
            and c.option("model.mask") == "causal"
        ),
        "model.mask=causal has no effect with model.mixer=none; use model.mask=none",
    ),
    Conflict(
        lambda c: (
            c.option("model.mixer") == "none"
            and c.option("model.ffn") == "none"
            and c.option("model") != "transformer"
        ),
        "model.mixer=none with model.ffn=none disables every sublayer",
    ),
    Conflict(
        lambda c: (
            c.option("model") == "vit"
            and c.option("model.mixer") == "convolution"
            and c("model.pool") == "class"
        ),
        "model.mixer=convolution goes over rows and columns, where model.pool=class has no place;"
        " set model.pool=mean",
    ),
    Conflict(
        lambda c: (
            c.option("model") == "vit"
            and c.option("model.mixer") == "convolution"
            and c.option("model.mask") == "causal"
        ),
        "model.mask=causal goes along a text, and model.mixer=convolution over an image; use"
        " model.mask=none",
    ),
    Conflict(
        lambda c: c.option("model.mixer") == "convolution" and c("model.mixer.size") % 2 == 0,
        "model.mixer.size={model.mixer.size} must be an odd number, which has a middle",
    ),
]
