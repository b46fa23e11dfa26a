"""timm's pretrained ViT weights in our ViT: equal outputs, other parameter names."""

import timm
import torch
from torch import Tensor, nn

from ablate.errors import UserError, suggest
from ablate.model.base import Model
from ablate.model.layers.multi_head import MultiHeadAttention
from ablate.training.transfer import fitting

# timm's name inside a block -> ours; the fused qkv is split apart below.
BLOCK = {
    "norm1": "attention.norm_before",
    "norm2": "feed_forward.norm_before",
    "attn.proj": "attention.function.out",
    "mlp.fc1": "feed_forward.function.up",
    "mlp.fc2": "feed_forward.function.down",
}
TOP = {"patch_embed.proj": "patches", "norm": "stack.final_norm", "head": "head"}


def translate(state: dict[str, Tensor]) -> dict[str, Tensor]:
    """A timm VisionTransformer's state under our parameter names."""
    ours: dict[str, Tensor] = {}
    for name, value in state.items():
        path, _, kind = name.rpartition(".")
        if name == "cls_token":
            ours["class_token.weight"] = value.flatten()
        elif name == "pos_embed":
            ours["stack.pos_enc.table"] = value.squeeze(0)
        elif path in TOP:
            ours[f"{TOP[path]}.{kind}"] = value
        elif path.startswith("blocks."):
            _, layer, part = path.split(".", 2)
            block = f"stack.blocks.{layer}"
            if part == "attn.qkv":
                names = ("query", "key", "value")
                for projection, piece in zip(names, value.chunk(3), strict=True):
                    ours[f"{block}.attention.function.{projection}.{kind}"] = piece
            else:
                ours[f"{block}.{BLOCK.get(part, part)}.{kind}"] = value
        else:
            ours[name] = value
    return ours


@torch.no_grad()
def copy_timm(model: Model, network: nn.Module, name: str) -> None:
    """Copy a timm ViT's weights into ours; UserError that lists what does not fit.

    A head for other classes than ours is skipped: fine-tuning learns a new one.
    """
    what = f"model.pretrained={name}"
    theirs = fitting(model.state_dict(), translate(network.state_dict()), model.heads, what)
    # The number of heads does not affect any shape.
    heads = next(part.heads for part in model.modules() if isinstance(part, MultiHeadAttention))
    if heads != (other := network.get_submodule("blocks.0.attn").num_heads):
        raise UserError(f"{what} does not fit this model: model.heads={heads}, it has {other}")
    model.load_state_dict(theirs, strict=False)


def load_timm(model: Model, name: str) -> None:
    """Download timm's weights of that name (cached by timm) and copy them in."""
    known = timm.list_models("*vit*", pretrained=True)
    if name not in known and name.split(".")[0] not in timm.list_models("*vit*"):
        near = suggest(name, known)
        raise UserError(f"model.pretrained={name} is not a pretrained ViT of timm{near}")
    channels = model.get_submodule("patches").in_channels
    try:
        network = timm.create_model(name, pretrained=True, in_chans=channels)
    except (RuntimeError, OSError, ValueError) as error:
        line = str(error).splitlines()[0]
        raise UserError(f"model.pretrained={name} could not be loaded: {line}") from error
    copy_timm(model, network, name)
