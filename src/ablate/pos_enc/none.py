"""No position encoding: the model has no position information.

The ablated encoding. Without a mask the model then treats its input as a set; a causal mask by
itself lets a decoder find positions, Haviv et al. 2022, https://arxiv.org/abs/2203.16634.
"""

from ablate.pos_enc import PosEnc


class NoPosEnc(PosEnc):
    """Every hook does nothing."""

    acts_in = None
