"""The approximation of GELU by a tanh, which GPT-2 uses.

Hendrycks and Gimpel 2016, section 2, https://arxiv.org/abs/1606.08415.
"""

from functools import partial

import torch.nn.functional as F

from ablate.model.ffn import FeedForward


class GELUTanh(FeedForward):
    activation = staticmethod(partial(F.gelu, approximate="tanh"))
