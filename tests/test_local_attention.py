"""Attention in a window of an image, against loops (Ramachandran et al. 2019, equations 1, 3)."""

import math
from itertools import combinations, product

import pytest
import torch
from make_model import context, normal, part, place, random_parts
from torch.testing import assert_close

from ablate.model.mask.window import Window
from ablate.model.mixer.attention import Attention

ROWS, COLUMNS, HEADS, WIDTH = 4, 5, 2, 4
PATCHES = list(product(range(ROWS), range(COLUMNS)))
EXTRA = [0, 1]


def window(size, extra=0):
    return Window(causal=False, grid=(ROWS, COLUMNS), extra=extra, size=size)


def places(extra):
    """Row and column of every position; None outside the image."""
    return [None] * extra + PATCHES


def near(a, b, size):
    """Within a square of 2 size - 1 patches a side."""
    if a is None or b is None:
        return True
    return max(abs(a[0] - b[0]), abs(a[1] - b[1])) <= size - 1


@pytest.mark.parametrize("extra", EXTRA)
@pytest.mark.parametrize("size", [1, 3])
def test_a_patch_sees_a_square_and_a_class_token_all(size, extra):
    """The span leaves out nothing that is seen."""
    where, mask = places(extra), window(size, extra)
    length = len(where)
    allowed = mask.allowed(torch.arange(length), torch.arange(length))
    for i, j in product(range(length), repeat=2):
        assert bool(allowed[i, j]) == near(where[i], where[j], size), (where[i], where[j])
    assert mask.look_ahead == bool(allowed.triu(1).any())
    assert "range" not in mask.needs
    for first, last in combinations(range(length + 1), 2):
        low, high = mask.span(first, last, length)
        assert 0 <= low <= high <= length
        assert not allowed[first:last, :low].any()
        assert not allowed[first:last, high:].any()
    if not extra:  # and skips rows
        assert mask.span(0, 1, length) == (0, size * COLUMNS)


def layer(kernel, *, extra, score="scaled_dot"):
    length = extra + len(PATCHES)
    sizes = {"dim": HEADS * WIDTH, "heads": HEADS, "length": length}
    own = {"head_dim": WIDTH, "depth": 2, "grid": (ROWS, COLUMNS), "extra": extra}
    pos = part("pos_enc", "relative_2d")(**sizes, **own)
    chosen = {"mask": window(2, extra), "pos": pos, "kernel": kernel, "layer": 1, "score": score}
    made = random_parts(Attention(place(**sizes, **chosen)))
    made.positions = random_parts(pos)
    return made


@pytest.mark.parametrize("extra", EXTRA)
def test_a_layer_is_the_papers_equation_in_loops(extra):
    made, where = layer(part("kernel", "reference"), extra=extra), places(extra)
    x = normal(1, len(where), HEADS * WIDTH)
    q, k, v = made.queries(x), made.keys(x), made.values(x)
    out = torch.zeros(len(where), HEADS, WIDTH, dtype=torch.float64)
    rows, columns = made.positions.row_tables[1], made.positions.column_tables[1]
    for a, h in product(range(len(where)), range(HEADS)):
        here, seen = where[a], [b for b in range(len(where)) if near(where[a], where[b], 2)]
        scores = []
        for b in seen:
            there, key = where[b], k[0, h, b]
            if here is not None and there is not None:
                r = rows[there[0] - here[0] + ROWS - 1]
                key = key + torch.cat([r, columns[there[1] - here[1] + COLUMNS - 1]])
            scores.append(q[0, h, a] @ key / math.sqrt(WIDTH))
        weights = torch.stack(scores).softmax(0)
        out[a, h] = sum(w * v[0, h, b] for w, b in zip(weights, seen, strict=True))
    assert_close(made(x, context(made.positions)), made.out(out.flatten(1))[None])


@pytest.mark.parametrize(
    ("kernel", "score"), [("sdpa", "dot"), ("chunked", "scaled_dot"), ("chunked", "additive")]
)
def test_kernels_agree_in_values_and_gradients(kernel, score):
    found = []
    for name, own in (("reference", {}), (kernel, {"chunk": 3} if kernel == "chunked" else {})):
        made = layer(part("kernel", name, **own), extra=1, score=score)
        x = normal(2, 1 + len(PATCHES), HEADS * WIDTH).requires_grad_()
        y = made(x, context(made.positions))
        y.square().sum().backward()
        found.append([y, x.grad, *(p.grad for p in made.parameters())])
    assert_close(*found)
