"""timm's pretrained ViT weights in our ViT: equal outputs, other parameter names."""

from typing import Any

import timm
from timm.layers import Attention, Mlp, PatchEmbed
from timm.models.vision_transformer import Block, VisionTransformer
from torch import Tensor, nn

from ablate.errors import UserError, suggest
from ablate.training.pretrained.values import known, side

# timm's name inside a block -> ours; the fused qkv is split apart below.
BLOCK = {
    "norm1": "attention.norm_before",
    "norm2": "feed_forward.norm_before",
    "attn.proj": "attention.function.out",
    "mlp.fc1": "feed_forward.function.up",
    "mlp.fc2": "feed_forward.function.down",
}
TOP = {"patch_embed.proj": "patches", "norm": "stack.final_norm", "head": "head"}
ACTIVATIONS = {"GELU": "gelu", "GELUTanh": "gelu_tanh", "ReLU": "relu"}
POOLS = {"token": "class", "avg": "mean"}


def fetch(name: str, *, channels: int) -> nn.Module:
    """Download the network of that name (cached by timm), for images with so many channels."""
    names = timm.list_models("*vit*", pretrained=True)
    if name not in names and name.split(".")[0] not in timm.list_models("*vit*"):
        near = suggest(name, names)
        raise UserError(f"model.pretrained={name} is not a pretrained ViT of timm{near}")
    try:
        network: nn.Module = timm.create_model(name, pretrained=True, in_chans=channels)
    except (RuntimeError, OSError, ValueError) as error:
        line = str(error).splitlines()[0]
        raise UserError(f"model.pretrained={name} could not be loaded: {line}") from error
    return network


def parts(network: Any, what: str) -> dict[str, Any]:
    _require_kind(network, VisionTransformer, what)
    _require_kind(network.patch_embed, PatchEmbed, what)
    for block in network.blocks:
        for part, kind in ((block, Block), (block.attn, Attention), (block.mlp, Mlp)):
            _require_kind(part, kind, what)
        for norm in (block.norm1, block.norm2):
            if not isinstance(norm, nn.LayerNorm):
                raise UserError(f"{what}: has {type(norm).__name__}; LayerNorm can be read")
    if network.global_pool not in POOLS or network.pool_include_prefix:
        raise UserError(f"{what}: the pooling {network.global_pool!r} is not supported")
    first = network.blocks[0]
    smooth = getattr(first.mlp.act, "approximate", "none") == "tanh"
    act = "GELUTanh" if smooth else type(first.mlp.act).__name__
    side(network.patch_embed.img_size, what)
    return {
        "model": "vit",
        "model.patch": side(network.patch_embed.patch_size, what),
        "model.pool": POOLS[network.global_pool],
        "model.dim": network.embed_dim,
        "model.depth": len(network.blocks),
        "model.heads": first.attn.num_heads,
        "model.ffn": known(act, ACTIVATIONS, what),
        "model.norm": "pre",
        "model.norm_eps": first.norm1.eps,
        "model.mask": "none",
    }


def _require_kind(part: nn.Module, kind: type[nn.Module], what: str) -> None:
    if type(part) is not kind:
        name = type(part).__name__
        raise UserError(f"{what}: is timm's {name}; only {kind.__name__} can be loaded")


def translate(network: nn.Module, target: dict[str, Tensor], what: str) -> dict[str, Tensor]:
    """A timm VisionTransformer's state under our parameter names."""
    ours: dict[str, Tensor] = {}
    for name, value in network.state_dict().items():
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
