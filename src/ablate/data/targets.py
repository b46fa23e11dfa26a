"""Data whose examples have a text to be written: what a model that writes is measured on."""

from abc import abstractmethod
from typing import ClassVar

from ablate.data import Data
from ablate.data.pair_tokenizer import PairTokenizer


class Targets(Data):
    """A batch holds target_in and targets, b i, and index, b, as in ablate.data.pairs.

    item: what a token of the target is called where error rates are counted in it, as in "phoneme".
    """

    item: ClassVar[str | None] = None
    target_tokenizer: PairTokenizer

    @abstractmethod
    def reference(self, split: str, index: int) -> str:
        """What is to be written for an example."""
