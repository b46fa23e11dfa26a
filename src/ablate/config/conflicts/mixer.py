"""Mixers: what acts inside attention only, what a mask says to them, the limits of convolutions."""

from ablate.config.facts import Facts
from ablate.config.rules import Conflict


def _without_attention(c: Facts) -> bool:
    """Whether no layer has attention; a Transformer's decoder always attends to its source."""
    return not c.states("model.mixer", "attends") and c.option("model") != "transformer"


def _looks_ahead(c: Facts) -> bool | None:
    """What the mask says beside the positions that it leaves out; None: it says more."""
    return {"causal": False, "none": True}.get(c.option("model.mask"))


MIXER: list[Conflict] = [
    *(
        Conflict(
            lambda c, group=group, usual=usual: (  # type: ignore[misc]
                _without_attention(c) and c.option(group) != usual
            ),
            f"{group}={{{group}}} acts inside attention, and model.mixer={{model.mixer}} has none;"
            f" use {group}={usual}",
            without_effect=True,
        )
        for group, usual in (
            ("model.attention", "scaled_dot"),
            ("model.normalizer", "softmax"),
            ("kernel", "auto"),
        )
    ),
    Conflict(
        lambda c: (
            not c.states("model.mixer", "reads_positions")
            and c.stated("pos_enc", "acts_in") == "attention"
        ),
        "pos_enc={pos_enc} acts inside attention, and model.mixer={model.mixer} has none; use"
        " pos_enc=learned, sinusoidal, learned_from_sinusoidal or none",
        without_effect=True,
    ),
    Conflict(
        lambda c: not c.states("model.mixer", "reads_mask") and _looks_ahead(c) is None,
        "model.mask={model.mask} restricts attention weights, and model.mixer={model.mixer} has"
        " none; use model.mixer=attention or fixed",
        without_effect=True,
    ),
    Conflict(
        lambda c: c.stated("model.mixer", "causal") is True and _looks_ahead(c) is True,
        "model.mixer={model.mixer} reads earlier positions alone, and model.mask=none lets every"
        " position see later ones; use model.mask=causal",
    ),
    Conflict(
        lambda c: c.stated("model.mixer", "causal") is False and _looks_ahead(c) is False,
        "model.mixer={model.mixer} reads later positions, which model.mask=causal does not allow",
    ),
    Conflict(
        lambda c: (
            not c.states("model.mixer", "mixes")
            and c.option("model.mask") == "none"
            and c.option("model") not in ("vit", "bert")
        ),
        "model.mask=none has no effect with model.mixer={model.mixer}; use model.mask=causal",
        without_effect=True,
    ),
    Conflict(
        lambda c: (
            c.option("model") == "bert"
            and not c.states("model.mixer", "mixes")
            and c.option("model.mask") == "causal"
        ),
        "model.mask=causal has no effect with model.mixer={model.mixer}; use model.mask=none",
        without_effect=True,
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
        "causal masking is not defined for the two-dimensional model.mixer=convolution; use"
        " model.mask=none",
    ),
    Conflict(
        lambda c: c.option("model.mixer") == "convolution" and c("model.mixer.size") % 2 == 0,
        "model.mixer.size={model.mixer.size} must be an odd number, which has a middle",
    ),
]
