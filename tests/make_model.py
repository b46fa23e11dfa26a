"""Models and their parts as the command line makes them: from their YAML, at a tiny size."""

from collections.abc import Callable
from pathlib import Path
from typing import Any

import torch
from hydra.utils import get_class, instantiate
from omegaconf import OmegaConf
from torch import Tensor, nn

from ablate.config.keys import option_content
from ablate.kernel import Kernel
from ablate.model.bert import BERT
from ablate.model.captioner import Captioner
from ablate.model.dit import DiT
from ablate.model.gpt import GPT
from ablate.model.gpt_seq2seq import GPTSeq2Seq
from ablate.model.layers.layer import Context, Place
from ablate.model.mask.none import NoMask
from ablate.model.rnn_lm import RNNLM
from ablate.model.rnn_seq2seq import RNNSeq2Seq
from ablate.model.transformer import Transformer
from ablate.model.vit import ViT
from ablate.pos_enc import PosEnc
from ablate.pos_enc.none import NoPosEnc

CONF = Path(__file__).parents[1] / "conf"

SIZES: dict[str, dict[str, Any]] = {
    "gpt": {"vocab_size": 11, "length": 7},
    "bert": {"vocab_size": 11, "length": 9, "segments": 2, "next_sentence": True},
    "vit": {"image_size": (6, 6), "channels": 2, "classes": 3},
    "transformer": {
        "source_vocab": 12,
        "target_vocab": 11,
        "source_length": 8,
        "target_length": 7,
        "joint": False,
    },
    "rnn_lm": {"vocab_size": 11, "length": 7},
}
SIZES["rnn_seq2seq"] = SIZES["gpt_seq2seq"] = SIZES["transformer"]
SIZES["dit"] = SIZES["captioner"] = {
    "image_size": (12, 24),
    "channels": 1,
    "target_vocab": 11,
    "target_length": 5,
}
TINY: dict[str, dict[str, Any]] = {
    "gpt": {"dim": 12, "heads": 3, "depth": 2},
    "bert": {"dim": 12, "heads": 3, "depth": 2},
    "gpt_seq2seq": {"dim": 12, "heads": 3, "depth": 2, "dropout": 0.0},
    "vit": {"dim": 12, "heads": 3, "depth": 2, "patch": 2, "dropout": 0.0},
    "transformer": {
        "dim": 12,
        "heads": 3,
        "encoder": {"depth": 2},
        "decoder": {"depth": 2},
        "dropout": 0.0,
    },
    "rnn_lm": {"dim": 12},
    "rnn_seq2seq": {"dim": 12},
    "captioner": {"dim": 12},
    "dit": {"dim": 12, "heads": 3, "depth": 2},
}


def options(group: str) -> list[str]:
    """The options of a group, from its files."""
    return sorted(path.stem for path in (CONF / group).glob("*.yaml"))


def scores() -> list[str]:
    """The score functions: every option of model.attention but `none`, which compares nothing."""
    return [name for name in options("model.attention") if name != "none"]


# What has to be set for a kernel, where another composition is refused.
KERNEL_NEEDS = {
    "sparse": ["model=gat"],
    "triton": ["model.attention=additive", "trainer=gpu"],
    "flex": ["trainer=gpu"],
}


def kernels() -> list[str]:
    """Those that need no graph, as kernel=sparse does, and no GPU."""
    return [name for name in options("kernel") if name not in KERNEL_NEEDS]


def part(group: str, option: str, **changes: Any) -> Any:
    """What conf/GROUP/OPTION.yaml makes, with some values changed."""
    node = OmegaConf.merge(option_content(CONF / group / f"{option}.yaml")[0], changes)
    return instantiate(node, _convert_="all")


def kernel(option: str, **changes: Any) -> Kernel:
    made: Kernel = part("kernel", option, **changes)
    return made


def gpt(**changes: Any) -> GPT:
    """The model of conf/model/gpt.yaml, tiny; `attention`, `mask`, `pos_enc`: option or part."""
    model: GPT = _model("gpt", **changes)
    return model


def bert(**changes: Any) -> BERT:
    """The model of conf/model/bert.yaml, tiny, for pairs of segments."""
    model: BERT = _model("bert", **changes)
    return model


def vit(**changes: Any) -> ViT:
    """The model of conf/model/vit.yaml, tiny."""
    model: ViT = _model("vit", **changes)
    return model


def transformer(**changes: Any) -> Transformer:
    """The model of conf/model/transformer.yaml, tiny; `cross_attention`: option or part."""
    cross = changes.pop("cross_attention", None)
    changes["cross_attention"] = part("model.attention", cross) if isinstance(cross, str) else cross
    model: Transformer = _model("transformer", **changes)
    return model


def gpt_seq2seq(**changes: Any) -> GPTSeq2Seq:
    """The model of conf/model/gpt_seq2seq.yaml, tiny."""
    model: GPTSeq2Seq = _model("gpt_seq2seq", **changes)
    return model


def rnn_lm(**changes: Any) -> RNNLM:
    """The model of conf/model/rnn_lm.yaml, tiny."""
    model: RNNLM = build("rnn_lm", **(SIZES["rnn_lm"] | TINY["rnn_lm"] | changes))
    return model


def rnn_seq2seq(
    *,
    attention: str | Callable[..., Any] = "additive",
    normalizer: str = "softmax",
    window: str | Callable[..., Any] = "none",
    kernel: str | Kernel = "reference",
    **changes: Any,
) -> RNNSeq2Seq:
    """The model of conf/model/rnn_seq2seq.yaml, tiny; a window is 2 positions to each side."""
    if isinstance(window, str):
        window = part("model.window", window, **({} if window == "none" else {"size": 2}))
    parts = {
        "attention": part("model.attention", attention)
        if isinstance(attention, str)
        else attention,
        "normalizer": part("model.normalizer", normalizer),
        "window": window,
        "kernel": part("kernel", kernel) if isinstance(kernel, str) else kernel,
    }
    sizes = SIZES["rnn_seq2seq"] | TINY["rnn_seq2seq"]
    model: RNNSeq2Seq = build("rnn_seq2seq", **(sizes | parts | changes))
    return model


def captioner(
    *,
    attention: str = "additive",
    normalizer: str = "softmax",
    gate: str = "none",
    pos_enc: str = "none",
    kernel: str = "reference",
    **changes: Any,
) -> Captioner:
    """The model of conf/model/captioner.yaml, tiny."""
    parts = {
        "attention": part("model.attention", attention),
        "normalizer": part("model.normalizer", normalizer),
        "gate": part("model.gate", gate),
        "pos_enc": part("pos_enc", pos_enc),
        "kernel": part("kernel", kernel),
    }
    sizes = SIZES["captioner"] | TINY["captioner"]
    model: Captioner = build("captioner", **(sizes | parts | changes))
    return model


def dit(*, condition: str = "adaln_zero", **changes: Any) -> DiT:
    """The model of conf/model/dit.yaml, tiny."""
    model: DiT = _model("dit", condition=part("model.condition", condition), **changes)
    return model


def _model(
    name: str,
    *,
    mixer: str | Any = "attention",
    attention: str | Callable[..., Any] = "scaled_dot",
    normalizer: str = "softmax",
    mask: str | Callable[..., Any] | None = None,
    pos_enc: str | Callable[..., Any] = "none",
    kernel: str | Kernel = "reference",
    **changes: Any,
) -> Any:
    mask = mask or ("source" if name == "gpt_seq2seq" else None)
    mask = mask or ("causal" if name in ("gpt", "transformer") else "none")
    slots = {
        "mixer": ("model.mixer", mixer),
        "attention": ("model.attention", attention),
        "normalizer": ("model.normalizer", normalizer),
        "mask": ("model.mask", mask),
        "pos_enc": ("pos_enc", pos_enc),
        "kernel": ("kernel", kernel),
    }
    parts = {
        slot: part(group, chosen) if isinstance(chosen, str) else chosen
        for slot, (group, chosen) in slots.items()
    }
    return build(name, **(SIZES[name] | TINY[name] | parts | changes))


# Slots whose option may be given by its name; that of the model's YAML is the default.
NAMED = {"cell", "decoder", "ffn", "norm_type"}


def build(name: str, /, **keys: Any) -> Any:
    """The class of conf/model/NAME.yaml with its keys, some of them changed. Errors come bare."""
    content, defaults = option_content(CONF / "model" / f"{name}.yaml")
    slots = {f"/model.{slot}": slot for slot in NAMED}
    chosen = {
        slots[key]: option
        for entry in defaults
        if isinstance(entry, dict)
        for key, option in entry.items()
        if key in slots
    }
    node = content | chosen | keys
    if isinstance(node.get("layers"), dict):
        node["layers"] = ()  # every layer is the same
    for slot in NAMED & node.keys():
        if isinstance(node[slot], str):
            node[slot] = part(f"model.{slot}", node[slot])
    return get_class(node.pop("_target_"))(**node)


def place(dim: int, heads: int, length: int, **changes: Any) -> Place:
    """A place for a layer in a model of plain parts; `score` and `pos` may be options."""
    sizes = {"dim": dim, "heads": heads, "head_dim": dim // heads, "length": length, "depth": 1}
    usual = {
        "grid": None, "bias": True, "std": 0.02, "out_std": 0.02, "dropout": 0.0,
        "score": "scaled_dot", "normalizer": part("model.normalizer", "softmax"),
        "kernel": part("kernel", "reference"), "mask": NoMask(causal=False), "pos": "none",
    }  # fmt: skip
    keys = usual | changes
    if isinstance(keys["score"], str):
        keys["score"] = part("model.attention", keys["score"])
    if isinstance(keys["pos"], str):
        keys["pos"] = part("pos_enc", keys["pos"])(**sizes)
    return Place(dim=dim, heads=heads, length=length, **keys)


def context(pos: PosEnc | None = None, **keys: Any) -> Context:
    """The context of one pass; without positions unless given."""
    return Context(pos=pos or NoPosEnc(dim=2, heads=1, head_dim=2, length=1, depth=1), **keys)


def random_parts(module: nn.Module, *, seed: int = 0, std: float = 0.5) -> nn.Module:
    """In float64, every parameter away from zeros and ones, which would hide a mistake."""
    rng = torch.Generator().manual_seed(seed)
    module = module.double()
    with torch.no_grad():
        for parameter in module.parameters():
            parameter.copy_(std * torch.randn(parameter.shape, generator=rng))
    return module


def normal(*shape: int, seed: int = 1) -> Tensor:
    """Standard normal numbers in float64."""
    rng = torch.Generator().manual_seed(seed)
    return torch.randn(*shape, generator=rng, dtype=torch.float64)


def tokens(*shape: int, seed: int = 2) -> Tensor:
    rng = torch.Generator().manual_seed(seed)
    return torch.randint(SIZES["gpt"]["vocab_size"], shape, generator=rng)


def together(score: str, pos_enc: str) -> bool:
    """Whether the two can be combined: what acts on queries and keys needs a score that reads them.

    the encodings' `conflicts` say the same; test_pairs.py holds it to account.
    """
    reads = part("model.attention", score).func
    encodes = part("pos_enc", pos_enc).func
    if encodes.compares:
        return bool(reads.query and reads.key)
    return bool(reads.query or pos_enc not in ("relative", "relative_2d"))
