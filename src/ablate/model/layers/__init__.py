"""Layers that models share: multi-head attention, blocks, stacks, norms, feed-forward layers."""
