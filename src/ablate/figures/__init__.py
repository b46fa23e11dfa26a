"""Figures: what is drawn of data that others compute, as PNGs."""
