"""The base of masks: which key positions a query may attend to."""

from typing import ClassVar

from jaxtyping import Bool, Int
from torch import Tensor

from ablate.kernel.interface.documents import Documents


class Mask:
    """Which keys a query may attend to, by their absolute positions only.

    When there are fewer queries than keys, as with a KV cache, the queries are the last positions:
    a causal mask is then aligned at its bottom right. `causal`: the model is a decoder;
    `grid` and `extra` are those of PosEnc: the rows and columns of an image's patches, and the
    leading tokens outside it. source: leading positions that are the source of a target, all read
    before the target is written.
    """

    # False: every query attends to every key.
    restricts: ClassVar[bool] = True
    # Whether later keys are attended to, of a mask that depends only on order; None: of others.
    looks_ahead: ClassVar[bool | None] = None
    # Whether a query attends to every key up to its own position, and to no other.
    lower_triangle: ClassVar[bool] = False
    # The feature of a kernel that computes it: "range" if the keys of each query are one contiguous
    # range, which `between` returns, "edges" for those of a graph (`AttentionInputs.edges`), else
    # "mask".
    needs: frozenset[str] = frozenset({"mask"})

    def __init__(
        self,
        *,
        causal: bool,
        grid: tuple[int, int] | None = None,
        extra: int = 0,
        source: int = 0,
    ) -> None:
        self.causal, self.grid, self.extra, self.source = causal, grid, extra, source

    @property
    def look_ahead(self) -> bool:
        """Whether any query may attend to a later key."""
        assert self.looks_ahead is not None
        return self.looks_ahead

    @property
    def leaks_targets(self) -> bool:
        """Whether any query may attend to a later key of the target, which is to be predicted."""
        return self.look_ahead

    @property
    def caches(self) -> bool:
        """Whether later keys of the target leave the states of earlier positions as they are."""
        return not self.leaks_targets

    def allowed(self, i: Int[Tensor, " i"], j: Int[Tensor, " j"]) -> Bool[Tensor, "i j"]:
        """True if the query at a position of i may attend to the key at a position of j."""
        raise NotImplementedError

    def between(
        self, i: Int[Tensor, " i"], keys: int
    ) -> tuple[Int[Tensor, " i"], Int[Tensor, " i"]]:
        """The half-open range of keys that each query attends to; it may reach beyond the `keys`
        positions. Only if `needs` has "range".
        """
        raise NotImplementedError

    def span(self, first: int, last: int, keys: int) -> tuple[int, int]:
        """The half-open range of the `keys` positions that queries in [first, last) may attend to.

        No query among them attends to a key outside it, so a kernel may skip the rest.
        """
        raise NotImplementedError


def combine(
    mask: Mask,
    i: Int[Tensor, " i"],
    j: Int[Tensor, " j"],
    keep: Bool[Tensor, "b j"] | None,
    documents: Documents | None = None,
) -> Bool[Tensor, "i j"] | Bool[Tensor, "b 1 #i j"] | None:
    """The mask combined with the padding mask and the limits of documents; None: no mask. keep:
    True = a real token. One row, if all queries attend to the same keys."""
    allowed = mask.allowed(i, j) if mask.restricts else None
    if documents is not None:
        same = documents.same(i, j)
        allowed = same if allowed is None else same & allowed
    if keep is None:
        return allowed
    real = keep[:, None, None, :]
    return real if allowed is None else real & allowed
