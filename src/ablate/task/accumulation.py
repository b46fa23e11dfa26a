"""Gradient accumulation: several batches of an optimizer step as the one larger batch they make."""

from dataclasses import dataclass

from torch import Tensor


@dataclass
class Accumulated:
    """The batches of one optimizer step so far; the gradient is the mean of theirs.

    A loss that is a mean over targets is not the mean of the means where batches hold different
    numbers of them. How many are still to come is not known, so that each batch is divided by the
    targets of the first, and `correction` makes up for it at the end.

    batches: how many there will be.
    """

    batches: int
    summed_loss: Tensor | float = 0.0
    first: Tensor | None = None  # targets of the first batch
    targets: Tensor | float = 0.0  # and of all so far

    def divisor(self, targets: Tensor) -> Tensor:
        """What the summed loss of a batch with so many targets has to be divided by."""
        self.first = targets if self.first is None else self.first
        self.targets = self.targets + targets
        return self.first

    @property
    def uneven(self) -> bool:
        """Whether there is something to make up for."""
        return self.batches > 1 and self.first is not None

    @property
    def correction(self) -> Tensor | float:
        """What the mean of gradients and of losses has to be multiplied by; asked after the last
        batch."""
        return 1.0 if self.first is None else self.batches * self.first / self.targets

    @property
    def loss(self) -> Tensor | float:
        """That of the larger batch."""
        return self.summed_loss / self.batches * self.correction
