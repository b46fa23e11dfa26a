"""Shapes in annotations: checked in tests (tests/shapes.py), and forgotten nowhere."""

import ast
from collections.abc import Iterator
from pathlib import Path

import jaxtyping
import pytest
import torch
from shapes import PACKAGES, SOURCE

from ablate.model.attention.scaled_dot import ScaledDot

KINDS = {"Bool", "Float", "Int", "Integer", "Num", "Shaped"}
# Its arguments are torch's own.
TORCHS = {"LSTM.forward"}


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


def is_shape(node: ast.AST) -> bool:
    return isinstance(node, ast.Subscript) and getattr(node.value, "id", "") in KINDS


def is_bare(node: ast.AST) -> bool:
    """Whether a type has a tensor without a shape."""
    if is_shape(node):
        return False
    if "Tensor" in (getattr(node, "id", ""), getattr(node, "attr", "")):
        return True
    return any(map(is_bare, ast.iter_child_nodes(node)))


def types(body: list[ast.stmt], owner: str = "") -> Iterator[tuple[str, list[ast.expr]]]:
    """What is public and has types: functions and methods, fields, names of types. Those of custom
    operators are read by torch."""
    for node in body:
        if isinstance(node, ast.ClassDef):
            yield from types(node.body, f"{node.name}.")
        elif isinstance(node, ast.FunctionDef):
            operator = any("custom_op" in ast.unparse(around) for around in node.decorator_list)
            public = node.name.startswith("__") or not node.name.startswith("_")
            if public and not operator:
                given = [x.annotation for x in ast.walk(node.args) if isinstance(x, ast.arg)]
                yield f"{owner}{node.name}", [x for x in (*given, node.returns) if x]
        elif isinstance(node, ast.AnnAssign):
            yield f"{owner}{ast.unparse(node.target)}", [node.annotation]
        elif isinstance(node, ast.Assign) and isinstance(node.value, ast.Subscript):
            yield f"{owner}{ast.unparse(node.targets[0])}", [node.value]


def test_every_tensor_has_a_shape() -> None:
    forgotten = set()
    for package in PACKAGES:
        for file in Path(SOURCE, package.removeprefix("ablate.")).rglob("*.py"):
            for name, stated in types(ast.parse(file.read_text()).body):
                has_shape = any(is_shape(node) for kind in stated for node in ast.walk(kind))
                if any(map(is_bare, stated)) or (name.endswith(".forward") and not has_shape):
                    forgotten.add(name)
    assert forgotten == TORCHS
