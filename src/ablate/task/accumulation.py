"""Gradient accumulation: several batches per optimizer step act as one larger batch."""

from collections.abc import Mapping
from dataclasses import dataclass, field

from torch import Tensor


@dataclass
class Accumulated:
    """The batches of one optimizer step so far; their gradients are averaged.

    A mean over targets is not the mean of the batch means if batches contain different numbers of
    targets. The total is not known in advance, so the loss of each batch is divided by the number
    of targets of the first batch, and `correction` makes up for it at the end.

    batches: batches per optimizer step.
    """

    batches: int
    summed: dict[str, Tensor | float] = field(default_factory=dict)  # terms of the loss
    first: Tensor | None = None  # targets of the first batch
    targets: Tensor | float = 0.0  # and of all so far

    def divisor(self, targets: Tensor) -> Tensor:
        """The divisor of the summed loss of a batch with this number of targets."""
        self.first = targets if self.first is None else self.first
        self.targets = self.targets + targets
        return self.first

    @property
    def uneven(self) -> bool:
        """Whether the gradients have to be corrected."""
        return self.batches > 1 and self.first is not None

    @property
    def correction(self) -> Tensor | float:
        """The factor for the mean of gradients and of losses, after the last batch."""
        return 1.0 if self.first is None else self.batches * self.first / self.targets

    def add(self, terms: Mapping[str, Tensor]) -> None:
        """Add the terms of a batch's loss."""
        for name, value in terms.items():
            self.summed[name] = self.summed.get(name, 0.0) + value.detach()

    @property
    def means(self) -> dict[str, Tensor | float]:
        """The terms of the loss of the larger batch."""
        return {name: value / self.batches * self.correction for name, value in self.summed.items()}
