"""Shapes in annotations: checked in tests (tests/shapes.py), and forgotten nowhere."""

import ast
import re
from collections.abc import Iterator
from pathlib import Path

import jaxtyping
import pytest
import torch
from shapes import PACKAGES, SOURCE

from ablate.model.attention.scaled_dot import ScaledDot

# Its arguments are torch's own.
TORCHS = {"LSTM.forward"}


def test_a_wrong_shape_is_refused() -> None:
    score = ScaledDot(heads=2, query_dim=4, key_dim=4, length=3)
    q, k = torch.randn(1, 2, 3, 4), torch.randn(1, 2, 5, 4)
    assert score(q, k).shape == (1, 2, 3, 5)
    for wrong in (k[0], k.expand(2, -1, -1, -1), k[..., :3], k.long()):
        with pytest.raises(jaxtyping.TypeCheckError, match="'k'"):
            score(q, wrong)


def test_only_what_has_a_shape_is_wrapped() -> None:
    """torch and Triton look into functions that they are given."""
    assert hasattr(ScaledDot.forward, "__wrapped__")
    assert not hasattr(ScaledDot.__init__, "__wrapped__")


SHAPE = re.compile(r"\b(Bool|Float|Int|Integer|Num|Shaped)\[(torch\.)?Tensor, [^\]]*\]")


def types(body: list[ast.stmt], owner: str = "") -> Iterator[tuple[str, str]]:
    """What is public and has types: functions and methods, fields, names of types. Those of custom
    operators are read by torch."""
    for node in body:
        if isinstance(node, ast.ClassDef):
            yield from types(node.body, f"{node.name}.")
        elif isinstance(node, ast.FunctionDef):
            operator = any("custom_op" in ast.unparse(around) for around in node.decorator_list)
            private = node.name.startswith("_") and not node.name.startswith("__")
            if not (private or operator):
                given = [x.annotation for x in ast.walk(node.args) if isinstance(x, ast.arg)]
                stated = [ast.unparse(x) for x in (*given, node.returns) if x]
                yield f"{owner}{node.name}", ", ".join(stated)
        elif isinstance(node, ast.AnnAssign):
            yield f"{owner}{ast.unparse(node.target)}", ast.unparse(node.annotation)
        elif isinstance(node, ast.Assign) and isinstance(node.value, ast.Subscript):
            yield f"{owner}{ast.unparse(node.targets[0])}", ast.unparse(node.value)


def test_every_tensor_has_a_shape() -> None:
    forgotten = set()
    for package in PACKAGES:
        for file in Path(SOURCE, package.removeprefix("ablate.")).rglob("*.py"):
            for name, stated in types(ast.parse(file.read_text()).body):
                bare, shapes = SHAPE.subn("", stated)
                if re.search(r"\bTensor\b", bare) or (name.endswith(".forward") and not shapes):
                    forgotten.add(name)
    assert forgotten == TORCHS
