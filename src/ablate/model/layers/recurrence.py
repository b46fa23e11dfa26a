"""Linear recurrences over a sequence, in chunks: matrix products within a chunk, and a loop only
over chunks.

A head has a state S, k x v, the sum of keys times values so far. Each token multiplies its rows by
a decay exp(g), and adds:

    S_i = exp(g_i) S_i-1 + k_i v_i^T                                        sum
    S_i = exp(g_i) (I - beta_i k_i k_i^T) S_i-1 + beta_i k_i v_i^T          delta rule
    y_i = S_i^T q_i

Chunks: Hua et al. 2022, https://arxiv.org/abs/2202.10447, and Sun et al. 2023, section 2.3,
https://arxiv.org/abs/2307.08621; the delta rule in chunks: Yang et al. 2024,
https://arxiv.org/abs/2406.06484, with a decay https://arxiv.org/abs/2412.06464. Its updates are
k_i u_i^T with u_i = beta_i (v_i - exp(g_i) S_i-1^T k_i), which depend on earlier ones of the chunk
by a triangular system.
"""

import torch
from einops import rearrange
from jaxtyping import Bool, Float, Int
from torch import Tensor
from torch.nn.functional import pad

# Tokens of a chunk. With a decay for each channel of the keys a chunk takes size^2 k numbers.
CHUNK, CHUNK_BY_CHANNEL = 64, 16


def recurrence(
    q: Float[Tensor, "b h i k"],
    k: Float[Tensor, "b h i k"],
    v: Float[Tensor, "b h i v"],
    g: Float[Tensor, "b h i #k"],
    *,
    beta: Float[Tensor, "b h i"] | None = None,
    state: Float[Tensor, "b h k v"] | None = None,
    documents: Int[Tensor, "b i"] | None = None,
    chunk: int | None = None,
) -> tuple[Float[Tensor, "b h i v"], Float[Tensor, "b h k v"]]:
    """The output of each token, and the state after the last; in float32 or wider.

    g: logarithms of the decay, at most 0, one for each row of the state or one for all.
    beta: step of the delta rule, with one decay for all rows; None: the sum. state: None: zero.
    documents: number of the document of each token; a new document starts from a state of zero, and
    `state` belongs to the first.
    """
    exact = torch.promote_types(v.dtype, torch.float32)
    # The meta device, which counts operations, has no autocast.
    with torch.autocast("cuda" if v.is_cuda else "cpu", enabled=False):
        q, k, v, g = (x.to(exact) for x in (q, k, v, g))
        length = v.shape[2]
        size = min(chunk or (CHUNK if g.shape[-1] == 1 else CHUNK_BY_CHANNEL), length)
        missing = -length % size

        def cut(x: Tensor) -> Tensor:
            """The chunks c, the last one filled up with tokens that change no state."""
            return rearrange(pad(x, (0, 0, 0, missing)), "b h (c i) k -> b h c i k", i=size)

        q, k, v, g = cut(q), cut(k), cut(v), cut(g)
        g = g.cumsum(3)
        pairs = decayed_products(q, k, g).tril()
        from_start, to_end = g.exp(), (g[..., -1:, :] - g).exp()
        kept = g[..., -1, :, None].exp()
        same = None
        if documents is not None:
            same, from_before, until_after = limits(documents, size, missing)
            pairs = pairs * same
            from_start, to_end = from_start * from_before, to_end * until_after
            kept = kept * from_before[..., -1:, :]
        written = v
        if beta is not None:
            b = cut(beta.to(exact)[..., None])
            system = torch.eye(size, dtype=exact, device=v.device)
            near = decayed_products(k, k, g)
            system = system + (b * (near if same is None else near * same)).tril(-1)
            both = torch.cat([b * v, b * from_start * k], dim=-1)
            solved = torch.linalg.solve_triangular(system, both, upper=False, unitriangular=True)
            written, erased = solved.split([v.shape[-1], k.shape[-1]], dim=-1)
        if state is None:
            state = v.new_zeros(*v.shape[:2], k.shape[-1], v.shape[-1])
        state = state.to(exact)
        read = []
        for c in range(v.shape[2]):
            u = written[:, :, c]
            if beta is not None:
                u = u - erased[:, :, c] @ state
            read.append((q * from_start)[:, :, c] @ state + pairs[:, :, c] @ u)
            state = kept[:, :, c] * state + (k * to_end)[:, :, c].mT @ u
        return torch.cat(read, dim=2)[:, :, :length], state


def limits(
    documents: Int[Tensor, "b i"], size: int, missing: int
) -> tuple[Bool[Tensor, "b 1 c s s"], Bool[Tensor, "b 1 c s 1"], Bool[Tensor, "b 1 c s 1"]]:
    """In chunks of `size`: whether two tokens are in one document, whether a token continues the
    document before its chunk, and whether its document goes on to the end of the chunk."""
    # Tokens that fill up the last chunk belong to the last document, whose state is returned.
    number = torch.cat([documents, documents[:, -1:].expand(-1, missing)], dim=1)
    number = number.unflatten(1, (-1, size))[:, None]
    before = torch.cat([number[:, :, :1, :1], number[:, :, :-1, -1:]], dim=2)
    return (
        number[..., :, None] == number[..., None, :],
        (number == before)[..., None],
        (number == number[..., -1:])[..., None],
    )


def decayed_products(
    q: Float[Tensor, "b h c i k"], k: Float[Tensor, "b h c j k"], g: Float[Tensor, "b h c i #k"]
) -> Float[Tensor, "b h c i j"]:
    """q_i . (exp(g_i - g_j) k_j) for j <= i, so that no exponent is positive; 0 elsewhere."""
    size = g.shape[3]
    later = torch.ones(size, size, dtype=torch.bool, device=g.device).triu(1)[..., None]
    decay = (g[..., :, None, :] - g[..., None, :, :]).masked_fill(later, -torch.inf).exp()
    if g.shape[-1] == 1:
        return q @ k.mT * decay[..., 0]
    return torch.einsum("bhcik,bhcjk,bhcijk->bhcij", q, k, decay)
