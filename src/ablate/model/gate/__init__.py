"""Gates: what each channel of an image is multiplied by. One class per file.

Letters: b batch, c channels, y rows, x columns.
"""

from torch import nn


class Gate(nn.Module):
    """b c y x -> b c y x. Made with `channels`, as often as a network has blocks."""
