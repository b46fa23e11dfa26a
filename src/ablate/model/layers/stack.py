"""Stacks: position encoding, blocks one after another, and the final norm.

Shared layers: Dehghani et al. 2018, Universal Transformer, https://arxiv.org/abs/1807.03819.
Activation checkpointing: Chen et al. 2016, https://arxiv.org/abs/1604.06174.
"""

from collections.abc import Callable, Iterable, Mapping
from typing import Any

import torch
from torch import Tensor, nn
from torch.utils.checkpoint import checkpoint as recomputed

from ablate.kernel import Kernel
from ablate.kernel.sdpa import SDPA
from ablate.model.attention import Score
from ablate.model.layers.block import Block, Sublayers
from ablate.model.layers.dropout import Dropout
from ablate.model.layers.multi_head import CrossAttention, KeyValueCache, Memory
from ablate.model.mask import Mask
from ablate.pos_enc import PosEnc


class Stack(nn.Module):
    """Position encoding, `depth` blocks and the final norm: the core of every Transformer here.

    The keys of a model's YAML arrive here by name, those of `Sublayers` as `sublayers`; `length`,
    `grid`, `extra` and `causal` describe the input (see PosEnc); `embedding_norm` adds a norm of
    the embeddings if the norm placement has one (see Sublayers). `embedding_scale` multiplies the
    input before positions are added; "sqrt" is the root of `dim` (Vaswani et al. 2017, section
    3.4). `activation_checkpointing` stores only the input of each block for the backward pass,
    which recomputes the rest.
    """

    def __init__(
        self,
        dim: int,
        *,
        depth: int,
        heads: int,
        attention: Callable[..., Score],
        mask: Callable[..., Mask],
        pos_enc: Callable[..., PosEnc],
        length: int,
        causal: bool,
        dropout: float,
        drop_path: float,
        share_layers: bool,
        grid: tuple[int, int] | None = None,
        extra: int = 0,
        embedding_norm: bool = False,
        embedding_scale: float | str = 1.0,
        activation_checkpointing: bool = False,
        **sublayers: Any,
    ):
        super().__init__()
        self.depth, self.activation_checkpointing = depth, activation_checkpointing
        self.scale = dim**0.5 if embedding_scale == "sqrt" else float(embedding_scale)
        built = 1 if share_layers else depth
        self.mask = mask(causal=causal, grid=grid, extra=extra)
        self.pos_enc = pos_enc(
            dim=dim,
            heads=heads,
            head_dim=dim // heads,
            length=length,
            depth=built,
            grid=grid,
            extra=extra,
            causal=not self.mask.look_ahead,
        )
        self.dropout = Dropout(dropout)
        make = Sublayers(
            dim,
            depth=depth,
            heads=heads,
            length=length,
            dropout=dropout,
            grid=grid,
            **sublayers,
        )
        self.embedding_norm = make.embedding_norm() if embedding_norm else nn.Identity()
        self.blocks = nn.ModuleList(
            make.block(
                score=attention,
                mask=self.mask,
                pos=self.pos_enc,
                layer=layer,
                # The rate rises from 0 at the first block to the full one at the last; a shared
                # block always has the full rate.
                drop_path=drop_path * (layer / (depth - 1) if built > 1 else 1),
            )
            for layer in range(built)
        )
        self.final_norm = make.final_norm()

    def forward(
        self,
        x: Tensor,
        *,
        keep: Tensor | None = None,
        cache: KeyValueCache | None = None,
        memory: Memory | None = None,
        position: int | None = None,
    ) -> Tensor:
        """x: b i d (with a KV cache: only the new tokens); keep: b j, True = real -> b i d.

        position: return the state of this position alone, b 1 d. If possible, the last block does
        not compute the others.
        """
        x = x if self.scale == 1 else x * self.scale
        x = self.embedding_norm(self.pos_enc.embed(x, cache.length() if cache else 0))
        x = self.dropout(x)
        # Recomputing would fill a cache twice; without gradients nothing is stored anyway.
        again = self.activation_checkpointing and cache is None and torch.is_grad_enabled()
        read: dict[str, Any] = {"pos": self.pos_enc, "keep": keep, "cache": cache, "memory": memory}
        for step in range(self.depth):
            block = self.blocks[step % len(self.blocks)]
            if step == self.depth - 1 and position is not None and block.leaves_out:
                # The block selects it: nothing is left to slice below.
                read["position"], position = position, None
            read["use"] = step // len(self.blocks)
            if again:  # with the same dropout: it restores the random state
                x = recomputed(block, x, place=step, use_reentrant=False, **read)
            else:
                x = block(x, place=step, **read)
        x = self.final_norm(x)
        return x if position is None else x[:, position : position + 1]

    @property
    def cacheable(self) -> bool:
        """Whether a KV cache stays valid: later tokens do not change the states of earlier ones."""
        return not self.mask.look_ahead and all(
            isinstance(block, Block) and block.attention is not None for block in self.blocks
        )

    @property
    def cross(self) -> list[CrossAttention]:
        """The cross-attention layers, from the first to the last; none without a memory."""
        return [module for module in self.modules() if isinstance(module, CrossAttention)]

    def remember(self, encoded: Tensor, keep: Tensor) -> Memory:
        """Encoded source b j d, and b j, True = real -> the memory that `forward` takes."""
        return Memory([layer.read(encoded) for layer in self.cross], keep)


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
    """Add what ran in the steps before a checkpoint, so that `kernels` describes all steps."""
    for name, kernel in _recording(model).items():
        for mode, names in ran.get(name, {}).items():
            kernel.ran.setdefault(mode, set()).update(names)


def _recording(model: nn.Module) -> dict[str, SDPA]:
    return {
        name: module.kernel
        for name, module in model.named_modules()
        if isinstance(getattr(module, "kernel", None), SDPA)
    }
