"""GPT-2 (Radford et al. 2019): transformers' GPT2Model, GPT2LMHeadModel and those for classes."""

from collections.abc import Mapping
from typing import Any

from torch import Tensor

from ablate.errors import UserError
from ablate.training.pretrained.hugging_face import activation, sizes

NETWORKS = ("GPT2Model", "GPT2LMHeadModel", "GPT2ForSequenceClassification")
TOP = {
    "wte.weight": "embedding.weight",
    "wpe.weight": "stack.pos_enc.table",
    "ln_f.weight": "stack.final_norm.weight",
    "ln_f.bias": "stack.final_norm.bias",
    "score.weight": "head.weight",
}
# Inside a block; its matrices are stored inputs x outputs, with query, key and value (QKV) fused.
BLOCK = {
    "ln_1": "attention.norm_before",
    "attn.c_proj": "attention.function.out",
    "ln_2": "feed_forward.norm_before",
    "mlp.c_fc": "feed_forward.function.up",
    "mlp.c_proj": "feed_forward.function.down",
}


def parts(network: Any, what: str) -> dict[str, Any]:
    config = network.config
    if config.scale_attn_by_inverse_layer_idx or not config.scale_attn_weights:
        raise UserError(f"{what}: its scaling of the scores is not supported")
    return sizes(config, config.activation_function, what) | {
        "model": "gpt",
        "model.norm": "pre",
        "model.embedding": "learned",
        "model.norm_eps": config.layer_norm_epsilon,
        "model.mask": "causal",
        "model.tie_embeddings": config.tie_word_embeddings,
    }


def empty(cfg: Any, sizes: Mapping[str, Any]) -> Any:
    """The network of a model=gpt, its weights not set. sizes: those of the data."""
    from transformers import GPT2Config, GPT2ForSequenceClassification, GPT2LMHeadModel

    of_classes = "classes" in sizes
    kind = GPT2ForSequenceClassification if of_classes else GPT2LMHeadModel
    return kind(
        GPT2Config(
            vocab_size=sizes["vocab_size"],
            n_positions=sizes["length"],
            n_embd=cfg.model.dim,
            n_layer=cfg.model.depth,
            n_head=cfg.model.heads,
            n_inner=cfg.model.ffn_dim,
            activation_function=activation(cfg.choices["model.ffn"]),
            layer_norm_epsilon=cfg.model.norm_eps,
            tie_word_embeddings=cfg.model.tie_embeddings,
            **dict.fromkeys(("resid_pdrop", "embd_pdrop", "attn_pdrop"), cfg.model.dropout),
            **({"num_labels": sizes["classes"]} if of_classes else {}),
            bos_token_id=None,
            eos_token_id=None,
        )
    )


def translate(network: Any, target: dict[str, Tensor], what: str) -> dict[str, Tensor]:
    """Its state dict under our names, with the first positions only, as many as ours."""
    ours: dict[str, Tensor] = {}
    for full, value in network.state_dict().items():
        name = full.removeprefix("transformer.")
        if name in TOP:
            ours[TOP[name]] = value
        elif name.startswith("h."):
            ours |= _block(name, value)
        elif name != "lm_head.weight":
            ours[name] = value
        elif not network.config.tie_word_embeddings:  # else a copy of the token embedding
            ours["head.weight"] = value
    table = ours["stack.pos_enc.table"]
    ours["stack.pos_enc.table"] = table[: len(target["stack.pos_enc.table"])]
    return ours


def _block(name: str, value: Tensor) -> dict[str, Tensor]:
    _, layer, rest = name.split(".", 2)
    part, _, kind = rest.rpartition(".")
    block = f"stack.blocks.{layer}"
    value = value.T if value.dim() == 2 else value
    if part != "attn.c_attn":
        return {f"{block}.{BLOCK.get(part, part)}.{kind}": value}
    pieces = zip(("query", "key", "value"), value.chunk(3), strict=True)
    return {f"{block}.attention.function.{which}.{kind}": piece for which, piece in pieces}
