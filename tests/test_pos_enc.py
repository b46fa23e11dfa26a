"""Position encodings: each against its formula in loops, and what must hold for all of them."""

import math
from pathlib import Path
from typing import Any

import pytest
import torch
from hydra import compose, initialize_config_dir
from hydra.utils import instantiate
from torch import Tensor

from ablate.errors import UserError
from ablate.pos_enc import PosEnc
from ablate.pos_enc.alibi import Alibi
from ablate.pos_enc.learned import Learned
from ablate.pos_enc.learned_2d import Learned2d
from ablate.pos_enc.learned_from_sinusoidal import LearnedFromSinusoidal
from ablate.pos_enc.relative import Relative
from ablate.pos_enc.relative_2d import Relative2d
from ablate.pos_enc.rotary import Rotary
from ablate.pos_enc.sinusoidal import Sinusoidal, waves
from ablate.pos_enc.sinusoidal_2d import Sinusoidal2d
from ablate.pos_enc.t5 import T5

CONF = Path(__file__).parents[1] / "conf"
NAMES = sorted(path.stem for path in (CONF / "pos_enc").glob("*.yaml"))
B, H, K, D, DEPTH = 2, 3, 8, 24, 2
ROWS, COLUMNS = 2, 3
N = ROWS * COLUMNS + 1
SIZES: dict[str, Any] = {
    "dim": D,
    "heads": H,
    "head_dim": K,
    "length": N,
    "depth": DEPTH,
    "grid": (ROWS, COLUMNS),
    "extra": 1,
}
POSITIONS = torch.arange(N)


def build(name: str, *, causal: bool = False) -> PosEnc:
    """The encoding as its YAML describes it, in float64."""
    with initialize_config_dir(str(CONF), version_base="1.3"):
        node = compose(overrides=[f"+pos_enc={name}"]).pos_enc
    torch.manual_seed(0)
    part: PosEnc = instantiate(node)(**SIZES, causal=causal)
    return part.double()


def normal(*shape: int, seed: int = 1) -> Tensor:
    generator = torch.Generator().manual_seed(seed)
    return torch.randn(*shape, generator=generator, dtype=torch.float64)


def scores(part: PosEnc, q: Tensor, k: Tensor, i: Tensor, j: Tensor, layer: int = 0) -> Tensor:
    """The dot product of queries and keys with everything the encoding does to it."""
    turned_q, turned_k = part.rotate(q, k, i, j)
    bias = part.bias(turned_q, i, j, layer)
    return turned_q @ turned_k.mT + (0 if bias is None else bias)


@pytest.mark.parametrize("causal", [False, True])
@pytest.mark.parametrize("name", NAMES)
def test_every_parameter_gets_a_gradient(name: str, causal: bool) -> None:
    part = build(name, causal=causal)
    total = part.embed(normal(B, N, D)).square().sum()
    for layer in range(DEPTH):
        q, k = normal(B, H, N, K), normal(B, H, N, K, seed=2)
        out = scores(part, q, k, POSITIONS, POSITIONS, layer)
        weights = out.tril().softmax(-1) if causal else out.softmax(-1)
        context = weights @ normal(B, H, N, K, seed=3)
        if part.value_term:
            context = context + part.values(weights, POSITIONS, POSITIONS, layer)
        total = total + context.square().sum()
    parameters = list(part.parameters())
    if not parameters:
        return
    total.backward()
    for parameter in parameters:
        assert parameter.grad is not None
        assert parameter.grad.abs().sum() > 0


@pytest.mark.parametrize("name", NAMES)
def test_the_hooks_keep_shape_and_dtype(name: str) -> None:
    part = build(name)
    for dtype in (torch.float64, torch.float32, torch.bfloat16):
        x, q = normal(B, N, D).to(dtype), normal(B, H, N, K).to(dtype)
        turned_q, turned_k = part.rotate(q, q, POSITIONS, POSITIONS)
        for out, like in ((part.embed(x), x), (turned_q, q), (turned_k, q)):
            assert (out.shape, out.dtype) == (like.shape, dtype)
        bias = part.bias(q, POSITIONS, POSITIONS, 0)
        if bias is not None:
            assert bias.dtype == dtype
            assert torch.broadcast_shapes(bias.shape, (B, H, N, N)) == (B, H, N, N)
        if part.value_term:
            term = part.values(normal(B, H, N, N).to(dtype), POSITIONS, POSITIONS, 0)
            assert (term.shape, term.dtype) == (q.shape, dtype)


@pytest.mark.parametrize("causal", [False, True])
@pytest.mark.parametrize("name", NAMES)
def test_some_rows_are_rows_of_the_whole(name: str, causal: bool) -> None:
    part = build(name, causal=causal)
    q, k, weights = normal(B, H, N, K), normal(B, H, N, K, seed=2), normal(B, H, N, N, seed=3)
    rows = torch.tensor([1, 4, 5])
    torch.testing.assert_close(
        scores(part, q[:, :, rows], k, rows, POSITIONS),
        scores(part, q, k, POSITIONS, POSITIONS)[:, :, rows],
    )
    if part.value_term:
        torch.testing.assert_close(
            part.values(weights[:, :, rows], rows, POSITIONS, 1),
            part.values(weights, POSITIONS, POSITIONS, 1)[:, :, rows],
        )


# Two dimensions have a distance each: test_local_attention.py.
@pytest.mark.parametrize("name", [name for name in NAMES if name != "relative_2d"])
def test_scores_and_values_depend_on_distance_alone(name: str) -> None:
    part = build(name)
    q, k, weights = normal(B, H, N, K), normal(B, H, N, K, seed=2), normal(B, H, N, N, seed=3)
    later = POSITIONS + 11
    torch.testing.assert_close(
        scores(part, q, k, later, later), scores(part, q, k, POSITIONS, POSITIONS)
    )
    if part.value_term:
        torch.testing.assert_close(
            part.values(weights, later, later, 0), part.values(weights, POSITIONS, POSITIONS, 0)
        )


@pytest.mark.parametrize("causal", [False, True])
@pytest.mark.parametrize("name", NAMES)
def test_a_bias_by_distance_is_the_bias(name: str, causal: bool) -> None:
    part = build(name, causal=causal)
    i, j, q = torch.arange(2, 6), torch.arange(N), normal(B, H, 4, K)
    bias = part.bias(q, i, j, 1)
    if not part.distances:
        assert bias is None or name == "relative_2d"
        return
    ahead = torch.arange(1 - len(i), len(j)) - 2
    found = part.by_distance(q, ahead, 1)
    assert found is not None
    table, rows = found
    row = rows[torch.arange(N) - torch.arange(4)[:, None] + 3].expand(B, H, -1, -1)
    assert bias is not None
    by_hand = table.expand(B, H, 4, -1).gather(-1, row)
    torch.testing.assert_close(by_hand, bias.expand(B, H, -1, -1))


@pytest.mark.parametrize("name", NAMES)
def test_every_encoding_but_none_tells_positions_apart(name: str) -> None:
    part = build(name)
    x = torch.ones(1, N, D, dtype=torch.float64)
    q = torch.ones(1, H, N, K, dtype=torch.float64)
    out = scores(part, q, q, POSITIONS, POSITIONS)
    embedded = part.embed(x)
    told = bool((out != out[..., :1]).any()) or bool((embedded != embedded[:, :1]).any())
    assert told == (name != "none")


@pytest.mark.parametrize("name", [name for name in NAMES if not name.endswith("_2d")])
def test_a_continued_sequence_is_embedded_as_the_whole(name: str) -> None:
    part, x = build(name), normal(B, N, D)
    torch.testing.assert_close(part.embed(x[:, 3:], start=3), part.embed(x)[:, 3:])


@pytest.mark.parametrize("name", NAMES)
def test_reset_depends_on_the_seed_alone(name: str) -> None:
    part = build(name)
    draws = []
    for seed in (0, 0, 1):
        torch.manual_seed(seed)
        part.reset_parameters()
        draws.append([p.detach().clone() for p in part.parameters()])
    assert all(torch.equal(a, b) for a, b in zip(draws[0], draws[1], strict=True))
    assert not any(torch.equal(a, b) for a, b in zip(draws[0], draws[2], strict=True))


def test_initial_values_are_the_published_ones() -> None:
    sizes = SIZES | {"dim": 64, "heads": 16, "head_dim": 50, "length": 60, "grid": (40, 45)}
    parts: list[tuple[PosEnc, float]] = [
        (Learned(**sizes), 0.02),
        (Learned2d(**sizes), 0.02),
        (T5(buckets=64, max_distance=128, **sizes), 64**-0.5),
        (
            Relative(max_distance=30, keys=True, values=True, **sizes),
            math.sqrt(2 / (61 + 50)),
        ),
        (Relative2d(**(sizes | {"grid": (40, 40)})), math.sqrt(2 / (79 + 25))),
    ]
    for part, std in parts:
        for parameter in part.parameters():
            assert parameter.std().item() == pytest.approx(std, rel=0.1)
            assert parameter.mean().item() == pytest.approx(0, abs=std / 5)


@pytest.mark.parametrize("dim", [8, 7])
def test_sinusoidal_is_the_formula(dim: int) -> None:
    part = Sinusoidal(base=10000.0, **(SIZES | {"dim": dim})).double()
    x = normal(1, 5, dim)
    expected = [
        [
            x[0, n, c].item()
            + (math.cos if c % 2 else math.sin)((n + 3) / 10000 ** ((c - c % 2) / dim))
            for c in range(dim)
        ]
        for n in range(5)
    ]
    torch.testing.assert_close(
        part.embed(x, start=3)[0], torch.tensor(expected, dtype=torch.float64)
    )


def test_learned_from_sinusoidal_is_a_map_of_the_sinusoids() -> None:
    part = LearnedFromSinusoidal(base=50.0, **SIZES).double()
    x, fixed = normal(1, 4, D), Sinusoidal(base=50.0, **SIZES)
    p = fixed.embed(torch.zeros(1, 4, D, dtype=torch.float64), start=9)
    torch.testing.assert_close(part.embed(x, start=9), x + p @ part.map)
    # As large at the start as the vectors of pos_enc=learned, and as far as one likes.
    wide = LearnedFromSinusoidal(base=10000.0, **(SIZES | {"dim": 512}))
    started = wide.embed(torch.zeros(1, 999, 512))
    assert started.std().item() == pytest.approx(0.02, rel=0.1)


def test_learned_refuses_more_than_it_was_trained_for() -> None:
    part = Learned(**SIZES)
    part.embed(torch.zeros(1, 3, D), start=N - 3)
    message = rf"pos_enc=learned was trained for {N} positions and cannot take {N + 1}"
    with pytest.raises(UserError, match=message):
        part.embed(torch.zeros(1, N + 1, D))
    with pytest.raises(UserError, match=message):
        part.embed(torch.zeros(1, 3, D), start=N - 2)


def rotary(layout: Any, **changes: Any) -> Rotary:
    return Rotary(base=100.0, layout=layout, **(SIZES | changes))


def test_rotary_turns_complex_numbers() -> None:
    """The paper's own notation: a pair is a complex number, multiplied by exp(i n theta_m)."""
    q, positions = normal(B, H, 5, K), torch.tensor([0, 1, 5, 7, 30])
    theta = 100.0 ** (-2 * torch.arange(K // 2, dtype=torch.float64) / K)
    turns = torch.polar(torch.ones(5, K // 2).double(), positions[:, None] * theta)
    expected = torch.view_as_real(torch.view_as_complex(q.unflatten(-1, (-1, 2))) * turns)
    torch.testing.assert_close(
        rotary("interleaved").rotate(q, q, positions, positions)[0], expected.flatten(-2)
    )


def test_rotary_layouts_are_permutations_of_each_other() -> None:
    q, k = normal(B, H, N, K), normal(B, H, N, K, seed=2)
    order = torch.tensor([*range(0, K, 2), *range(1, K, 2)])
    pairs = rotary("interleaved").rotate(q, k, POSITIONS, POSITIONS)
    halves = rotary("half").rotate(q[..., order], k[..., order], POSITIONS, POSITIONS)
    for interleaved, half in zip(pairs, halves, strict=True):
        torch.testing.assert_close(interleaved[..., order], half)


@pytest.mark.parametrize("layout", ["half", "interleaved"])
def test_rotary_keeps_lengths_and_leaves_position_zero(layout: str) -> None:
    part, q = rotary(layout), normal(B, H, N, K)
    turned, _ = part.rotate(q, q, POSITIONS, POSITIONS)
    torch.testing.assert_close(turned.norm(dim=-1), q.norm(dim=-1))
    torch.testing.assert_close(turned[:, :, 0], q[:, :, 0])
    assert not torch.allclose(turned[:, :, 1:], q[:, :, 1:])


def test_rotary_is_right_far_out_in_half_precision() -> None:
    """Angles are taken in float32: in bfloat16 position 1001 would be 1000."""
    q = normal(1, H, 1, K)
    far = torch.tensor([1001])
    exact, _ = rotary("half").rotate(q, q, far, far)
    half, _ = rotary("half").rotate(q.bfloat16(), q.bfloat16(), far, far)
    torch.testing.assert_close(half.double(), exact, atol=0.03, rtol=0.02)


def test_rotary_refusals() -> None:
    with pytest.raises(UserError, match=r"even width, here 7; change model\.dim or model\.heads"):
        rotary("half", head_dim=7)
    with pytest.raises(UserError, match=r"layout=halves .*half, interleaved; did you mean 'half'"):
        rotary("halves")


@pytest.mark.parametrize(
    ("heads", "exponents"),
    [
        (8, [1, 2, 3, 4, 5, 6, 7, 8]),
        (12, [1, 2, 3, 4, 5, 6, 7, 8, 0.5, 1.5, 2.5, 3.5]),
        (2, [4, 8]),
        (3, [4, 8, 2]),
        (1, [8]),
    ],
)
def test_alibi_slopes(heads: int, exponents: list[float]) -> None:
    part = Alibi(**(SIZES | {"heads": heads})).double()
    bias = part.bias(normal(1, heads, N, K), POSITIONS, POSITIONS, 0)
    assert (-bias[0, :, 0, 1]).tolist() == pytest.approx([2**-e for e in exponents], rel=1e-14)


def test_alibi_is_a_symmetric_straight_line() -> None:
    part = Alibi(**SIZES).double()
    bias = part.bias(normal(1, H, N, K), POSITIONS, POSITIONS, 0)[0]
    slope = bias[:, 0, 1]
    for i in range(N):
        for j in range(N):
            torch.testing.assert_close(bias[:, i, j], slope * abs(i - j))


@pytest.mark.parametrize("causal", [False, True])
def test_relative_is_the_sum_over_pairs(causal: bool) -> None:
    """Shaw's equations 3 and 4 as written, with a tensor `i j k` of vectors."""
    clip = 2
    part = Relative(max_distance=clip, keys=True, values=True, **SIZES, causal=causal).double()
    q, weights = normal(B, H, N, K), normal(B, H, N, N, seed=2)
    if causal:
        weights = weights.tril()
    assert part.key_tables is not None
    assert part.value_tables is not None
    for layer in range(DEPTH):
        a, c = (
            torch.stack(
                [
                    torch.stack(
                        [
                            table[max(-clip, min(clip, j - i, 0 if causal else clip)) + clip]
                            for j in range(N)
                        ]
                    )
                    for i in range(N)
                ]
            )
            for table in (part.key_tables[layer], part.value_tables[layer])
        )
        bias = part.bias(q, POSITIONS, POSITIONS, layer)
        assert bias is not None
        torch.testing.assert_close(bias, torch.einsum("bhik,ijk->bhij", q, a) / math.sqrt(K))
        torch.testing.assert_close(
            part.values(weights, POSITIONS, POSITIONS, layer),
            torch.einsum("bhij,ijk->bhik", weights, c),
        )


def test_relative_key_term_is_that_of_a_scaled_dot_product() -> None:
    """Equation 5: q . (k + a) / sqrt(width), so with keys of zero it is all there is."""
    part = Relative(max_distance=2, keys=True, values=False, **SIZES).double()
    assert part.key_tables is not None
    q = normal(1, H, 1, K)
    bias = part.bias(q, torch.tensor([4]), torch.tensor([3]), 1)
    key = part.key_tables[1][-1 + 2].expand(1, H, 1, K)
    torch.testing.assert_close(bias, q @ key.mT / math.sqrt(K))


def test_relative_creates_only_what_it_uses() -> None:
    def shapes(**changes: Any) -> list[tuple[int, ...]]:
        part = Relative(**({"max_distance": 4, "keys": True, "values": True} | SIZES | changes))
        return [tuple(p.shape) for p in part.parameters()]

    assert shapes() == [(9, K)] * 2 * DEPTH
    assert shapes(causal=True) == [(5, K)] * 2 * DEPTH
    assert shapes(values=False) == shapes(keys=False) == [(9, K)] * DEPTH
    keys_only = Relative(max_distance=4, keys=True, values=False, **SIZES)
    values_only = Relative(max_distance=4, keys=False, values=True, **SIZES)
    assert (keys_only.reads_query, keys_only.value_term) == (True, False)
    assert (values_only.reads_query, values_only.value_term) == (False, True)
    assert values_only.bias(normal(B, H, N, K), POSITIONS, POSITIONS, 0) is None
    with pytest.raises(UserError, match=r"keys=false and pos_enc\.values=false"):
        Relative(max_distance=4, keys=False, values=False, **SIZES)
    with pytest.raises(UserError, match=r"pos_enc\.max_distance=0"):
        Relative(max_distance=0, keys=True, values=True, **SIZES)


def published_bucket(ahead: int, *, causal: bool, buckets: int, max_distance: int) -> int:
    """The text of section 2.1 and the formula of the authors' code, in double precision."""
    offset = 0
    if causal:
        distance = max(-ahead, 0)
    else:
        buckets //= 2
        offset = buckets if ahead > 0 else 0
        distance = abs(ahead)
    single = buckets // 2
    if distance < single:
        return offset + distance
    # The tiny term: at an edge the quotient is a whole number and may round to just below it.
    grown = math.log(distance / single) / math.log(max_distance / single) + 1e-12
    return offset + min(single + int(grown * (buckets - single)), buckets - 1)


@pytest.mark.parametrize("causal", [False, True])
@pytest.mark.parametrize(("buckets", "far"), [(32, 128), (8, 20), (4, 3), (64, 1000), (12, 7)])
def test_t5_buckets_are_the_published_ones(buckets: int, far: int, causal: bool) -> None:
    part = T5(buckets=buckets, max_distance=far, **SIZES, causal=causal)
    ahead = torch.arange(-3 * far, 3 * far + 1)
    expected = [
        published_bucket(a, causal=causal, buckets=buckets, max_distance=far)
        for a in ahead.tolist()
    ]
    assert part.bucket(ahead).tolist() == expected


def test_t5_buckets_by_hand() -> None:
    """16 a direction: 0 to 7 alone, then doubling every two buckets from 8 on, 15 from 91 on."""
    part = T5(buckets=32, max_distance=128, **SIZES)
    behind = {0: 0, 7: 7, 8: 8, 11: 8, 12: 9, 16: 10, 32: 12, 63: 13, 64: 14, 90: 14, 91: 15}
    for distance, bucket in (behind | {128: 15, 9999: 15}).items():
        assert part.bucket(torch.tensor([[-distance]])).item() == bucket
        if distance:
            assert part.bucket(torch.tensor([[distance]])).item() == bucket + 16


def test_t5_bias_is_the_table_of_all_layers() -> None:
    part = T5(buckets=32, max_distance=128, **SIZES).double()
    q = normal(B, H, N, K)
    bias = part.bias(q, POSITIONS, POSITIONS, 0)
    torch.testing.assert_close(bias[0, :, 5, 2], part.table[3])
    torch.testing.assert_close(bias[0, :, 2, 5], part.table[16 + 3])
    assert torch.equal(bias, part.bias(q, POSITIONS, POSITIONS, 1))


def test_t5_refusals() -> None:
    for buckets, causal in ((31, False), (2, False), (1, True)):
        with pytest.raises(UserError, match=rf"pos_enc\.buckets={buckets} must be"):
            T5(buckets=buckets, max_distance=128, **SIZES, causal=causal)
    with pytest.raises(UserError, match=r"pos_enc\.max_distance=8 must be more than 8"):
        T5(buckets=32, max_distance=8, **SIZES)


@pytest.mark.parametrize("extra", [0, 1])
def test_two_dimensions_are_a_row_and_a_column(extra: int) -> None:
    sizes = SIZES | {"extra": extra, "length": ROWS * COLUMNS + extra}
    learned = Learned2d(**sizes).double()
    waved = Sinusoidal2d(base=10000.0, **sizes).double()
    wave = waves(torch.arange(9), dim=D // 2, base=10000.0, dtype=torch.float64)
    x = normal(B, sizes["length"], D)
    for part, row, column in (
        (learned, learned.row_table, learned.column_table),
        (waved, wave, wave),
    ):
        added = part.embed(x) - x
        assert not added[:, :extra].any()
        for r in range(ROWS):
            for c in range(COLUMNS):
                expected = torch.cat([row[r], column[c]]).expand(B, -1)
                torch.testing.assert_close(added[:, extra + r * COLUMNS + c], expected)


def test_sinusoidal_2d_holds_the_numbers_of_moco() -> None:
    """MoCo v3: sin and cos of x / 10000^(m / (d/4)) for m < d/4, for either axis; in any order."""
    part = Sinusoidal2d(base=10000.0, **SIZES).double()
    added = part.embed(torch.zeros(1, N, D, dtype=torch.float64))[0, 1:].unflatten(0, (ROWS, -1))
    for r in range(ROWS):
        for c in range(COLUMNS):
            angles = [place / 10000 ** (m / (D // 4)) for place in (r, c) for m in range(D // 4)]
            moco = sorted([*map(math.sin, angles), *map(math.cos, angles)])
            assert sorted(added[r, c].tolist()) == pytest.approx(moco)


def test_two_dimensions_refuse_what_is_no_such_image() -> None:
    for make in (lambda **s: Sinusoidal2d(base=10000.0, **s), Learned2d):
        with pytest.raises(UserError, match=r"_2d needs images"):
            make(**(SIZES | {"grid": None}))
        with pytest.raises(UserError, match=rf"built for {ROWS} x {COLUMNS} patches .* take 12"):
            make(**SIZES).embed(torch.zeros(1, 13, D))
    with pytest.raises(UserError, match=r"even model\.dim, here 23"):
        Learned2d(**(SIZES | {"dim": 23}))
    with pytest.raises(UserError, match=r"four divides, here 22"):
        Sinusoidal2d(base=10000.0, **(SIZES | {"dim": 22}))


@pytest.mark.parametrize("base", [0.0, -1.0])
def test_a_base_without_roots_is_refused(base: float) -> None:
    for make in (
        lambda: Sinusoidal(base=base, **SIZES),
        lambda: Sinusoidal2d(base=base, **SIZES),
        lambda: Rotary(base=base, layout="half", **SIZES),
    ):
        with pytest.raises(UserError, match=r"pos_enc\.base="):
            make()
