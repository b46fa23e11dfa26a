"""The ablated feed-forward network: blocks without this sublayer."""

from typing import Any


def no_feed_forward(dim: int, **sizes: Any) -> None:
    """There is nothing to build."""
