"""Masks: which key positions a query may attend to. One class per file; this is what they share."""

from typing import ClassVar

from torch import Tensor


class Mask:
    """Which positions see which, by their absolute positions alone.

    Everything is said in absolute positions. When there are fewer queries than keys, as with a
    key/value cache, the caller's queries are the last positions: a causal mask is then aligned at
    its bottom right. `causal` says that the model is a decoder; `grid` and `extra` are those of
    PosEnc: the rows and columns of an image's patches, and the leading tokens outside it.
    """

    # False: every query sees every key.
    restricts: ClassVar[bool] = True
    # Whether, besides, only along the edges of a graph; see `Attend.edges`.
    edges: ClassVar[bool] = False
    # Whether the keys that a query sees stand side by side: `between` has an answer.
    ranges: bool = False

    def __init__(
        self, *, causal: bool, grid: tuple[int, int] | None = None, extra: int = 0
    ) -> None:
        self.causal, self.grid, self.extra = causal, grid, extra

    @property
    def look_ahead(self) -> bool:
        """Whether any query may see a key that comes later."""
        raise NotImplementedError

    def allowed(self, i: Tensor, j: Tensor) -> Tensor:
        """Positions of queries and keys -> `i j`, True = may attend."""
        raise NotImplementedError

    def between(self, i: Tensor, keys: int) -> tuple[Tensor, Tensor]:
        """The half-open range of positions that each query sees, `i` twice; it may reach beyond the
        `keys` positions there are. Only where `ranges`.
        """
        raise NotImplementedError

    def span(self, first: int, last: int, keys: int) -> tuple[int, int]:
        """The half-open range of the `keys` positions that a query in [first, last) may see.

        Nothing outside it is seen by any of them, so a kernel may skip the rest.
        """
        raise NotImplementedError


def combine(mask: Mask, i: Tensor, j: Tensor, keep: Tensor | None) -> Tensor | None:
    """The mask and the padding as one: `i j`, or `b 1 i j` with padding; None if all is allowed.

    `keep` is `b j`, True = a real token.
    """
    allowed = mask.allowed(i, j) if mask.restricts else None
    if keep is None:
        return allowed
    real = keep[:, None, None, :].expand(-1, 1, len(i), -1)
    return real if allowed is None else real & allowed
