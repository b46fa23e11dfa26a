"""How a mask decoder encodes a position in the image: clicks, corners of boxes, and its own cells.

Constructed with `dim` and `image_size`, rows and columns of pixels; maps positions, ... 2, x then y
as shares of the width and of the height, to ... dim.
"""

from collections.abc import Callable

from torch import nn

MakePoints = Callable[..., nn.Module]
