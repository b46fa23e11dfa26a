"""The specification: scores, weights and context as whole matrices in plain tensor operations."""

from typing import ClassVar

from jaxtyping import Float
from torch import Tensor

from ablate.kernel import AttentionInputs, Kernel, attention_weights, mix


class Reference(Kernel):
    """Memory grows with queries x keys, times the width for scores that are not dot products."""

    name: ClassVar[str] = "reference"

    def __call__(self, attend: AttentionInputs) -> Float[Tensor, "b h {attend.queries} w"]:
        return mix(attend, attention_weights(attend))
