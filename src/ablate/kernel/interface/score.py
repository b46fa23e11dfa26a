"""The base of score functions: how well a key matches a query."""

from typing import ClassVar, NamedTuple

from jaxtyping import Float, Int
from torch import Tensor, nn

from ablate.errors import UserError

Lowered = tuple[Float[Tensor, "b h i l"], Float[Tensor, "b g j l"], float]


class Summed(NamedTuple):
    """score_ij = sum_d v_d f(q_id + k_jd), for every head."""

    q: Float[Tensor, "b h i d"]
    k: Float[Tensor, "b h j d"]
    v: Float[Tensor, "h d"]
    slope: float | None  # f: the LeakyReLU with this slope below 0; None: tanh


class Score(nn.Module):
    """How strongly each query position attends to each key position, before masks and softmax.

    Widths are per head. `length` is the longest key sequence of training. `projected` says whether
    the model projects queries and keys for every head before they are scored. `slot` is the config
    group of the score, for error messages.
    """

    # Whether forward uses the query, the key. If not, the model makes no projection and passes a
    # tensor of width 0, so that no parameter is without a gradient.
    query: ClassVar[bool] = True
    key: ClassVar[bool] = True
    # The feature of a kernel that computes it: "dot_product" if `lower` is implemented, "sum" if
    # `summed` is, else "score".
    needs: ClassVar[frozenset[str]] = frozenset({"score"})
    # The name of its option, if queries and keys must be of the same width.
    equal_widths: ClassVar[str | None] = None

    def __init__(
        self,
        *,
        heads: int,
        query_dim: int,
        key_dim: int,
        length: int,
        projected: bool = True,
        slot: str = "model.attention",
    ) -> None:
        super().__init__()
        self.heads = heads
        self.query_dim = query_dim
        self.key_dim = key_dim
        self.length = length
        self.projected = projected
        self.slot = slot
        if self.equal_widths is not None:
            require_equal_widths(self, self.equal_widths)

    def reset_parameters(self) -> None:
        """Draw the parameters, if any, as the paper did, from torch's global generator."""

    def forward(
        self, q: Float[Tensor, "b h i k"], k: Float[Tensor, "b h j l"]
    ) -> Float[Tensor, "b h i j"]:
        """The specification, in plain tensor operations."""
        raise NotImplementedError

    def keys(self, k: Float[Tensor, "b h j l"]) -> Float[Tensor, "b h j p"]:
        """The part of the score that depends only on the keys, computed once."""
        return k

    def compare(
        self, q: Float[Tensor, "b h i k"], prepared: Float[Tensor, "b h j p"]
    ) -> Float[Tensor, "b h i j"]:
        """forward(q, k), given prepared = keys(k)."""
        return self(q, prepared)

    def along(
        self,
        q: Float[Tensor, "h n k"],
        prepared: Float[Tensor, "h m p"],
        query: Int[Tensor, " e"],
        key: Int[Tensor, " e"],
    ) -> Float[Tensor, "e h"]:
        """compare(q, prepared) for e pairs only, given as indices of q and of k."""
        pairs = (q, query), (prepared, key)
        # Contiguous rows: several times as fast on a CPU as x[:, at].
        ends = (x.transpose(0, 1).contiguous().index_select(0, at) for x, at in pairs)
        return self.compare(*(end[:, :, None] for end in ends)).flatten(1)

    def fused(
        self, q: Float[Tensor, "b h i k"], prepared: Float[Tensor, "b h j p"]
    ) -> Float[Tensor, "b h i j"]:
        """A faster compare(q, prepared) for a CPU, without a tensor of queries x keys x width; if
        implemented.
        """
        raise NotImplementedError

    def summed(self, q: Float[Tensor, "b h i k"], prepared: Float[Tensor, "b h j p"]) -> Summed:
        """compare(q, prepared) as sums over a width, for a kernel; only if `needs` has "sum"."""
        raise NotImplementedError

    def lower(self, q: Float[Tensor, "b h i k"], k: Float[Tensor, "b g j m"]) -> Lowered | None:
        """q', k' and scale so that scale * q' @ k'^T equals forward, or None if there are none.

        q' and k' may be of higher precision than q and k; a kernel casts them to its own.
        """
        return None


def require_equal_widths(score: Score, name: str) -> None:
    """Raise a UserError if queries and keys differ in width."""
    if score.query_dim != score.key_dim:
        raise UserError(
            f"{score.slot}={name} requires queries and keys of the same width, here "
            f"{score.query_dim} and {score.key_dim}; {score.slot}=general, location, "
            f"uniform, or additive with {score.slot}.hidden set, accept that"
        )
