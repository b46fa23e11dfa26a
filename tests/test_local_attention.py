"""Attention in a window of an image, with relative positions, beside a convolution.

Against loops over rows and columns (Ramachandran et al. 2019, equations 1 and 3).
"""

import math
from itertools import product
from typing import Any

import pytest
import torch
from make_model import context, normal, options, part, place, random_parts, vit
from torch import Tensor

from ablate.config.composition import compose
from ablate.config.facts import Facts
from ablate.errors import UserError
from ablate.model.mask.window import Window
from ablate.model.mixer.attention import Attention
from ablate.pos_enc.relative_2d import Relative2d

ROWS, COLUMNS, HEADS, WIDTH = 4, 5, 2, 4
PATCHES = list(product(range(ROWS), range(COLUMNS)))
EXTRA = [0, 1]


def window(size: int, extra: int = 0) -> Window:
    return Window(causal=False, grid=(ROWS, COLUMNS), extra=extra, size=size)


def relative(extra: int = 0, depth: int = 2) -> Relative2d:
    made: Any = part("pos_enc", "relative_2d")(
        dim=HEADS * WIDTH, heads=HEADS, head_dim=WIDTH, length=extra + len(PATCHES), depth=depth,
        grid=(ROWS, COLUMNS), extra=extra,
    )  # fmt: skip
    return random_parts(made)  # type: ignore[return-value]


def places(extra: int) -> list[tuple[int, int] | None]:
    """Row and column of every position; None outside the image."""
    return [None] * extra + PATCHES


def near(a: tuple[int, int] | None, b: tuple[int, int] | None, size: int) -> bool:
    """Within a square of 2 size - 1 patches a side."""
    if a is None or b is None:
        return True
    return max(abs(a[0] - b[0]), abs(a[1] - b[1])) <= size - 1


# The window


@pytest.mark.parametrize("extra", EXTRA)
@pytest.mark.parametrize("size", [1, 2, 3, 4])
def test_a_patch_sees_a_square_and_a_class_token_all(size: int, extra: int) -> None:
    where = places(extra)
    positions = torch.arange(len(where))
    allowed = window(size, extra).allowed(positions, positions)
    for i, j in product(range(len(where)), repeat=2):
        assert bool(allowed[i, j]) == near(where[i], where[j], size), (where[i], where[j])
    assert window(size, extra).look_ahead == bool(allowed.triu(1).any())


def test_three_by_three_around_the_middle_and_at_the_corner() -> None:
    everything = torch.arange(len(PATCHES))
    allowed = window(2).allowed(everything, everything)
    drawn = {
        (1, 2): ".xxx. .xxx. .xxx. .....",
        (0, 0): "xx... xx... ..... .....",
        (3, 4): "..... ..... ...xx ...xx",
    }
    for (row, column), image in drawn.items():
        seen = [mark == "x" for line in image.split() for mark in line]
        assert allowed[row * COLUMNS + column].tolist() == seen


@pytest.mark.parametrize("extra", EXTRA)
@pytest.mark.parametrize("size", [1, 2, 3])
def test_span_leaves_out_nothing_that_is_seen_and_skips_rows(size: int, extra: int) -> None:
    length = extra + len(PATCHES)
    mask, positions = window(size, extra), torch.arange(length)
    full = mask.allowed(positions, positions)
    for first in range(length):
        for last in range(first + 1, length + 1):
            low, high = mask.span(first, last, length)
            assert 0 <= low <= high <= length
            assert not full[first:last, :low].any()
            assert not full[first:last, high:].any()
    if not extra:
        assert window(1).span(0, COLUMNS, length) == (0, COLUMNS)
        assert window(2).span(length - 1, length, length) == (2 * COLUMNS, length)


# Relative positions


@pytest.mark.parametrize("extra", EXTRA)
@pytest.mark.parametrize("layer", [0, 1])
def test_the_score_gains_the_query_times_both_offsets(layer: int, extra: int) -> None:
    made, where = relative(extra), places(extra)
    q = normal(2, HEADS, len(where), WIDTH)
    i = torch.arange(len(where))
    bias = made.bias(q, i, i, layer)
    rows, columns = made.row_tables[layer], made.column_tables[layer]
    assert rows.shape == (2 * ROWS - 1, WIDTH // 2)
    assert columns.shape == (2 * COLUMNS - 1, WIDTH // 2)
    for a, b in product(range(len(where)), repeat=2):
        here, there = where[a], where[b]
        expected = torch.zeros(2, HEADS, dtype=torch.float64)
        if here is not None and there is not None:
            r = rows[there[0] - here[0] + ROWS - 1]
            c = columns[there[1] - here[1] + COLUMNS - 1]
            expected = q[:, :, a] @ torch.cat([r, c]) / math.sqrt(WIDTH)
        torch.testing.assert_close(bias[:, :, a, b], expected)


def test_some_queries_and_keys_get_their_part_of_the_whole() -> None:
    made, q = relative(1), normal(1, HEADS, 21, WIDTH)
    i = torch.arange(21)
    whole = made.bias(q, i, i, 0)
    some = made.bias(q[:, :, 6:9], i[6:9], i[3:15], 0)
    torch.testing.assert_close(some, whole[:, :, 6:9, 3:15])


def test_they_need_a_image_and_an_even_head() -> None:
    sizes = {"dim": 6, "heads": 2, "head_dim": 3, "length": 4, "depth": 1}
    with pytest.raises(UserError, match=r"relative_2d needs images.*pos_enc=relative is"):
        Relative2d(**sizes)
    with pytest.raises(UserError, match="must be even, not 3"):
        Relative2d(grid=(2, 2), **sizes)


# The whole layer


def layer(kernel: str, *, size: int, extra: int = 0, score: str = "scaled_dot") -> Attention:
    pos = relative(extra)
    parts = {"mask": window(size, extra), "pos": pos, "kernel": part("kernel", kernel), "layer": 1}
    made = Attention(place(HEADS * WIDTH, HEADS, extra + len(PATCHES), score=score, **parts))
    made.positions = pos
    return random_parts(made)  # type: ignore[return-value]


@pytest.mark.parametrize("extra", EXTRA)
def test_a_layer_is_the_papers_equation_in_loops(extra: int) -> None:
    made, where = layer("reference", size=2, extra=extra), places(extra)
    x = normal(1, len(where), HEADS * WIDTH)
    q, (k, v) = made.queries(x), made.keys_and_values(x)
    out = torch.zeros(len(where), HEADS, WIDTH, dtype=torch.float64)
    rows, columns = (tables[1] for tables in (made.positions.row_tables,
                                              made.positions.column_tables))  # fmt: skip
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
    expected = made.out(out.flatten(1))[None]
    torch.testing.assert_close(made(x, context(made.positions)), expected)


@pytest.mark.parametrize("extra", EXTRA)
@pytest.mark.parametrize("score", ["scaled_dot", "additive", "general"])
@pytest.mark.parametrize("kernel", ["sdpa", "chunked", "auto"])
def test_kernels_agree_in_values_and_gradients(kernel: str, score: str, extra: int) -> None:
    if (kernel, score) == ("sdpa", "additive"):
        pytest.skip("no product")
    found = []
    for name in ("reference", kernel):
        made = layer(name, size=2, extra=extra, score=score)
        if name == "chunked":
            made.kernel.chunk = 3  # type: ignore[attr-defined]
        x = normal(2, extra + len(PATCHES), HEADS * WIDTH).requires_grad_()
        y = made(x, context(made.positions))
        y.square().sum().backward()
        found.append([y, x.grad, *(p.grad for p in made.parameters())])
    for mine, theirs in zip(*found, strict=True):
        torch.testing.assert_close(mine, theirs)


@pytest.mark.parametrize("mixer", ["window", "convolution"])
def test_away_from_borders_a_shifted_image_gives_a_shifted_answer(mixer: str) -> None:
    """What Ramachandran et al. call translation equivariance, for a window and a convolution of
    the same extent."""
    changes: dict[str, Any] = {"image_size": (16, 16), "pool": "mean", "depth": 1, "dim": 8}
    changes |= {"heads": 2}
    if mixer == "window":
        changes |= {"mask": part("model.mask", "window", size=2), "pos_enc": "relative_2d"}
    else:
        changes |= {"mixer": part("model.mixer", "convolution", size=3)}
    model = random_parts(vit(**changes)).eval()
    image = torch.zeros(1, 2, 16, 16, dtype=torch.float64)
    image[..., 4:8, 6:10] = normal(1, 2, 4, 4)
    moved = image.roll((2, -2), (-2, -1))  # a patch down, a patch to the left

    def answers(images: Tensor) -> Tensor:
        return model.stack(model.patches(images)).unflatten(1, (8, 8))

    # The object has background on all sides in both images.
    torch.testing.assert_close(answers(image)[:, 1:6, 2:7], answers(moved)[:, 2:7, 1:6])
    assert not torch.allclose(answers(image)[:, 1:6, 2:7], answers(moved)[:, 1:6, 2:7])


def test_a_window_and_a_convolution_of_the_same_extent_see_the_same_patches() -> None:
    """Which patches of the image the output of each patch depends on."""
    image = normal(1, 2, 12, 12).requires_grad_()
    seen = []
    for changes in (
        {"mask": part("model.mask", "window", size=2)},
        {"mixer": part("model.mixer", "convolution", size=3)},
    ):
        model = random_parts(vit(image_size=(12, 12), pool="mean", depth=1, **changes)).eval()
        y = model.stack(model.patches(image)).square().sum(-1)[0]
        rows = []
        for patch in range(36):
            (gradient,) = torch.autograd.grad(y[patch], image, retain_graph=True)
            blocks = gradient.abs().sum(1)[0].unfold(0, 2, 2).unfold(1, 2, 2).sum((-1, -2))
            rows.append(blocks > 0)
        seen.append(torch.stack(rows))
    assert torch.equal(*seen)
    assert seen[0][14].sum() == 9  # row 2, column 2


def test_a_class_token_reads_every_patch_through_a_window() -> None:
    mask = part("model.mask", "window", size=1)
    model = random_parts(vit(image_size=(12, 12), mask=mask, depth=1)).eval()
    image = normal(1, 2, 12, 12).requires_grad_()
    model(image).square().sum().backward()
    assert image.grad is not None
    assert (image.grad != 0).all()


# The command line


def test_a_window_as_large_as_the_image_is_refused() -> None:
    assert Facts(compose("model=vit")).across == 4
    with pytest.raises(UserError, match=r"size=16 lets each of the 4 x 4 patches.*less than 4"):
        compose("model=vit", "model.mask=window")
    compose("model=vit", "model.mask=window", "model.mask.size=3")


@pytest.mark.parametrize("mixer", [name for name in options("model.mixer") if name != "attention"])
def test_relative_positions_need_attention(mixer: str) -> None:
    with pytest.raises(UserError, match="pos_enc=relative_2d acts inside attention"):
        compose("model=vit", "pos_enc=relative_2d", f"model.mixer={mixer}", "model.pool=mean")
