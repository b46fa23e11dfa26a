"""torch.nn.functional.scaled_dot_product_attention, for scores with an exact `lower`."""

from typing import Any, ClassVar

import torch
from jaxtyping import Bool, Float, Shaped
from torch import Tensor
from torch.nn import functional as F
from torch.nn.attention import SDPBackend

from ablate.kernel import AttentionInputs, Kernel, attention_weights, mix, readable

SHORT = 256  # keys


class SDPA(Kernel):
    """torch's fused attention on the lowered queries and keys, with biases and masks.

    torch has several backends and does not report when it takes the slow one (math), as it does on
    a CPU for learned biases: `describe` names the one that ran. torch draws dropout on the weights
    in its own order, so with dropout the reference computes the training pass.
    """

    name: ClassVar[str] = "sdpa"
    provides = Kernel.provides - {"sum", "score", "softcap", "normalizer", "weights"} | {"groups"}

    def __init__(self) -> None:
        # The backends that ran in "training" and in "evaluation".
        self.ran: dict[str, set[str]] = {}

    def resolve(self, needs: frozenset[str]) -> Kernel:
        super().resolve(needs)
        return SDPA()  # each layer records its own backends

    def __call__(self, attend: AttentionInputs) -> Float[Tensor, "b h {attend.queries} w"]:
        if attend.dropout:
            if not torch.compiler.is_compiling():
                self.ran.setdefault("training", set()).add("reference, for dropout")
            attend = attend.ungrouped()
            return mix(attend, attention_weights(attend))
        lowered = attend.score.lower(attend.q, attend.k)
        assert lowered is not None
        q, k, scale = lowered
        v, width = attend.v, attend.v.shape[-1]
        if attend.sink is not None:
            q, k, v = with_sink(attend.sink / scale, q, k, v)
        # The fast paths need queries, keys and values of one width; zeros change no product.
        if (missing := v.shape[-1] - q.shape[-1]) > 0:
            q, k = F.pad(q, (0, missing)), F.pad(k, (0, missing))
        square = attend.queries == attend.keys and attend.start == 0
        whole = attend.keep is None and attend.documents is None
        if attend.mask.lower_triangle and square and whole:
            i, j = attend.positions()
            if attend.pos.bias(attend.q, i, j, attend.layer) is None:
                if attend.sink is None:
                    return self._run(attend, q, k, v, None, scale, causal=True)
                # The first key is the sink; is_causal compares indices: a first query for it.
                q = F.pad(q, (0, 0, 1, 0))
                return self._run(attend, q, k, v, None, scale, causal=True)[:, :, 1:, :width]
        where, empty = added(attend)
        context = self._run(attend, q, k, v, where, scale)[..., :width]
        return context if empty is None else context.masked_fill(empty, 0.0)

    def describe(self) -> str:
        # In a compiled model the compiler chooses the backend.
        ran = self.ran | ({"training": {"compiled"}} if self.compiled else {})
        if not ran:
            return self.name
        if len(names := set().union(*ran.values())) == 1:
            return f"{self.name} ({names.pop()})"
        modes = [f"{mode}: {', '.join(sorted(ran[mode]))}" for mode in sorted(ran, reverse=True)]
        return f"{self.name} ({'; '.join(modes)})"

    def _run(
        self,
        attend: AttentionInputs,
        q: Float[Tensor, "b h i k"],
        k: Float[Tensor, "b g j k"],
        v: Float[Tensor, "b g j w"],
        where: Shaped[Tensor, "#b #h i j"] | Shaped[Tensor, "i j"] | None,
        scale: float,
        *,
        causal: bool = False,
    ) -> Float[Tensor, "b h i w"]:
        how: dict[str, Any] = {
            "attn_mask": where,
            "is_causal": causal,
            "scale": float(scale),
            "enable_gqa": k.shape[1] != q.shape[1],
        }
        widened = short_half(attend)
        dtype = torch.float32 if widened else attend.v.dtype
        q, k, v = (x.to(dtype) for x in (q, k, v))
        if where is not None and where.is_floating_point():
            how["attn_mask"] = where.to(dtype)
        if not torch.compiler.is_compiling():
            mode = "training" if attend.training else "evaluation"
            chosen = SDPBackend(torch._fused_sdp_choice(q, k, v, **how))
            name = chosen.name.removesuffix("_ATTENTION").lower()
            self.ran.setdefault(mode, set()).add(f"{name} in float32" if widened else name)
        if not widened:
            return F.scaled_dot_product_attention(q, k, v, **how)
        with torch.autocast(q.device.type, enabled=False):  # it would cast back to bfloat16
            return F.scaled_dot_product_attention(q, k, v, **how).to(attend.v.dtype)


Added = Shaped[Tensor, "#b #h i j"] | Shaped[Tensor, "i j"] | None


def added(attend: AttentionInputs) -> tuple[Added, Bool[Tensor, "b 1 #i 1"] | None]:
    """The bias and the mask as torch takes them, and which queries have no key to attend to; None:
    all have."""
    bias, allowed = attend.bias_and_mask()
    empty = None
    if allowed is not None and attend.keep is not None:
        # Only padding can mask every key of a query. Such a row is computed without the mask,
        # so that no backend gets an empty row, and then set to zero.
        empty = ~allowed.any(-1, keepdim=True)
        if readable(empty) and not empty.any():
            empty = None
        else:
            allowed = allowed | empty
    if bias is None:
        where = allowed
    elif allowed is None:
        where = bias
    else:
        where = bias.masked_fill(~allowed, -torch.inf)
    if where is not None and attend.sink is not None:
        where = F.pad(where, (1, 0), value=True if where.dtype is torch.bool else 0.0)
    if where is not None:
        where = where.expand(-1, -1, attend.queries, -1) if where.dim() == 4 else where
    return where, empty


def with_sink(
    sink: Float[Tensor, " h"],
    q: Float[Tensor, "b h i k"],
    k: Float[Tensor, "b h j k"],
    v: Float[Tensor, "b h j w"],
) -> tuple[Float[Tensor, "b h i k+1"], Float[Tensor, "b h j+1 k+1"], Float[Tensor, "b h j+1 w+1"]]:
    """Put one more key before the others, whose product with every query is `sink`, and whose value
    is zero."""
    # One more number: 1 in queries, the sink in that key, 0 in values, for the same width.
    k, v = F.pad(k, (0, 1, 1, 0)), F.pad(v, (0, 1, 1, 0))
    first = F.pad(sink[:, None, None].to(k.dtype), (k.shape[-1] - 1, 0)).expand(len(k), -1, -1, -1)
    return F.pad(q, (0, 1), value=1.0), torch.cat([first, k[:, :, 1:]], dim=2), v


def short_half(attend: AttentionInputs) -> bool:
    """Whether torch's backward pass would be slow: over few keys in bfloat16 on a CPU.

    Up to three times the time of float32, which also rounds less: docs/results/benchmarks.md.
    """
    return (
        attend.v.device.type == "cpu"
        and attend.v.dtype is torch.bfloat16
        and attend.keys <= SHORT
        and torch.is_grad_enabled()
    )
