"""The base of score functions: how well a key matches a query."""

from typing import ClassVar, NamedTuple

from torch import Tensor, nn

from ablate.errors import UserError

Lowered = tuple[Tensor, Tensor, float]


class Summed(NamedTuple):
    """score_ij = sum_d v_d f(q_id + k_jd), for every head."""

    q: Tensor  # b h i d
    k: Tensor  # b h j d
    v: Tensor  # h d
    slope: float | None  # f: the LeakyReLU with this slope below 0; None: tanh


class Score(nn.Module):
    """How strongly each query position attends to each key position, before masks and softmax.

    Widths are per head. `length` is the longest key sequence of training. `projected` says whether
    the model projects queries and keys for every head before they are scored. `slot` is the config
    group in which the score was chosen, for error messages.
    """

    # Whether forward uses the query, the key. If not, the model makes no projection and passes a
    # tensor of width 0, so that no parameter is without a gradient.
    query: ClassVar[bool] = True
    key: ClassVar[bool] = True
    # Whether `lower` is implemented.
    lowers: ClassVar[bool] = False
    # Whether `summed` is implemented.
    sums: ClassVar[bool] = False
    # Whether `fused` is implemented.
    fuses: ClassVar[bool] = False
    # Whether there are attention weights: attention=none has none.
    weighs: ClassVar[bool] = True

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

    def reset_parameters(self) -> None:
        """Draw the parameters, if any, as the paper did, from torch's global generator."""

    def forward(self, q: Tensor, k: Tensor) -> Tensor:
        """The specification: `b h i k`, `b h j k` -> `b h i j`, in plain tensor operations."""
        raise NotImplementedError

    def keys(self, k: Tensor) -> Tensor:
        """The part of the score that depends on the keys alone, `b h j *`, computed once."""
        return k

    def compare(self, q: Tensor, prepared: Tensor) -> Tensor:
        """forward(q, k), given prepared = keys(k)."""
        return self(q, prepared)

    def along(self, q: Tensor, prepared: Tensor, query: Tensor, key: Tensor) -> Tensor:
        """compare(q, prepared) for e pairs only: h n k, h m *, indices of q and of k, e -> e h."""
        pairs = (q, query), (prepared, key)
        # Contiguous rows: several times as fast on a CPU as x[:, at].
        ends = (x.transpose(0, 1).contiguous().index_select(0, at) for x, at in pairs)
        return self.compare(*(end[:, :, None] for end in ends)).flatten(1)

    def fused(self, q: Tensor, prepared: Tensor) -> Tensor:
        """A faster compare(q, prepared) for a CPU, without a tensor of queries x keys x width; only
        if `fuses`.
        """
        raise NotImplementedError

    def summed(self, q: Tensor, prepared: Tensor) -> Summed:
        """compare(q, prepared) as sums over a width, for a kernel; only if `sums`."""
        raise NotImplementedError

    def lower(self, q: Tensor, k: Tensor) -> Lowered | None:
        """q', k' and scale so that scale * q' @ k'^T equals forward, or None if there are none.

        q' and k' may be of higher precision than q and k; a kernel casts them to its own.
        """
        return None


def require_equal_widths(score: Score, name: str) -> None:
    """Raise a UserError if queries and keys differ in width."""
    if score.query_dim != score.key_dim:
        raise UserError(
            f"{score.slot}={name} compares queries and keys of one width, here they are "
            f"{score.query_dim} and {score.key_dim} wide; {score.slot}=general, location, "
            f"uniform, or additive with {score.slot}.hidden set, accept that"
        )
