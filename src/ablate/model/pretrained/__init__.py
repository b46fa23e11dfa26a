"""Weights that others trained: timm's and Hugging Face's."""
