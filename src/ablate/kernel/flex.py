"""torch's FlexAttention: dot products with a bias by relative position, fused on a GPU.

SDPA's fast paths do not support these biases (ALiBi, T5, Shaw et al.). Here they are looked up in
a table while the scores are computed, without a tensor of queries x keys, and blocks of keys that
are fully masked are skipped.
https://docs.pytorch.org/docs/stable/nn.attention.flex_attention.html. It took more time than SDPA
but for T5's bias at 8192 tokens, and a twelfth of the memory; kernel=auto never selects it:
docs/results/benchmarks.md.
"""

from functools import cache
from typing import Any, ClassVar

import torch
from jaxtyping import Bool, Float, Int
from torch import Tensor
from torch.nn import functional as F
from torch.nn.attention.flex_attention import BlockMask, flex_attention

from ablate.kernel import AttentionInputs, Kernel

PLAIN = {"cpu"}  # devices on which it runs uncompiled
BLOCK = 128  # queries and keys of a block of the mask
NARROWEST = 16  # least head width of its kernels; narrower heads are zero-padded
# Recompilations of one function. A model whose layers differ in bias, padding and inputs needs a
# version for each of them in training, in validation during training and in validation after it:
# more than the eight that torch allows.
VERSIONS = 64
# With more stages the table of a bias, which is looked up for every pair, is copied to shared
# memory ahead of time, and does not fit: 280 KB of the 228 KB of an H200, with torch 2.11.
OF_BIAS = {"num_stages": 1}


class Flex(Kernel):
    """Trains on a GPU only, compiled: on a CPU torch has only the forward pass.

    Gradients of a learned bias are summed in no fixed order, so two runs on a GPU may differ in
    rounding.
    """

    name: ClassVar[str] = "flex"
    provides = frozenset({"dot_product", "softcap", "distance_bias", "range"})

    def unavailable(self) -> str | None:
        if not torch.cuda.is_available():
            return "it trains on a GPU, and torch sees none"
        return None

    def __call__(self, attend: AttentionInputs) -> Float[Tensor, "b h {attend.queries} w"]:
        assert attend.first_key == 0
        assert not attend.dropout
        lowered = attend.score.lower(attend.q, attend.k)
        assert lowered is not None
        v = attend.v
        q, k = (x.to(v.dtype) for x in lowered[:2])
        q, k, wide = (F.pad(x, (0, max(0, NARROWEST - x.shape[-1]))) for x in (q, k, v))
        # With compile=true the model is compiled as one, and nothing inside it may call the
        # compiler.
        plain = torch.compiler.is_compiling() or v.device.type in PLAIN
        run = flex_attention if plain else compiled()
        context = run(
            q, k, wide, score_mod=biased(attend), block_mask=seen(attend), scale=float(lowered[2]),
            kernel_options=OF_BIAS if "distance_bias" in attend.pos.needs else None,
        )  # fmt: skip
        return context[..., : v.shape[-1]]


@cache
def compiled() -> Any:
    """One compiled function for all layers; a second sequence length makes the lengths dynamic.

    fullgraph: beyond the recompilation limit it fails instead of silently computing the whole
    matrix.
    """
    fused: Any = torch.compile(flex_attention, fullgraph=True)

    def run(*tensors: Tensor, **how: Any) -> Tensor:
        with torch._dynamo.config.patch(recompile_limit=VERSIONS):
            context: Tensor = fused(*tensors, **how)
        return context

    return run


def biased(attend: AttentionInputs) -> Any:
    """The score_mod, score -> score + bias, of a capped score with `softcap`; None without."""
    cap = attend.softcap

    def capped(score: Tensor, b: Tensor, h: Tensor, i: Tensor, j: Tensor) -> Tensor:
        return score if cap is None else cap * (score / cap).tanh()

    plain = None if cap is None else capped
    if "distance_bias" not in attend.pos.needs:
        return plain
    ahead = torch.arange(1 - attend.queries, attend.keys, device=attend.v.device) - attend.start
    if (by_distance := attend.pos.by_distance(attend.q, ahead, attend.layer)) is None:
        return plain
    table, rows = by_distance
    if table.shape[2] == 1:  # one number for each distance: their gradients are summed separately
        table, rows = table[..., rows], torch.arange(len(rows), device=rows.device)
    across = [size > 1 for size in table.shape[:3]]  # bias varies over batch, heads, queries
    last = attend.queries - 1

    def mod(score: Tensor, b: Tensor, h: Tensor, i: Tensor, j: Tensor) -> Tensor:
        row = [at if varies else at * 0 for at, varies in zip((b, h, i), across, strict=True)]
        return capped(score, b, h, i, j) + table[row[0], row[1], row[2], rows[j - i + last]]

    return mod


def seen(attend: AttentionInputs) -> BlockMask | None:
    """The mask, the padding and the limits of documents as a block mask; None: no mask.

    Its blocks follow from the ranges of keys: torch's `create_block_mask` would evaluate the mask
    for every query and key, in every layer of every step.
    """
    documents = attend.documents
    if not attend.mask.restricts and attend.keep is None and documents is None:
        return None
    queries, keys, keep = attend.queries, attend.keys, attend.keep
    i, _ = attend.positions()
    begin, end = (edge.clamp(0, keys)[None] for edge in attend.mask.between(i, keys))
    if documents is not None:  # a row of `begin` for each of the batch, else one for all
        first, beyond = (edge[:, i] for edge in documents.ranges())
        begin, end = begin.maximum(first), end.minimum(beyond)

    def mod(b: Tensor, h: Tensor, i: Tensor, j: Tensor) -> Tensor:
        row = b * 0 if documents is None else b
        inside = (j >= begin[row, i]) & (j < end[row, i])
        return inside if keep is None else inside & keep[b, j]

    missing = -queries % BLOCK
    first = torch.arange(0, keys, BLOCK, device=begin.device)

    def of_block(edge: Tensor, beyond: int) -> Tensor:
        return F.pad(edge, (0, missing), value=beyond).view(len(edge), -1, BLOCK, 1)

    # Rows beyond the queries attend to nothing: no block with one is full.
    starts, ends = of_block(begin, keys), of_block(end, 0)
    some = (starts.amin(2) < first + BLOCK) & (ends.amax(2) > first)
    full = (starts.amax(2) <= first) & (ends.amin(2) >= first + BLOCK)
    if keep is not None:
        full = torch.zeros_like(full)
    return BlockMask.from_kv_blocks(
        *ordered(some & ~full), *ordered(full),
        BLOCK_SIZE=BLOCK, mask_mod=mod, seq_lengths=(queries, keys),
    )  # fmt: skip


def ordered(
    blocks: Bool[Tensor, "#b rows columns"],
) -> tuple[Int[Tensor, "#b 1 rows"], Int[Tensor, "#b 1 rows columns"]]:
    """How many blocks each row has, and the columns with those in front."""
    columns = blocks.int().argsort(dim=2, descending=True, stable=True)
    return blocks.sum(2, dtype=torch.int32)[:, None], columns.int()[:, None]
