"""Masks: which key positions a query may attend to. One class per file, on the base `Mask`."""

from ablate.kernel.interface.mask import Mask, combine

__all__ = ["Mask", "combine"]
