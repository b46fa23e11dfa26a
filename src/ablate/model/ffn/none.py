"""The ablated feed-forward network: blocks without this sublayer."""

from typing import Any

from ablate.config.conflicts import Conflict


def no_feed_forward(dim: int, **sizes: Any) -> None:
    """There is nothing to build."""


no_feed_forward.conflicts = (  # type: ignore[attr-defined]
    Conflict(
        lambda c: c("model.ffn_dim") is not None,
        "model.ffn_dim={model.ffn_dim} has no effect with model.ffn=none",
    ),
)
