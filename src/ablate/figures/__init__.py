"""Figures: plots, as PNGs, of data that the caller computes."""
