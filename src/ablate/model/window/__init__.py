"""Windows of local attention: the part of the source that a decoder step attends to.

Luong et al. 2015, "Effective approaches to attention-based neural machine translation", section
3.2, https://arxiv.org/abs/1508.04025. One class per file; this is their base. Positions of
source and target are counted from 0.
"""

from typing import ClassVar

from jaxtyping import Bool, Float
from torch import Tensor, nn

from ablate.model.mask import Mask
from ablate.model.mask.none import NoMask


class Window(nn.Module):
    """The whole source, unless a subclass overrides it; `dim` is the width of the decoder."""

    # Features of the kernel: "weights" if `factors` is implemented.
    needs: ClassVar[frozenset[str]] = frozenset()

    def __init__(self, *, dim: int) -> None:
        super().__init__()
        self.dim = dim

    @property
    def mask(self) -> Mask:
        """The mask of a step, if it follows only from positions."""
        return NoMask(causal=False)

    def factors(
        self, query: Float[Tensor, "b i {self.dim}"], keep: Bool[Tensor, "b j"]
    ) -> Float[Tensor, "b 1 i j"] | None:
        """Factors of the attention weights, 0 outside the window; None: no factors.

        query: decoder states; keep: True = a real source token.
        """
        return None
