"""A network gated by GELU: Shazeer 2020, https://arxiv.org/abs/2002.05202."""

import torch.nn.functional as F

from ablate.model.ffn import FeedForward


class GEGLU(FeedForward):
    gated = True
    activation = staticmethod(F.gelu)
