"""The read-out of recurrent models: dropout, then a linear map, W x + b.

Zaremba et al. 2014, section 3.1, https://arxiv.org/abs/1409.2329. The map is a layer of the model
or its table of tokens: Press and Wolf 2017, https://arxiv.org/abs/1608.05859.
"""

import torch.nn.functional as F
from torch import Tensor, nn

from ablate.model.dropout import Dropout


class ReadOut(nn.Module):
    """A part without parameters: compile=true compiles it where a model has no attention."""

    def __init__(self, rate: float):
        super().__init__()
        self.dropout = Dropout(rate)

    def forward(self, x: Tensor, weight: Tensor, bias: Tensor | None = None) -> Tensor:
        return F.linear(self.dropout(x), weight, bias)
