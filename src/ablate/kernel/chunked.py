"""Attention with any score in chunks of queries, each recomputed in the backward pass.

A score that is not a dot product makes a tensor of queries x keys x width. Here it exists for one
chunk of queries at a time and is never stored, so memory grows linearly with the length; keys that
are masked for all queries of a chunk are skipped. Activation checkpointing: Chen et al. 2016,
https://arxiv.org/abs/1604.06174; in attention: Rabe and Staats 2021,
https://arxiv.org/abs/2112.05682.
"""

import shutil
from collections.abc import Callable
from dataclasses import replace
from functools import cache, partial
from typing import Any, ClassVar, Literal

import torch
from jaxtyping import Float
from torch import Tensor
from torch.utils.checkpoint import checkpoint

from ablate.config.parts import OURS
from ablate.config.rules import Count
from ablate.errors import UserError
from ablate.kernel import AttentionInputs, Kernel, attention_weights, mix
from ablate.kernel.heap import HeapTrimmer
from ablate.kernel.interface.score import Score


class Chunked(Kernel):
    """`chunk`: queries at a time; null: as many as keep the largest tensor at `ELEMENTS` numbers.

    On a GPU, `GPU_ELEMENTS`: there a chunk of `ELEMENTS` costs more to start than to compute.

    `compile=true` fuses the score of a chunk into one loop in training (torch.compile): worth its
    many seconds in long training if the score is not a dot product. `auto` compiles nothing; on
    a CPU it uses the score's own fused implementation if it has one, which `false` does not.
    """

    name: ClassVar[str] = "chunked"
    # 16 MB of float32: docs/explanation/negative-results.md.
    ELEMENTS: ClassVar[int] = 2**22
    GPU_ELEMENTS: ClassVar[int] = 2**26

    def __init__(self, *, chunk: Count | None, compile: bool | Literal["auto"]):
        self.chunk, self.compile = chunk, compile
        # Whether the score was compiled or fused: set by the first call.
        self.compiled = self.fused = False

    def resolve(self, needs: frozenset[str]) -> Kernel:
        if self.compile is True and not (compiler("cpu") or torch.cuda.is_available()):
            raise UserError("kernel.compile=true needs a C++ compiler (g++ or clang++) on the path")
        return Chunked(chunk=self.chunk, compile=self.compile)

    def describe(self) -> str:
        how = " (fused)" if self.fused else " (compiled)" if self.compiled else ""
        return f"{self.name}{how}"

    def __call__(self, attend: AttentionInputs) -> Float[Tensor, "b h {attend.queries} w"]:
        on_cpu = attend.v.device.type == "cpu"
        fused = self.compile == "auto" and type(attend.score).fused is not Score.fused and on_cpu
        per_query = self._per_query(attend, fused=fused)
        most = self.ELEMENTS if on_cpu else self.GPU_ELEMENTS
        size = self.chunk or max(1, min(most // per_query, attend.queries))
        training = torch.is_grad_enabled()
        compare: Callable[..., Tensor] = attend.score.compare
        # Compiling pays over many training steps; generation has a new shape for every token.
        if fused:
            compare = attend.score.fused
            if not torch.compiler.is_compiling():
                self.fused = True
        elif training and self.compile is True and not torch.compiler.is_compiling():
            compare, self.compiled = partial(compiled_score(), attend.score), True

        if attend.prepared is None:
            attend = replace(attend, prepared=attend.score.keys(attend.k))

        trimmer = HeapTrimmer()
        largest = size * per_query * attend.v.element_size()
        # Only for the fused score: with others, which allocate faster, it cost a fifth and more.
        give_back = fused and not torch.compiler.is_compiling()

        # Custom parts may draw from torch's generator, whose state is kept for each chunk.
        parts = (attend.score, attend.pos, attend.normalizer)
        custom = not all(type(part).__module__.startswith(OURS) for part in parts)

        # Runs again in the backward pass, with the random numbers of the device of `_`.
        def context(rows: AttentionInputs, _: Tensor) -> Tensor:
            assert rows.prepared is not None
            if give_back:
                trimmer.record(largest)
            return mix(rows, attention_weights(rows, compare(rows.q, rows.prepared)))

        again = training and not (fused and size == attend.queries)
        outputs = []
        # Not range(0, queries, size): torch.compile would specialize on that number of queries.
        for number in range(-(-attend.queries // size)):
            first = number * size
            # Sliced here and not before the loop: autograd runs the newest operation first, and
            # would keep the key gradients of all chunks until it reached the slices.
            rows = attend.rows(first, min(first + size, attend.queries))
            if again:
                outputs.append(
                    checkpoint(
                        context, rows, rows.v, use_reentrant=False, preserve_rng_state=custom
                    )
                )
            else:
                outputs.append(context(rows, rows.v))
        return torch.cat(outputs, dim=2)

    def _per_query(self, attend: AttentionInputs, *, fused: bool) -> int:
        """Elements computed per query: b x h x j x width, without the width for a fused score.

        The parameters of a score may be wider than a head.
        """
        b, h, j, width = attend.v.shape
        if fused:
            return b * h * j
        widths = [
            width,
            attend.q.shape[-1],
            *(p.shape[-1] for p in attend.score.parameters() if p.ndim),
        ]
        return b * h * j * max(widths)


def run_score(
    score: Score, q: Float[Tensor, "b h i k"], prepared: Float[Tensor, "b h j p"]
) -> Float[Tensor, "b h i j"]:
    return score.compare(q, prepared)


@cache
def compiled_score() -> Callable[..., Any]:
    """One compiled function for all layers; the number of keys may change without recompiling."""
    return torch.compile(run_score, dynamic=True)


@cache
def compiler(device: str) -> bool:
    """Whether torch.compile can generate code: Triton for a GPU, a C++ compiler for a CPU."""
    return device == "cuda" or any(shutil.which(name) for name in ("g++", "clang++"))
