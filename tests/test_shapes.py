"""Shapes in annotations are checked in tests: tests/shapes.py."""

import jaxtyping
import pytest
import torch

from ablate.model.attention.scaled_dot import ScaledDot


def scaled_dot() -> ScaledDot:
    return ScaledDot(heads=2, query_dim=4, key_dim=4, length=3)


def test_a_wrong_shape_is_refused() -> None:
    q, k = torch.randn(1, 2, 3, 4), torch.randn(1, 2, 5, 4)
    assert scaled_dot()(q, k).shape == (1, 2, 3, 5)
    for wrong in (k[0], k.expand(2, -1, -1, -1), k[..., :3], k.long()):
        with pytest.raises(jaxtyping.TypeCheckError, match="'k'"):
            scaled_dot()(q, wrong)


def test_only_what_has_a_shape_is_wrapped() -> None:
    """torch and Triton look into functions that they are given."""
    assert hasattr(ScaledDot.forward, "__wrapped__")
    assert not hasattr(ScaledDot.__init__, "__wrapped__")
