"""Recurrent encoders and decoders, and attention between them."""
