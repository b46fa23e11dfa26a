"""Models and their parts as the command line makes them: from their YAML, at a tiny size."""

from collections.abc import Callable
from functools import partial
from typing import Any, TypeVar

import torch
from hydra.utils import get_class, instantiate
from make_systems import BLOCKS, DECODER, rows_of_systems
from omegaconf import OmegaConf
from torch import Tensor, nn
from torch.utils._python_dispatch import TorchDispatchMode

from ablate.config.keys import option_content
from ablate.config.overrides import ALIASES
from ablate.config.tree import config_file, config_files, groups
from ablate.data.pairs import BOS, PAD
from ablate.kernel import Kernel
from ablate.model.layers.layer import Context, LayerSpec
from ablate.model.mask.none import NoMask
from ablate.pos_enc import PosEnc
from ablate.pos_enc.none import NoPosEnc
from ablate.training.flops import flops_per_step

PAIRS = {"source_vocab": 12, "target_vocab": 11, "source_length": 8, "target_length": 7}
VOCAB = 11
# What each model is made of here, beside what its YAML says.
SIZES: dict[str, dict[str, Any]] = {
    "gpt": BLOCKS | {"vocab_size": VOCAB, "length": 7, "mask": "causal"},
    "bert": BLOCKS | {"vocab_size": VOCAB, "length": 9, "segments": 2, "next_sentence": True},
    "gpt_seq2seq": BLOCKS | PAIRS | {"joint": False, "mask": "source", "dropout": 0.0},
    "vit": BLOCKS | {"image_size": (6, 6), "channels": 2, "classes": 3, "patch": 2, "dropout": 0.0},
    "transformer": {key: value for key, value in BLOCKS.items() if key != "depth"}
    | PAIRS
    | {"joint": False, "encoder": {"depth": 2}, "decoder": {"depth": 2}}
    | {"mask": "causal", "cross_attention": None, "dropout": 0.0},
    "rnn_lm": {"vocab_size": VOCAB, "length": 7, "dim": 12},
    "rnn_seq2seq": PAIRS | DECODER | {"joint": False, "window": "none"},
    "resnet": {"image_size": (9, 9), "channels": 2, "classes": 3, "dim": 4, "gate": "none"},
    "timm": {"image_size": (8, 8), "channels": 1, "classes": 3},
    **rows_of_systems("SIZES"),
}


def options(group: str) -> list[str]:
    """The options of a group, from its files."""
    return [path.stem for path in config_files(f"{group}/*.yaml")]


def scores() -> list[str]:
    """The score functions: every option of model.attention but `none`, which compares nothing."""
    return [name for name in options("model.attention") if name != "none"]


# What has to be set for a kernel, where another composition is refused.
KERNEL_NEEDS = {
    "triton": ["model.attention=additive", "trainer=gpu"],
    "flex": ["trainer=gpu"],
    **rows_of_systems("KERNEL_NEEDS"),
}


def kernels() -> list[str]:
    """Those that need no GPU and no other composition."""
    return [name for name in options("kernel") if name not in KERNEL_NEEDS]


def part(group: str, option: str, **changes: Any) -> Any:
    """What conf/GROUP/OPTION.yaml makes, with some values changed."""
    if (usual := _partials.get((group, option))) and not changes:
        return usual
    node = OmegaConf.merge(option_content(config_file(f"{group}/{option}.yaml"))[0], changes)
    found = instantiate(node, _convert_="all")
    if isinstance(found, partial) and not changes:  # others, such as a kernel, have a state
        _partials[group, option] = found
    return found


_partials: dict[tuple[str, str], partial[Any]] = {}


def kernel(option: str, **changes: Any) -> Kernel:
    made: Kernel = part("kernel", option, **changes)
    return made


BY_YAML = {"cell", "decoder", "ffn", "norm_type"}  # whose default is that of the model's YAML


def build(name: str, /, **keys: Any) -> Any:
    """The class of conf/model/NAME.yaml with its keys, some of them changed; what is the name of an
    option becomes its part. Keys of attention have their short spelling. Errors come bare."""
    content, defaults = option_content(config_file(f"model/{name}.yaml"))
    chosen = {
        group.removeprefix("/model."): option
        for entry in defaults
        if isinstance(entry, dict)
        for group, option in entry.items()
        if group.removeprefix("/model.") in BY_YAML
    }
    node = content | chosen | keys
    if isinstance(node.get("layers"), dict):
        node["layers"] = ()  # every layer is the same
    for slot, option in node.items():
        group = slot if slot in ("pos_enc", "kernel") else f"model.{slot}"
        if isinstance(option, str) and group in groups():
            near = {"size": 2} if slot == "window" and option != "none" else {}
            node[slot] = part(group, option, **near)
    if own := {key: node.pop(key) for key in [*node] if f"model.{key}" in ALIASES}:
        node["mixer"] = partial(node["mixer"], **own)
    return get_class(node.pop("_target_"))(**node)


def tiny(name: str, /, **changes: Any) -> Any:
    """The model of conf/model/NAME.yaml, tiny; a window is 2 positions to each side."""
    return build(name, **(SIZES[name] | changes))


bert = partial(tiny, "bert")
gpt = partial(tiny, "gpt")
gpt_seq2seq = partial(tiny, "gpt_seq2seq")
resnet = partial(tiny, "resnet")
rnn_lm = partial(tiny, "rnn_lm")
rnn_seq2seq = partial(tiny, "rnn_seq2seq")
transformer = partial(tiny, "transformer")
vit = partial(tiny, "vit")


def place(dim: int, heads: int, length: int, **changes: Any) -> LayerSpec:
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
    return LayerSpec(dim=dim, heads=heads, length=length, **keys)


def context(pos: PosEnc | None = None, **keys: Any) -> Context:
    """The context of one pass; without positions unless given."""
    return Context(pos=pos or NoPosEnc(dim=2, heads=1, head_dim=2, length=1, depth=1), **keys)


Part = TypeVar("Part", bound=nn.Module)


def random_parts(module: Part, *, seed: int = 0, std: float = 0.5) -> Part:
    """In float64, every parameter away from zeros and ones, which would hide a mistake."""
    rng = torch.Generator().manual_seed(seed)
    module = module.double()
    with torch.no_grad():
        for parameter in module.parameters():
            parameter.copy_(std * torch.randn(parameter.shape, generator=rng))
    return module


def copy_to_torch(ours: Any, theirs: nn.Module) -> None:
    """The weights of a map, a norm, an attention or a stack of blocks, to torch's."""
    if isinstance(theirs, nn.MultiheadAttention):
        state = {f"out_proj.{name}": value for name, value in ours.out.state_dict().items()}
        for name in ours.out.state_dict():
            maps = [getattr(one, name) for one in (ours.query, ours.key, ours.value)]
            state[f"in_proj_{name}"] = torch.cat(maps)
        theirs.load_state_dict(state)
    elif isinstance(theirs, nn.TransformerEncoder | nn.TransformerDecoder):
        if theirs.norm is not None:
            copy_to_torch(ours.final_norm, theirs.norm)
        for block, layer in zip(ours.blocks, theirs.layers, strict=True):
            norm = "norm_before" if layer.norm_first else "norm_after"
            copy_to_torch(block.attention.function, layer.self_attn)
            copy_to_torch(block.feed_forward.function.up, layer.linear1)
            copy_to_torch(block.feed_forward.function.down, layer.linear2)
            if "cross_attention" in block:
                copy_to_torch(block.cross_attention.function, layer.multihead_attn)
            for number, sublayer in enumerate(block.values(), 1):
                copy_to_torch(getattr(sublayer, norm), getattr(layer, f"norm{number}"))
    else:
        theirs.load_state_dict(ours.state_dict())


def normal(*shape: int, seed: int = 1) -> Tensor:
    """Standard normal numbers in float64."""
    rng = torch.Generator().manual_seed(seed)
    return torch.randn(*shape, generator=rng, dtype=torch.float64)


def tokens(*shape: int, seed: int = 2) -> Tensor:
    rng = torch.Generator().manual_seed(seed)
    return torch.randint(VOCAB, shape, generator=rng)


def sentences(*lengths: int, seed: int = 0) -> Tensor:
    """Sentences of these lengths as tokens, padded."""
    rng = torch.Generator().manual_seed(seed)
    words = torch.randint(BOS + 1, VOCAB, (len(lengths), max(lengths)), generator=rng)
    return words.where(torch.arange(max(lengths)) < torch.tensor(lengths)[:, None], PAD)


class Each(TorchDispatchMode):
    """Calls a function with every tensor that any operation makes."""

    def __init__(self, see: Callable[[Tensor], object]) -> None:
        super().__init__()
        self.see = see

    def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        made = func(*args, **(kwargs or {}))
        for tensor in made if isinstance(made, tuple | list) else [made]:
            if isinstance(tensor, Tensor):
                self.see(tensor)
        return made


def together(score: str, pos_enc: str) -> bool:
    """Whether the two can be combined: what acts on queries and keys needs a score that reads them.

    the encodings' `conflicts` say the same; test_pairs.py holds it to account.
    """
    reads = part("model.attention", score).func
    encodes = part("pos_enc", pos_enc).func
    if encodes.rotates:
        return bool(reads.query and reads.key)
    return bool(reads.query or pos_enc not in ("relative", "relative_2d"))


def flops(make: Callable[[], nn.Module], *inputs: Tensor) -> int:
    """Of a training step of what is made."""
    with torch.device("meta"):
        model = make()
    return flops_per_step(model, *inputs)
