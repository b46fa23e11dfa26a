"""Language models: tokens in, logits of the next token out. What sampling needs of them."""

from abc import abstractmethod
from typing import Any

from torch import Tensor

from ablate.model.init import Model


class LanguageModel(Model):
    """`length` is how many tokens it can read at once; None: any number.

    A cache is what the model keeps of tokens it has read, so that it need not read them again; its
    `length()` is how many they are. Of what kind it is, the model knows.
    """

    length: int | None

    @abstractmethod
    def forward(self, tokens: Tensor, *, cache: Any = None) -> Tensor:
        """tokens: b i (with a cache: those after what it has seen) -> b i vocab_size."""

    @abstractmethod
    def new_cache(self) -> Any:
        """One without tokens. None where a new token changes what was made of those before."""
