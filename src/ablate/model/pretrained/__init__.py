"""Pretrained weights of timm and Hugging Face."""
