"""Base of the data sets that are sampled at random."""

from typing import Any

from ablate.config.rules import Count, Seed
from ablate.data import Data


class Generated(Data):
    """counts: examples of each split. data_seed: the only seed on which the splits depend."""

    def __init__(
        self,
        *,
        train_examples: Count,
        val_examples: Count,
        test_examples: Count,
        data_seed: Seed,
        **options: Any,
    ) -> None:
        super().__init__(**options)
        self.counts = {"train": train_examples, "val": val_examples, "test": test_examples}
        self.data_seed = data_seed
