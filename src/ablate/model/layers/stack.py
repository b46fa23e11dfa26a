"""Stacks: position encoding, blocks one after another, and the final norm.

Shared layers: Dehghani et al. 2018, Universal Transformer, https://arxiv.org/abs/1807.03819.
Activation checkpointing: Chen et al. 2016, https://arxiv.org/abs/1604.06174; selective: Korthikanti
et al. 2022, https://arxiv.org/abs/2205.05198.
"""

from collections.abc import Callable, Iterable, Mapping, Sequence
from functools import partial
from typing import Any, Literal, NamedTuple, NotRequired, Unpack

import torch
from jaxtyping import Bool, Float, Int
from torch import Tensor, nn
from torch.utils.checkpoint import checkpoint as recomputed
from torch.utils.checkpoint import create_selective_checkpoint_contexts

from ablate.config.rules import Depth, Positive, Share
from ablate.errors import UserError
from ablate.kernel import Kernel
from ablate.kernel.interface.documents import Documents
from ablate.kernel.sdpa import SDPA
from ablate.model.attention import Score
from ablate.model.layers.block import Block, BlockKeys, make_block
from ablate.model.layers.layer import Cache, Context, Layer, Memory
from ablate.model.layers.modulation import MakeModulation
from ablate.model.mask import Mask
from ablate.pos_enc import PosEnc
from ablate.random.dropout import Dropout

# Operations that take long for the memory of their results: linear maps and fused attention.
# Written-out scores, whose memory grows with the square of the length, and pointwise operations are
# computed again.
KEPT = [
    torch.ops.aten.mm.default,
    torch.ops.aten.addmm.default,
    torch.ops.aten._scaled_dot_product_flash_attention.default,
    torch.ops.aten._scaled_dot_product_flash_attention_for_cpu.default,
    torch.ops.aten._scaled_dot_product_efficient_attention.default,
    torch.ops.aten._scaled_dot_product_cudnn_attention.default,
]


class SharedKeys(BlockKeys):
    """The keys of a model's YAML that several stacks of it share."""

    pos_enc: Callable[..., PosEnc]
    drop_path: Share
    share_layers: bool
    embedding_scale: NotRequired[Positive | Literal["sqrt"]]
    activation_checkpointing: NotRequired[bool | Literal["selective"]]


class StackKeys(SharedKeys):
    """The keys of the YAML of a model with one stack."""

    depth: Depth
    attention: Callable[..., Score]
    mask: Callable[..., Mask]
    layers: NotRequired[Sequence[Mapping[str, Any]] | None]


def encodings(stack: str) -> tuple[str, ...]:
    """The prefixes of the names of the position encodings in a model's stack of this name."""
    return f"{stack}.pos_enc.", f"{stack}.other_pos_encs."


class Stack(nn.Module):
    """Position encoding, `depth` blocks and the final norm: the core of every Transformer here.

    `block`: those of every block; `length`, `grid`, `extra`, `causal` (see PosEnc) and `source`
    (see Mask) describe the input. layers: keys of a
    block, of `mask` and of `pos_enc` that differ by layer, each with values to cycle through.
    `embedding_norm` adds a norm of the embeddings if the norm placement of the first block is post.
    `embedding_scale` multiplies the input before positions are added; "sqrt" is the root of `dim`
    (Vaswani et al. 2017, section 3.4).
    `activation_checkpointing` stores only the input of each block for the backward pass, which
    recomputes the rest; "selective" also stores the results of `KEPT`.
    """

    def __init__(
        self,
        dim: int,
        *,
        depth: int,
        attention: Callable[..., Score],
        mask: Callable[..., Mask],
        pos_enc: Callable[..., PosEnc],
        length: int,
        causal: bool,
        drop_path: float,
        share_layers: bool,
        layers: Sequence[Mapping[str, Any]] | None = None,
        grid: tuple[int, int] | None = None,
        extra: int = 0,
        source: int = 0,
        embedding_norm: bool = False,
        embedding_scale: float | Literal["sqrt"] = 1.0,
        activation_checkpointing: bool | Literal["selective"] = False,
        cross_attention: Callable[..., Score] | None = None,
        memory_length: int = 0,
        modulation: MakeModulation | None = None,
        query_scale: float = 1.0,
        **block: Unpack[BlockKeys],
    ):
        super().__init__()
        self.depth, self.activation_checkpointing = depth, activation_checkpointing
        self.scale = dim**0.5 if embedding_scale == "sqrt" else float(embedding_scale)
        self.causal = causal
        built = 1 if share_layers else depth
        shared: dict[str, Any] = {"attention": attention, "cross_attention": cross_attention}
        shared |= {"pos_enc": pos_enc, "mask": mask, **block}
        keys = [shared | dict(layers[n % len(layers)] if layers else {}) for n in range(built)]
        layout: dict[str, Any] = {"grid": grid, "extra": extra}
        of_source = {"source": source} if source else {}
        self.masks: list[Mask] = [
            block_keys.pop("mask")(causal=causal, **layout, **of_source) for block_keys in keys
        ]
        numbers = self._encode_positions(keys, dim=dim, length=length, **layout)
        self.dropout = Dropout(block["dropout"])
        self.embedding_norm: nn.Module = nn.Identity()
        if embedding_norm and keys[0]["norm"] == "post":
            self.embedding_norm = _norm(dim, keys[0])
        blocks: list[Block] = []
        for n, block_keys in enumerate(keys):
            made = make_block(
                dim,
                depth=depth,
                length=length,
                grid=grid,
                mask=self.masks[n],
                pos=self.positions[n],
                layer=numbers[n],
                # The rate rises from 0 at the first block to the full one at the last; a shared
                # block always has the full rate.
                drop_path=drop_path * (n / (depth - 1) if built > 1 else 1),
                before=sum(map(len, blocks)),
                memory_length=memory_length,
                modulation=modulation,
                query_scale=query_scale,
                **block_keys,
            )
            blocks.append(made)
        self.blocks = nn.ModuleList(blocks)
        self.streams = _streams(self.blocks)
        # Placements that never normalize the residual stream normalize the output.
        self.final_norm: nn.Module = nn.Identity()
        if keys[-1]["norm"] in ("pre", "sandwich", "output"):
            self.final_norm = _norm(dim, keys[-1])
        self.final_modulation = modulation(dim, gate=False) if modulation else None
        self.losses: list[tuple[str, Float[Tensor, ""]]] = []

    def _encode_positions(self, keys: Sequence[dict[str, Any]], **sizes: Any) -> list[int]:
        """Set the position encoding of each block: one instance for all blocks that it can be the
        same for. Return the number of each block among those with its instance."""
        kinds = [
            _Kind(block_keys.pop("pos_enc"), block_keys["heads"], not mask.look_ahead)
            for block_keys, mask in zip(keys, self.masks, strict=True)
        ]
        first: Any = kinds[0].encoding
        if getattr(first, "func", first).acts_in == "input":
            kinds = kinds[:1] * len(kinds)
        encodings = {
            kind: kind.make(depth=kinds.count(kind), **sizes) for kind in dict.fromkeys(kinds)
        }
        self.positions = [encodings[kind] for kind in kinds]
        self.pos_enc, *others = encodings.values()
        self.other_pos_encs = nn.ModuleList(others)
        return [kinds[:n].count(kind) for n, kind in enumerate(kinds)]

    def forward(
        self,
        x: Float[Tensor, "b i d"],
        *,
        keep: Bool[Tensor, "b j"] | None = None,
        counted: Bool[Tensor, "b j"] | None = None,
        documents: Documents | None = None,
        positions: Int[Tensor, "b i"] | None = None,
        cache: Cache | None = None,
        memory: Memory | None = None,
        condition: Float[Tensor, "b d"] | None = None,
        value_embeddings: Mapping[Layer, Float[Tensor, "b i _"]] | None = None,
        position: int | None = None,
    ) -> Float[Tensor, " b #i d"]:
        """x: with a cache only the new tokens; keep: True = real. documents: those that no layer
        crosses. positions: of the tokens, for an encoding that is added to them; None: those in
        the row. counted, value_embeddings: as in Context.

        position: return the state of only this position. If possible, the last block does
        not compute the others. `losses` then contains the layers' losses of a training step.
        """
        start, count = cache.length() if cache else 0, x.shape[1]
        x = x if self.scale == 1 else x * self.scale
        for encoding in dict.fromkeys(self.positions):
            encoding.prepare(x)
        if positions is None:
            x = self.pos_enc.embed(x, start)
        else:
            added = self.pos_enc.embed(torch.zeros_like(x[:1]), start)[0]
            x = x + added[positions]
        x = self.dropout(self.embedding_norm(x))
        # Recomputing would fill a cache twice; without gradients nothing is stored anyway.
        again = self.activation_checkpointing and cache is None and torch.is_grad_enabled()
        how: dict[str, Any] = {"use_reentrant": False}
        if self.activation_checkpointing == "selective":
            how["context_fn"] = partial(create_selective_checkpoint_contexts, KEPT)
        self.losses = []
        first_values: dict[int, Tensor] = {}
        embedded, x = x, x.repeat(1, 1, self.streams) if self.streams > 1 else x
        for step in range(self.depth):
            use, n = divmod(step, len(self.blocks))
            block = self.blocks[n]
            context = Context(
                pos=self.positions[n],
                keep=keep,
                counted=counted,
                documents=documents,
                cache=cache,
                memory=memory,
                condition=condition,
                embedded=embedded,
                start=start,
                step=step,
                use=use,
                losses=self.losses,
                first_values=first_values,
                value_embeddings=value_embeddings or {},
            )
            if step == self.depth - 1 and position is not None and block.selects:
                context.position, position = position, None
            # Recomputing drops the same units: a draw depends only on its place.
            x = partial(recomputed, block, **how)(x, context) if again else block(x, context)
        if cache is not None:
            cache.tokens = start + count
        if self.streams > 1:
            x = x.unflatten(-1, (self.streams, -1)).mean(-2)
        x = self.final_norm(x)
        if self.final_modulation is not None:
            x, _ = self.final_modulation(x, condition)
        return x if position is None else x[:, position : position + 1]

    @property
    def layers(self) -> list[Layer]:
        """The layers of every block, from the first to the last."""
        return [layer for block in self.blocks for layer in block.layers]  # type: ignore[union-attr]

    @property
    def look_ahead(self) -> bool:
        """Whether a position of the output depends on later ones of the input."""
        return any(mask.look_ahead for mask in self.masks)

    @property
    def leaks_targets(self) -> bool:
        """Whether a position of the output depends on later ones of the target."""
        return any(mask.leaks_targets for mask in self.masks)

    @property
    def cacheable(self) -> bool:
        """Whether a cache stays valid: later tokens do not change the states of earlier ones, the
        source being read at once."""
        return all(mask.caches for mask in self.masks) and all(
            layer.traits.caches or not layer.traits.mixes for layer in self.layers
        )

    @property
    def cross(self) -> list[Layer]:
        """The layers that read a memory, from the first to the last."""
        return [layer for layer in self.layers if layer.reads_memory]

    def remember(self, encoded: Float[Tensor, "b j d"], keep: Bool[Tensor, "b j"]) -> Memory:
        """Encoded source, and True = real -> the memory that `forward` takes."""
        return Memory({layer: layer.read(encoded) for layer in self.cross}, keep)


class _Kind(NamedTuple):
    """The common settings of the position encodings of two blocks that share a module."""

    encoding: Callable[..., PosEnc]
    heads: int
    causal: bool

    def make(self, *, dim: int, **sizes: Any) -> PosEnc:
        heads = self.heads
        return self.encoding(
            dim=dim, heads=heads, head_dim=dim // heads, causal=self.causal, **sizes
        )


def _streams(blocks: nn.ModuleList) -> int:
    """The number of residual streams of the blocks. Raises UserError if they differ."""
    counts = {sublayer.streams for block in blocks for sublayer in block.values()}  # type: ignore[operator]
    if len(counts) > 1:
        raise UserError(
            "model.layers.connection: all layers must have as many residual streams, here"
            f" {' and '.join(map(str, sorted(counts)))}"
        )
    return max(counts, default=1)


def _norm(dim: int, keys: Mapping[str, Any]) -> nn.Module:
    norm: nn.Module = keys["norm_type"](dim, bias=keys["bias"], eps=keys["norm_eps"])
    return norm


def kernels(model: nn.Module) -> dict[str, str]:
    """Name of each attention layer -> the kernel that computes it."""
    return {
        name: module.kernel.describe()
        for name, module in model.named_modules()
        if isinstance(getattr(module, "kernel", None), Kernel)
    }


def kernels_ran(model: nn.Module) -> dict[str, dict[str, list[str]]]:
    """Name of each attention layer -> mode -> torch's backends that ran, for a checkpoint."""
    return {
        name: {mode: sorted(names) for mode, names in kernel.ran.items()}
        for name, kernel in _recording(model).items()
    }


def note_kernels(model: nn.Module, ran: Mapping[str, Mapping[str, Iterable[str]]]) -> None:
    """Add the kernels of the steps before a checkpoint, so that `kernels` describes all steps."""
    for name, kernel in _recording(model).items():
        for mode, names in ran.get(name, {}).items():
            kernel.ran.setdefault(mode, set()).update(names)


def _recording(model: nn.Module) -> dict[str, SDPA]:
    return {
        name: module.kernel
        for name, module in model.named_modules()
        if isinstance(getattr(module, "kernel", None), SDPA)
    }
