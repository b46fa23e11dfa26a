"""study.ladder: the study at several sizes of the model, each with the recipe of a published rule.

    study:
      ladder: {sizes: [3M, 10M, 30M], tokens_per_parameter: 20, rules: olmo}

A rule is a function from a size, in parameters of the blocks, to the keys that it sets; each size
becomes a block of a study (study.blocks). The parameters of a shape are counted as
12 depth dim**2: neither embeddings nor the output map, whose share depends on the vocabulary.
Typed overrides, and those of study.baseline, take the place of a rule's.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass, replace
from math import ceil, log, log2, sqrt
from typing import Any

from omegaconf import DictConfig, OmegaConf

from ablate.config.keys import default_of
from ablate.config.overrides import key_of, value_text
from ablate.errors import UserError
from ablate.study.plan.request import StudyRequest

SHAPE = ("model.dim", "model.depth", "model.heads")
BASES = ("model.base_dim", "model.base_heads", "model.base_depth")
UNITS = {"K": 1e3, "M": 1e6, "B": 1e9}


@dataclass(frozen=True)
class Shape:
    dim: int
    depth: int
    heads: int

    @property
    def parameters(self) -> int:
        return 12 * self.depth * self.dim**2


@dataclass(frozen=True)
class Given:
    """Values of the configuration that rules scale or keep. batch: tokens of a step; ratio: tokens
    of training per parameter."""

    shape: Shape
    batch: float
    ratio: float
    lr: float
    weight_decay: float
    by_role: bool = False  # whether the optimizer has a rule for each role of parameters


@dataclass(frozen=True)
class Rung:
    """batch: tokens of a step; tokens: of the training; keys: others that the rule sets."""

    shape: Shape
    batch: float
    tokens: float
    keys: Mapping[str, Any]


def nearest(shapes: Iterable[Shape], size: float) -> Shape:
    return min(shapes, key=lambda shape: abs(log(shape.parameters / size)))


# The models of src/olmo_core/nn/transformer/config.py in OLMo-core, olmo3_14M to olmo3_13B.
OLMO = tuple(
    Shape(*each)
    for each in (
        (128, 4, 8), (256, 4, 8), (384, 8, 8), (512, 12, 8), (768, 12, 12), (1024, 16, 16),
        (1280, 16, 16), (1536, 16, 16), (2048, 16, 16), (3328, 16, 16), (4096, 32, 32),
        (5120, 40, 40),
    )
)  # fmt: skip
NARROWEST = 16  # width of a head


def olmo(size: float, given: Given) -> Rung:
    """OLMo-core's ladder: WSDSChinchillaRunConfigurator of
    https://github.com/allenai/OLMo-core/tree/fa6c5014c9f6e9ee789da2d9c20d5126fee8df0d
    src/olmo_core/model_ladder/wsds_chinchilla_run_configurator.py, after Porian et al. 2024.

    Depth and heads are those of its nearest model, whose width is scaled to the size.

    Three things differ from OLMo-core. The training has one decay, over the last tenth of all
    steps; theirs decays at the end of each of several periods, over a tenth of the period, and
    warms up again. Their last period is half of the training, so its decay is the last 5 %. Their
    beta2 is 0.95 for batches of at least 524,288 tokens and 0.99 for smaller ones; here it is that
    of the configuration. Their embeddings have no weight decay.
    """
    near = nearest(OLMO, size)
    width = sqrt(size / 12 / near.depth)
    heads = min(near.heads, max(1, round(width) // NARROWEST))
    shape = Shape(max(1, round(width / heads / 2)) * 2 * heads, near.depth, heads)
    scale = shape.parameters / 108e6
    return Rung(
        shape,
        batch=round(2048 * 160 * scale ** (2 / 3)),
        tokens=int(given.ratio * shape.parameters),
        keys={
            "optimizer.lr": 0.0047 * scale ** (-1 / 3) / 2,
            "optimizer.weight_decay": 0.1,
            "schedule": "wsd",
            "schedule.warmup": min(1 / given.ratio, 0.5),  # a token per parameter
            "schedule.decay": 0.1,
            "schedule.shape": "linear",
        },
    )


def nanochat(size: float, given: Given) -> Rung:
    """nanochat's scaling from its model of depth 12, whose rate and decay are
    optimizer.lr and optimizer.weight_decay: scripts/base_train.py and nanochat/gpt.py of
    https://github.com/karpathy/nanochat/tree/92d63d4e8bb4df75c3b71618f31ddde2378b2bcd

    Width is 64 times depth, in heads of 128. The batch grows with tokens^0.383 in powers of two,
    the rate with the square root of the batch; without Muon it falls with that of the width.
    nanochat also lowers the weight decay to 0 by a cosine, and changes Muon's momentum during the
    training; here both are constant.
    """
    dials = {depth: ceil(64 * depth / 128) for depth in range(1, 101)}
    shapes = {depth: Shape(128 * heads, depth, heads) for depth, heads in dials.items()}
    shape, reference = nearest(shapes.values(), size), shapes[12]
    tokens = int(given.ratio * shape.parameters)
    growth = tokens / (given.ratio * reference.parameters)
    batch = 2 ** round(log2(2**19 * growth**0.383))
    lr = given.lr * sqrt(batch / 2**19)
    of_adam = lr * (shape.dim / reference.dim) ** -0.5
    rates = {"optimizer.lr": lr, "++optimizer.others.lr": of_adam}
    return Rung(
        shape,
        batch,
        tokens // batch * batch,
        {
            **(rates if given.by_role else {"optimizer.lr": of_adam}),
            "optimizer.weight_decay": given.weight_decay * sqrt(batch / 2**19) / growth,
            "schedule": "wsd",
            "schedule.warmup": min(40, tokens // batch // 4),
            "schedule.decay": 0.65,
            "schedule.shape": "linear",
            "schedule.floor": 0.05,
        },
    )


def mup(size: float, given: Given) -> Rung:
    """Maximal update parametrization (Yang et al. 2022, table 8, https://arxiv.org/abs/2203.03466):
    only the width grows, in heads of equal width. optimizer.lr was tuned at model.dim;
    model.base_dim transfers it, with the weight decay. Batch and depth are the configuration's."""
    base = given.shape
    each = base.dim // base.heads
    heads = max(1, round(sqrt(size / 12 / base.depth) / each))
    shape = Shape(each * heads, base.depth, heads)
    tokens = int(given.ratio * shape.parameters)
    keys = {"model.base_dim": base.dim, "model.base_heads": base.heads}
    return Rung(shape, given.batch, tokens, keys)


def completep(size: float, given: Given) -> Rung:
    """muP over the width, and CompleteP over the depth (Dey et al. 2025, table 1 with alpha = 1,
    https://arxiv.org/abs/2505.01618): both grow in one proportion, in heads of equal width.
    optimizer.lr was tuned at model.dim and model.depth, with model.init_depth_scale=false."""
    base = given.shape
    each = base.dim // base.heads
    shapes = (
        Shape(each * heads, max(1, round(base.depth * heads / base.heads)), heads)
        for heads in range(1, 500)
    )
    shape = nearest(shapes, size)
    keys = {"model.base_depth": base.depth, "model.init_depth_scale": False}
    tokens = int(given.ratio * shape.parameters)
    return Rung(shape, given.batch, tokens, {**mup(size, given).keys, **keys})


RULES: dict[str, Callable[[float, Given], Rung]] = {
    "olmo": olmo,
    "nanochat": nanochat,
    "mup": mup,
    "completep": completep,
}


def as_blocks(request: StudyRequest, baseline: Callable[[], DictConfig]) -> StudyRequest:
    """The request with the blocks of study.ladder. baseline: composes it. Raises UserError."""
    ladder = request.node["ladder"]
    if not ladder["sizes"]:
        for key, usual in default_of("study.ladder").items():
            if ladder[key] != usual:
                raise UserError(
                    f"study.ladder.{key}={ladder[key]} has no effect without study.ladder.sizes;"
                    " set these, or leave it out"
                )
        return request
    if request.node["blocks"]:
        raise UserError("study.ladder with study.blocks: each size is a block; leave one out")
    keys = [key_of(text) for text in request.fixed]
    if fixed := [key for key in (*SHAPE, *BASES) if key in keys]:
        raise UserError(f"study.ladder: sets {fixed[0]}; leave '{fixed[0]}=' out")
    sizes = [_size(text) for text in ladder["sizes"]]
    cfg, rule = baseline(), RULES[ladder["rules"]]
    given = _given(cfg, ladder["tokens_per_parameter"])
    known: dict[Shape, str] = {}
    blocks = {}
    for text, size in zip(ladder["sizes"], sizes, strict=True):
        rung = rule(size, given)
        if rung.shape in known:
            raise UserError(
                f"study.ladder: {known[rung.shape]} and {text} are the same model by"
                f" rules={ladder['rules']}, {rung.shape}; choose sizes that differ more"
            )
        known[rung.shape], blocks[text] = text, _overrides(rung, cfg, keys)
    return replace(request, node={**request.node, "blocks": {"size": blocks}})


def _size(text: str) -> float:
    """Parameters: 3e6 of 3M."""
    found = re.fullmatch(r"(\d+(?:\.\d+)?)([KMB])", text.upper())
    if not found or not float(found[1]):
        raise UserError(f"study.ladder: size {text}: must be a number with K, M or B, such as 3M")
    return float(found[1]) * UNITS[found[2]]


def _given(cfg: DictConfig, ratio: float) -> Given:
    values = {}
    for key in (*SHAPE, "data.seq_len"):
        values[key] = OmegaConf.select(cfg, key)
        if values[key] is None:
            part = key.partition(".")[0]
            raise UserError(
                f"study.ladder: {part}={cfg.choices[part]} has no {key}; a ladder needs"
                " model.dim, model.depth, model.heads and data.seq_len, as model=gpt has them"
            )
    values |= {key: OmegaConf.select(cfg, key) for key in ("data.batch_size", "optimizer.lr")}
    for key, value in values.items():
        if type(value) not in (int, float) or value <= 0:
            raise UserError(f"study.ladder: {key}={value}: must be a positive number")
    shape = Shape(*(values[key] for key in SHAPE))
    return Given(
        shape,
        cfg.data.batch_size * _at_once(cfg),
        ratio,
        cfg.optimizer.lr,
        cfg.optimizer.get("weight_decay") or 0.0,
        "others" in cfg.optimizer,
    )


def _at_once(cfg: DictConfig) -> int:
    """Tokens of a step for each example of data.batch_size."""
    return int(cfg.data.seq_len * cfg.trainer.accumulate_grad_batches)


def _overrides(rung: Rung, cfg: DictConfig, typed: list[str]) -> list[str]:
    """As a block has them. typed: keys of other overrides, which take precedence."""
    each = _at_once(cfg)
    examples = max(1, round(rung.batch / each))
    if "data.batch_size" in typed:
        examples = cfg.data.batch_size
    values = {
        **dict(zip(SHAPE, (rung.shape.dim, rung.shape.depth, rung.shape.heads), strict=True)),
        "data.batch_size": examples,
        "trainer.max_steps": max(1, round(rung.tokens / (examples * each))),
        **rung.keys,
    }
    groups = [group for group in rung.keys if group in typed]  # whose other options lack its keys
    return [
        f"{key}={value_text(value)}"
        for key, value in values.items()
        if key_of(key) not in typed and key.partition(".")[0] not in groups
    ]
