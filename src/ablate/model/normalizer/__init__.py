"""Normalizers: how the scores of a query become attention weights. One class per file, on the base
`Normalizer`."""

from ablate.kernel.interface.normalizer import Normalizer

__all__ = ["Normalizer"]
