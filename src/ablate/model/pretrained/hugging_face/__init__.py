"""Pretrained weights of Hugging Face in our models: equal outputs, other parameter names.

model.pretrained=hf:NAME_OR_PATH. Each model family has a file in this folder, named after its
`model_type`. NAME is downloaded and cached by the library `transformers`, PATH is a folder written
by its `save_pretrained`.
"""

from importlib import import_module
from importlib.util import find_spec
from typing import TYPE_CHECKING, Any

from omegaconf import DictConfig

from ablate.config.rules import written
from ablate.config.schema import HUGGING_FACE
from ablate.errors import UserError
from ablate.training.transfer import fitting, parts_of
from ablate_attention import install

if TYPE_CHECKING:
    from ablate.model.base import Model

ACTIVATIONS = {
    "gelu": "gelu",
    "gelu_new": "gelu_tanh",
    "gelu_pytorch_tanh": "gelu_tanh",
    "relu": "relu",
}
# What all families have in common, as our overrides.
COMMON: dict[str, Any] = {
    "model.mixer": "attention",
    "model.attention": "scaled_dot",
    "model.normalizer": "softmax",
    "model.norm_type": "layer",
    "model.residual": True,
    "model.bias": True,
    "model.share_layers": False,
    "model.embedding_scale": 1.0,
    "pos_enc": "learned",
}


def is_hugging_face(name: str | bool | None) -> bool:
    """Whether model.pretrained names weights of Hugging Face."""
    return isinstance(name, str) and name.startswith(HUGGING_FACE)


def start_from(model: "Model", cfg: DictConfig) -> None:
    """Copy the weights that cfg.model.pretrained names; recorded in `model.started_from`.

    UserError that lists the overrides to use if the parts differ.
    """
    name = cfg.model.pretrained
    network = fetch(name.removeprefix(HUGGING_FACE))
    kind = network.config.model_type
    if find_spec(f"{__name__}.{kind}") is None:
        raise UserError(f"model.pretrained={name}: holds a {kind}; gpt2, bert and vit can be read")
    family: Any = import_module(f"{__name__}.{kind}")
    mine = parts_of(cfg)
    if mine["model"] != family.MODEL:
        raise UserError(f"model.pretrained={name}: holds a {kind}; use model={family.MODEL}")
    theirs = COMMON | sizes(network.config) | family.parts(network.config, name)
    if different := {key: value for key, value in theirs.items() if mine.get(key) != value}:
        write = " ".join(f"{key}={written(value)}" for key, value in different.items())
        raise UserError(f"model.pretrained={name} is made of other parts than this model: {write}")
    here = model.state_dict()
    state = family.translate(network.state_dict(), here, name)
    loaded = fitting(here, state, model.heads, f"model.pretrained={name}")
    model.load_state_dict(loaded, strict=False)
    model.started_from = {
        "run": name,
        "run_id": None,
        "loaded": sorted(loaded),
        "new": sorted(here.keys() - loaded.keys()),
        "left": sorted(state.keys() - loaded.keys()),
    }


def fetch(name: str) -> Any:
    """The saved network, loaded as the class that saved it, so that no part is left random."""
    try:
        import transformers
    except ImportError:
        raise UserError(
            f"model.pretrained={HUGGING_FACE}{name} needs the library transformers: {install('hf')}"
        ) from None
    transformers.logging.set_verbosity_error()
    transformers.logging.disable_progress_bar()
    try:
        config = transformers.AutoConfig.from_pretrained(name, trust_remote_code=False)
        saved = (config.architectures or ["AutoModel"])[0]
        network = getattr(transformers, saved).from_pretrained(name)
    except (OSError, ValueError, RuntimeError, AttributeError) as error:
        line = str(error).strip().splitlines()[0]
        raise UserError(
            f"model.pretrained={HUGGING_FACE}{name} could not be loaded: {line}"
        ) from error
    return network.float()


def special_tokens(name: str) -> list[int]:
    """The token ids of [CLS], [SEP] and [MASK]."""
    from ablate.data.tokenizer import HuggingFace

    tokens = HuggingFace(name.removeprefix(HUGGING_FACE)).model
    found = [tokens.cls_token_id, tokens.sep_token_id, tokens.mask_token_id]
    if None in found:
        raise UserError(f"model.pretrained={name}: its tokenizer has no [CLS], [SEP] or [MASK]")
    return found


def sizes(config: Any) -> dict[str, int]:
    """Sizes of the model, by attributes that every config of transformers has."""
    return {
        "model.dim": config.hidden_size,
        "model.depth": config.num_hidden_layers,
        "model.heads": config.num_attention_heads,
    }


def activation(act: str, name: str) -> str:
    """Our name of an activation; UserError if we have none."""
    if act not in ACTIVATIONS:
        known = ", ".join(sorted(ACTIVATIONS))
        raise UserError(f"model.pretrained={name}: its activation is {act}; known: {known}")
    return ACTIVATIONS[act]
