"""ViT (Dosovitskiy et al. 2020): transformers' ViTModel and ViTForImageClassification."""

from collections.abc import Mapping
from typing import Any

from torch import Tensor

from ablate.errors import UserError
from ablate.training.pretrained.hugging_face import activation, sizes
from ablate.training.pretrained.values import side

NETWORKS = ("ViTModel", "ViTForImageClassification")
TOP = {
    "embeddings.patch_embeddings.projection": "patches",
    "layernorm": "stack.final_norm",
    "classifier": "head",
}
BLOCK = {
    "layernorm_before": "attention.norm_before",
    "attention.q_proj": "attention.function.query",
    "attention.k_proj": "attention.function.key",
    "attention.v_proj": "attention.function.value",
    "attention.o_proj": "attention.function.out",
    "layernorm_after": "feed_forward.norm_before",
    "mlp.fc1": "feed_forward.function.up",
    "mlp.fc2": "feed_forward.function.down",
}


def parts(network: Any, what: str) -> dict[str, Any]:
    config = network.config
    if not config.qkv_bias:
        raise UserError(f"{what}: without a bias of queries, keys and values it is not supported")
    side(config.image_size, what)
    return sizes(config, config.hidden_act, what) | {
        "model": "vit",
        "model.patch": side(config.patch_size, what),
        "model.pool": "class",
        "model.norm": "pre",
        "model.norm_eps": config.layer_norm_eps,
        "model.mask": "none",
    }


def empty(cfg: Any, sizes: Mapping[str, Any]) -> Any:
    """The network of a model=vit, its weights not set. sizes: those of the data."""
    from transformers import ViTConfig, ViTForImageClassification

    return ViTForImageClassification(
        ViTConfig(
            image_size=sizes["image_size"][0],
            patch_size=cfg.model.patch,
            num_channels=sizes["channels"],
            **{"num_labels": sizes["classes"]},  # of the base class, which the stubs do not know
            hidden_size=cfg.model.dim,
            num_hidden_layers=cfg.model.depth,
            num_attention_heads=cfg.model.heads,
            intermediate_size=cfg.model.ffn_dim or 4 * cfg.model.dim,
            hidden_act=activation(cfg.choices["model.ffn"]),
            layer_norm_eps=cfg.model.norm_eps,
            hidden_dropout_prob=cfg.model.dropout,
            attention_probs_dropout_prob=cfg.model.dropout,
        )
    )


def translate(network: Any, target: dict[str, Tensor], what: str) -> dict[str, Tensor]:
    """Its state dict under our names, without its pooler, a layer for the class token."""
    ours: dict[str, Tensor] = {}
    for full, value in network.state_dict().items():
        path, _, kind = full.removeprefix("vit.").rpartition(".")
        if kind == "cls_token":
            ours["class_token.weight"] = value.flatten()
        elif kind == "position_embeddings":
            ours["stack.pos_enc.table"] = value.squeeze(0)
        elif path.startswith("layers."):
            _, layer, part = path.split(".", 2)
            ours[f"stack.blocks.{layer}.{BLOCK.get(part, part)}.{kind}"] = value
        elif not path.startswith("pooler"):
            ours[f"{TOP.get(path, path)}.{kind}"] = value
    return ours
