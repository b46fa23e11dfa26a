"""Models of images: patches, pooling, weights from elsewhere."""

from ablate.config.rules import Conflict

# What the check says before a run, and the constructor to whoever calls it.
STAGED = (
    "model.dim={dim} must be a multiple of 4: the encoder of model=captioner begins with a fourth"
    " of it and doubles it twice"
)

IMAGE_MODELS: list[Conflict] = [
    Conflict(
        lambda c: c.option("model") == "captioner" and c("model.dim") % 4 != 0,
        STAGED.format(dim="{model.dim}"),
    ),
    Conflict(
        lambda c: (
            c.option("model") in ("resnet", "captioner")
            and not c.states("model.norm_type", "images")
        ),
        "model.norm_type={model.norm_type} is no norm of model={model}; use batch or layer",
    ),
    Conflict(
        lambda c: c("model.patch") > c.side,
        "model.patch={model.patch} is larger than the images, which are {:side} pixels a side",
    ),
    Conflict(
        lambda c: c("model.patch") <= c.side and (c.side - c("model.patch")) % c.stride != 0,
        "model.patch={model.patch} with model.stride={:stride} leaves pixels out at the border of"
        " images of {:side} pixels a side",
    ),
    Conflict(
        lambda c: c.stride > c("model.patch"),
        "model.stride={model.stride} is larger than model.patch={model.patch} and skips pixels",
    ),
    Conflict(
        lambda c: c("model.pool") == "class" and c.option("model.mask") in ("causal", "prefix"),
        "model.mask={model.mask} with model.pool=class: the classification token stands first and"
        " would not see the image; set model.pool=mean",
    ),
    Conflict(
        lambda c: (
            c.option("model") == "vit"
            and c.option("model.mask") == "window"
            and c("model.mask.size") >= c.across > 0
        ),
        "model.mask.size={model.mask.size} lets each of the {:across} x {:across} patches that"
        " model.patch={model.patch} makes of data={data} see all; give less than {:across}, or"
        " model.mask=none",
    ),
    Conflict(
        lambda c: c.option("model") == "vit" and isinstance(c("model.pretrained"), bool),
        "model.pretrained={model.pretrained}: must be the name of a timm ViT, hf:NAME_OR_PATH, or"
        " null",
    ),
    Conflict(
        lambda c: c.option("model") == "timm" and not isinstance(c("model.pretrained"), bool),
        "model.pretrained={model.pretrained}: must be true or false; the name is model.name",
    ),
]
