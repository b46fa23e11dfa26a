"""Decoding: sampling from language models, beam search with sequence-to-sequence models."""
