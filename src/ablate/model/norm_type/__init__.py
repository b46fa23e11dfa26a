"""Kinds of normalization. One class per file, a module of b i d.

It is constructed with the width `dim`, with `bias` (whether it adds one) and `eps`, which is added
to the variance before its root. A class with `images = True` also has a static method `of_images`,
from a number of channels to a module of b c y x, which model=resnet uses.
"""

from collections.abc import Callable

from torch import nn

from ablate.config.conflicts import Conflict

MakeNorm = Callable[..., nn.Module]
# Of all but the default.
UNUSED = Conflict(
    lambda c: c("model.norm") == "none",
    "model.norm_type={model.norm_type} has no effect with model.norm=none",
)
