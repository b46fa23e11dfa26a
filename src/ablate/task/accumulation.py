"""The terms of a loss; gradient accumulation: several batches per optimizer step act as one larger
batch."""

import operator
from collections.abc import Mapping
from dataclasses import dataclass, field
from functools import reduce

import torch
import torch.distributed as dist
from torch import Tensor, nn

from ablate.model.layers.stack import Stack


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
    last: Tensor | None = None  # of the last
    targets: Tensor = field(default_factory=lambda: torch.tensor(0))  # and of all so far

    def divisor(self, targets: Tensor) -> Tensor:
        """The divisor of the summed loss of a batch with this number of targets, which may be 0."""
        self.first = targets.clamp(min=1) if self.first is None else self.first
        self.last = targets
        self.targets = self.targets + targets
        return self.first

    def share(self, counted: Tensor, processes: int) -> Tensor:
        """The divisor of this process's summed loss that makes the mean gradient the global one.
        counted: True = a target.

        DDP averages gradients over processes, and accumulation over batches, which may contain
        different numbers of targets. To be called once for each batch.
        """
        count = counted.sum()
        if processes > 1:
            dist.all_reduce(count)
        return self.divisor(count) / processes

    @property
    def uneven(self) -> bool:
        """Whether the gradients have to be corrected."""
        return self.batches > 1 and self.first is not None

    @property
    def weight(self) -> Tensor | float:
        """The factor of a loss of the last batch that is not divided by `divisor`: after the
        correction, each batch counts by its targets."""
        return 1.0 if self.first is None or self.last is None else self.last / self.first

    @property
    def correction(self) -> Tensor | float:
        """The factor for the mean of gradients and of losses, after the last batch."""
        if self.first is None:
            return 1.0
        return self.batches * self.first / self.targets.clamp(min=1)

    def add(self, terms: Mapping[str, Tensor]) -> None:
        """Add the terms of a batch's loss."""
        for name, value in terms.items():
            self.summed[name] = self.summed.get(name, 0.0) + value.detach()

    @property
    def means(self) -> dict[str, Tensor | float]:
        """The terms of the loss of the larger batch."""
        return {name: value / self.batches * self.correction for name, value in self.summed.items()}


def total(terms: Mapping[str, Tensor]) -> Tensor:
    """The sum that is minimized."""
    return reduce(operator.add, terms.values())


def added_losses(model: nn.Module) -> dict[str, Tensor]:
    """The losses of the layers in the last pass, by name, summed over the layers."""
    added: dict[str, Tensor] = {}
    for part in model.modules():
        if isinstance(part, Stack):
            for name, value in part.losses:
                added[name] = added[name] + value if name in added else value
            part.losses = []
    return added
