"""Gates: factors that scale the channels of a feature map. One class per file.

Letters: b batch, c channels, y rows, x columns.
"""

from torch import nn


class Gate(nn.Module):
    """b c y x -> b c y x. Constructed with `channels`, once for each block of a network."""
