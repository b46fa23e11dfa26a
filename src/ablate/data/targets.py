"""Base of the data sets whose examples have a target text to generate."""

from abc import abstractmethod

from ablate.data import Data
from ablate.data.pair_tokenizer import PairTokenizer


class Targets(Data):
    """A batch contains target_in and targets, b i, and index, b, as in ablate.data.pairs.

    item: name of a target token as the unit of error rates, such as "phoneme".
    """

    item: str | None = None
    target_tokenizer: PairTokenizer

    @abstractmethod
    def reference(self, split: str, index: int) -> str:
        """The reference text of an example."""
