"""Hard attention, all weight on one key: Xu et al. 2015, "Show, attend and tell", section 4.1.

https://arxiv.org/abs/1502.03044. In training the key is sampled from the softmax of the scores, by
the Gumbel-max trick; the gradient is that of the softmax with the same noise (straight-through:
Jang et al. 2017, https://arxiv.org/abs/1611.01144), which, unlike the paper's score-function
estimator, is biased, and has less variance. In evaluation it is the most likely key.
"""

from typing import ClassVar

import torch
from jaxtyping import Float, Int
from torch import Tensor

from ablate.config.rules import Positive
from ablate.model.normalizer import Normalizer
from ablate.random.draws import Source, uniform


class Hard(Normalizer):
    """temperature: of the softmax whose gradient is taken; nearer to 0 it has less bias and more
    variance.
    """

    samples: ClassVar[bool] = True
    shares: ClassVar[bool] = False

    def __init__(self, *, temperature: Positive) -> None:
        self.temperature = temperature

    def perturb(self, scores: Float[Tensor, "*bhi j"], source: Source) -> Float[Tensor, "*bhi j"]:
        gumbel = -(-uniform(source, scores).log()).log()
        return scores + gumbel.to(scores.dtype)

    def normalize(
        self, scores: Float[Tensor, "*bhi j"], seen: Int[Tensor, "*#bhi 1"] | int, *, training: bool
    ) -> Float[Tensor, "*bhi j"]:
        if not training:
            return one_hot(scores)
        lowest = torch.finfo(scores.dtype).min  # not -inf: the softmax of a row of them is NaN
        noisy = (scores / self.temperature).clamp(min=lowest)
        soft = noisy.softmax(-1)
        return one_hot(noisy) - soft.detach() + soft


def one_hot(scores: Float[Tensor, "*bhi j"]) -> Float[Tensor, "*bhi j"]:
    """1 for the highest score of a row, 0 for the others."""
    return torch.zeros_like(scores).scatter(-1, scores.argmax(-1, keepdim=True), 1.0)
