"""Pretrained weights of Hugging Face in our models: equal outputs, other parameter names.

model.pretrained=hf:NAME_OR_PATH. Each model family has a file in this folder, named after its
`model_type`. NAME is downloaded and cached by the library `transformers`, PATH is a folder written
by its `save_pretrained`.
"""

from importlib import import_module
from importlib.util import find_spec
from types import ModuleType
from typing import Any

from safetensors import SafetensorError

from ablate.config.rules import HUGGING_FACE
from ablate.errors import UserError, first_line
from ablate.machine.version import require
from ablate.training.pretrained.values import known

ACTIVATIONS = {
    "gelu": "gelu",
    "gelu_new": "gelu_tanh",
    "gelu_pytorch_tanh": "gelu_tanh",
    "relu": "relu",
}


def fetch(name: str) -> tuple[ModuleType, Any]:
    """The module of this folder that reads a saved network, and the network, of the class that
    saved it, so that no part is left random."""
    what = f"model.pretrained={name}"
    transformers = require("transformers", what, "hf")
    transformers.logging.set_verbosity_error()
    transformers.logging.disable_progress_bar()
    repository = name.removeprefix(HUGGING_FACE)
    try:
        config = transformers.AutoConfig.from_pretrained(repository, trust_remote_code=False)
        saved = (config.architectures or ["AutoModel"])[0]
        network = getattr(transformers, saved).from_pretrained(repository)
    except (OSError, ValueError, RuntimeError, AttributeError, SafetensorError) as error:
        raise UserError(f"{what} could not be loaded: {first_line(error)}") from error
    kind, saved = config.model_type, type(network).__name__
    if find_spec(f"{__name__}.{kind}") is None:
        raise UserError(f"{what}: is a {kind}; only gpt2, bert and vit can be loaded")
    family: Any = import_module(f"{__name__}.{kind}")
    if saved not in family.NETWORKS:
        raise UserError(f"{what}: is a {saved}; known: {', '.join(family.NETWORKS)}")
    return family, network.float()


def special_tokens(what: str) -> list[int]:
    """The token ids of [CLS], [SEP] and [MASK]."""
    from ablate.data.tokenizer import HuggingFace

    tokens = HuggingFace(what.partition(HUGGING_FACE)[2]).model
    ids = [tokens.cls_token_id, tokens.sep_token_id, tokens.mask_token_id]
    if None in ids:
        raise UserError(f"{what}: its tokenizer has no [CLS], [SEP] or [MASK]")
    return ids


def activation(ours: str) -> str:
    """Their name of a built-in feed-forward network; UserError if they have none."""
    names = {mine: theirs for theirs, mine in reversed(ACTIVATIONS.items())}
    if ours not in names:
        raise UserError(f"model.ffn={ours}: transformers' networks have {', '.join(names)}")
    return names[ours]


def sizes(config: Any, act: str, what: str) -> dict[str, Any]:
    """Sizes, by attributes that every config of transformers has, and the activation."""
    return {
        "model.dim": config.hidden_size,
        "model.depth": config.num_hidden_layers,
        "model.heads": config.num_attention_heads,
        "model.ffn": known(act, ACTIVATIONS, what),
    }
