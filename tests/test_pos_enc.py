"""Position encodings: each against its formula in loops, and what must hold for all of them."""

import math
from itertools import product

import pytest
import torch
from make_model import gpt, normal, options, part
from torch.testing import assert_close

from ablate.errors import UserError
from ablate.pos_enc.sinusoidal import waves
from ablate.random.draws import Draws

NAMES = options("pos_enc")
B, H, K, D, DEPTH = 2, 3, 8, 24, 2
ROWS, COLUMNS = 2, 3
N = ROWS * COLUMNS + 1
SIZES = {"dim": D, "heads": H, "head_dim": K, "length": N, "depth": DEPTH}
SIZES |= {"grid": (ROWS, COLUMNS), "extra": 1}
POSITIONS = torch.arange(N)


def build(name, *, causal=False, **keys):
    """The encoding as its YAML describes it, in float64."""
    torch.manual_seed(0)
    own = {key: keys.pop(key) for key in [*keys] if key not in SIZES}
    made = part("pos_enc", name, **own)(**(SIZES | keys), causal=causal)
    return made.double()


def scores(part, q, k, i, j, layer=0):
    """The dot product of queries and keys with everything the encoding does to it."""
    turned_q, turned_k = part.rotate(q, k, i, j)
    bias = part.bias(turned_q, i, j, layer)
    return turned_q @ turned_k.mT + (0 if bias is None else bias)


@pytest.mark.parametrize("name", NAMES)
def test_the_hooks_keep_shape_and_dtype(name):
    dtype = torch.bfloat16
    part, at = build(name), (POSITIONS, POSITIONS)
    x, q, weights = (normal(*s).to(dtype) for s in ((B, N, D), (B, H, N, K), (B, H, N, N)))
    pairs = [(part.embed(x), x), *((turned, q) for turned in part.rotate(q, q, *at))]
    if (bias := part.bias(q, *at, 0)) is not None:
        pairs.append((bias.expand(B, H, N, N), weights))
    if "weights" in part.needs:
        pairs.append((part.values(weights, *at, 0), q))
    assert all((out.shape, out.dtype) == (like.shape, dtype) for out, like in pairs)


@pytest.mark.parametrize("causal", [False, True])
@pytest.mark.parametrize("name", NAMES)
def test_a_part_is_that_of_the_whole_and_distances_count_alone(name, causal):
    part = build(name, causal=causal)
    q, k, weights = normal(B, H, N, K), normal(B, H, N, K, seed=2), normal(B, H, N, N, seed=3)
    whole, rows, later = scores(part, q, k, POSITIONS, POSITIONS), torch.arange(2, 5), 11
    some = scores(part, q[:, :, rows], k[:, :, 3:], rows, POSITIONS[3:])
    assert_close(some, whole[:, :, rows, 3:])
    if not name.endswith("_2d"):
        moved = POSITIONS + later
        assert_close(scores(part, q, k, moved, moved), whole)
        x = normal(B, N, D)
        assert_close(part.embed(x[:, 3:], start=3), part.embed(x)[:, 3:])
    if "weights" in part.needs:
        values = part.values(weights, POSITIONS, POSITIONS, 1)
        some = part.values(weights[:, :, rows], rows + later, POSITIONS + later, 1)
        assert_close(some, values[:, :, rows])


@pytest.mark.parametrize("causal", [False, True])
@pytest.mark.parametrize("name", NAMES)
def test_a_bias_by_distance_is_the_bias(name, causal):
    part, i, j, q = build(name, causal=causal), torch.arange(2, 6), POSITIONS, normal(B, H, 4, K)
    bias = part.bias(q, i, j, 1)
    if "distance_bias" not in part.needs:
        assert bias is None or name == "relative_2d"
        return
    table, rows = part.by_distance(q, torch.arange(1 - len(i), len(j)) - 2, 1)
    row = rows[j - torch.arange(4)[:, None] + 3].expand(B, H, -1, -1)
    by_hand = table.expand(B, H, 4, -1).gather(-1, row)
    assert_close(by_hand, bias.expand(B, H, -1, -1))


@pytest.mark.parametrize(
    ("name", "keys", "std"),
    [
        ("learned", {}, 0.02),
        ("learned_2d", {}, 0.02),
        ("t5", {"buckets": 64}, 64**-0.5),
        ("relative", {"max_distance": 30}, math.sqrt(2 / (61 + 50))),
        ("relative_2d", {"grid": (40, 40)}, math.sqrt(2 / (79 + 25))),
    ],
)
def test_initial_values_are_the_published_ones(name, keys, std):
    sizes = {"dim": 64, "heads": 16, "head_dim": 50, "length": 60, "grid": (40, 45)}
    for parameter in build(name, **(sizes | keys)).parameters():
        assert parameter.std().item() == pytest.approx(std, rel=0.1)
        assert parameter.mean().item() == pytest.approx(0, abs=std / 5)


@pytest.mark.parametrize("dim", [8, 7])
def test_sinusoidal_is_the_formula(dim):
    x, n, c = normal(1, 5, dim), torch.arange(3, 8).double()[:, None], torch.arange(dim)
    angle = n / 10000 ** ((c - c % 2) / dim)
    expected = x + torch.where(c % 2 == 1, angle.cos(), angle.sin())
    assert_close(build("sinusoidal", dim=dim).embed(x, start=3), expected)


def test_learned_from_sinusoidal_is_a_map_of_the_sinusoids():
    part = build("learned_from_sinusoidal")
    x, nothing = normal(1, 4, D), torch.zeros(1, 4, D).double()
    p = build("sinusoidal").embed(nothing, start=9)
    assert_close(part.embed(x, start=9), x + p @ part.map)
    # As large at the start as the vectors of pos_enc=learned, and as far as one likes.
    started = build("learned_from_sinusoidal", dim=512).embed(torch.zeros(1, 999, 512))
    assert started.std().item() == pytest.approx(0.02, rel=0.1)


@pytest.mark.parametrize("scaling", [None, "linear", "ntk", "yarn"])
@pytest.mark.parametrize(
    ("layout", "share"), [("half", 1.0), ("interleaved", 1.0), ("half", 0.5), ("interleaved", 0.5)]
)
def test_rotary_is_the_formula_of_the_papers(layout, share, scaling):
    """Pair by pair: Su et al. 2021; Chen et al. 2023, equation 4; Peng et al. 2023, equations 16 to
    22. What is not rotated, of a share, is scaled alike."""
    width, length, s, base = 12, 300, 4.0, 50.0
    whole, i, j = round(width / share), torch.tensor([1, 3, 7, 30]), torch.tensor([0, 30, 7])
    q, k = normal(B, H, 4, whole), normal(B, H, 3, whole, seed=2)
    part = build("rotary", dim=whole * H, head_dim=whole, length=length, base=base, layout=layout,
                 share=share, scaling=scaling, factor=s)  # fmt: skip
    size = 0.1 * math.log(s) + 1 if scaling == "yarn" else 1.0
    for x, at, found in zip((q, k), (i, j), part.rotate(q, k, i, j), strict=True):
        expected = x.clone()
        for m in range(width // 2):
            angle = base ** (-2 * m / width)
            if scaling == "ntk":
                angle = (base * s ** (width / (width - 2))) ** (-2 * m / width)
            elif scaling == "linear":
                angle = angle / s
            elif scaling == "yarn":
                turns = length / (2 * math.pi / angle)
                kept = 0.0 if turns < 1 else 1.0 if turns > 32 else (turns - 1) / 31
                angle = (1 - kept) * angle / s + kept * angle
            pair = [m, m + width // 2] if layout == "half" else [2 * m, 2 * m + 1]
            turn = torch.polar(torch.ones(len(at)).double(), at.double() * angle)
            turned = torch.view_as_complex(x[..., pair]) * turn
            expected[..., pair] = torch.view_as_real(turned)
        assert_close(found, size * expected)


@pytest.mark.parametrize(
    ("length", "base", "width", "share"),
    [(300, 50.0, 12, 1.0), (2048, 1e4, 64, 1.0), (64, 1e4, 32, 0.5), (4, 3.0, 8, 1.0)],
)
def test_yarn_by_index_is_that_of_transformers(length, base, width, share):
    """And differs from that of the paper."""
    llama = pytest.importorskip("transformers.models.llama.modeling_llama")
    parameters = {
        **{"rope_type": "yarn", "rope_theta": base, "factor": 4.0, "partial_rotary_factor": share},
        "original_max_position_embeddings": length,
    }
    config = llama.LlamaConfig(
        hidden_size=H * width, num_attention_heads=H, head_dim=width, rope_parameters=parameters,
        max_position_embeddings=4 * length,
    )  # fmt: skip
    q, i = normal(B, H, 5, width).float(), torch.tensor([0, 1, 9, length, 4 * length - 1])
    r = round(share * width)
    cos, sin = llama.LlamaRotaryEmbedding(config)(q, i[None].expand(B, -1))
    theirs, _ = llama.apply_rotary_pos_emb(q[..., :r], q[..., :r], cos, sin)
    ours, papers = (
        build("rotary", dim=H * width, head_dim=width, length=length, base=base, layout="half",
              share=share, scaling=scaling, factor=4.0).float().rotate(q, q, i, i)[0]
        for scaling in ("yarn_index", "yarn")
    )  # fmt: skip
    assert_close(ours, torch.cat([theirs, q[..., r:]], dim=-1), atol=2e-4, rtol=1e-4)
    assert not torch.allclose(ours[..., :r], papers[..., :r], atol=0.1) or length == 4


def test_rotary_is_right_far_out_in_half_precision():
    """Angles are taken in float32: in bfloat16 position 1001 would be 1000."""
    part, q, far = build("rotary", base=100.0), normal(1, H, 1, K), torch.tensor([1001])
    exact, half = (part.rotate(x, x, far, far)[0] for x in (q, q.bfloat16()))
    assert_close(half.double(), exact, atol=0.03, rtol=0.02)


@pytest.mark.parametrize("heads", [1, 2, 3, 8, 12])
def test_alibi_is_a_line_for_each_head(heads):
    """Powers of 2 evenly apart; beyond a power of 2 heads, every other one of twice as many."""
    exponents = {1: [8], 2: [4, 8], 3: [4, 8, 2], 8: [*range(1, 9)]}
    exponents[12] = [*range(1, 9), 0.5, 1.5, 2.5, 3.5]
    bias = build("alibi", heads=heads).bias(normal(1, heads, N, K), POSITIONS, POSITIONS, 0)
    slopes = 2.0 ** -torch.tensor(exponents[heads]).double()[:, None, None]
    expected = -slopes * (POSITIONS - POSITIONS[:, None]).abs()
    assert_close(bias, expected[None], atol=0, rtol=1e-14)


@pytest.mark.parametrize("causal", [False, True])
def test_relative_is_the_sum_over_pairs(causal):
    """Shaw's equations 3 and 4 as written, with a tensor `i j k` of vectors."""
    clip, whole = 2, (POSITIONS, POSITIONS)
    part = build("relative", max_distance=clip, causal=causal)
    q, weights = normal(B, H, N, K), normal(B, H, N, N, seed=2)
    weights = weights.tril() if causal else weights
    ahead = (POSITIONS - POSITIONS[:, None]).clamp(-clip, 0 if causal else clip)
    for layer in range(DEPTH):
        a, c = (tables[layer][ahead + clip] for tables in (part.key_tables, part.value_tables))
        found = part.bias(q, *whole, layer), part.values(weights, *whole, layer)
        bias = torch.einsum("bhik,ijk->bhij", q, a) / math.sqrt(K)
        assert_close(found, (bias, torch.einsum("bhij,ijk->bhik", weights, c)))


@pytest.mark.parametrize(("keys", "values"), [(True, True), (True, False), (False, True)])
def test_relative_creates_only_what_it_uses(keys, values):
    part = build("relative", max_distance=4, keys=keys, values=values)
    assert [p.shape for p in part.parameters()] == [(9, K)] * DEPTH * (keys + values)
    bias = part.bias(normal(B, H, N, K), POSITIONS, POSITIONS, 0)
    assert (bias is not None, "weights" in part.needs) == (keys, values)


def published_bucket(ahead, *, causal, buckets, max_distance):
    """The text of section 2.1 and the formula of the authors' code, in double precision."""
    distance = max(-ahead, 0) if causal else abs(ahead)
    buckets //= 1 if causal else 2
    offset, single = 0 if causal or ahead <= 0 else buckets, buckets // 2
    if distance < single:
        return offset + distance
    # The tiny term: at an edge the quotient is a whole number and may round to just below it.
    grown = math.log(distance / single) / math.log(max_distance / single) + 1e-12
    return offset + min(single + int(grown * (buckets - single)), buckets - 1)


@pytest.mark.parametrize("causal", [False, True])
@pytest.mark.parametrize(("buckets", "far"), [(32, 128), (8, 20), (4, 3), (64, 1000), (12, 7)])
def test_t5_buckets_are_the_published_ones(buckets, far, causal):
    part = build("t5", buckets=buckets, max_distance=far, causal=causal)
    ahead = torch.arange(-3 * far, 3 * far + 1)
    shape = {"causal": causal, "buckets": buckets, "max_distance": far}
    assert part.bucket(ahead).tolist() == [published_bucket(a, **shape) for a in ahead.tolist()]


def test_t5_sums_its_gradient_in_the_precision_of_its_table():
    part, n = build("t5").float(), torch.arange(600)
    bias = part.bias(torch.zeros(1, H, 600, K, dtype=torch.bfloat16), n, n, 0)
    assert bias.dtype is torch.bfloat16
    bias.backward(torch.ones_like(bias))
    pairs = part.bucket(n - n[:, None]).flatten().bincount(minlength=len(part.table))
    assert_close(part.table.grad, pairs[:, None].float().expand(-1, H))


@pytest.mark.parametrize("extra", [0, 1])
def test_two_dimensions_are_a_row_and_a_column(extra):
    sizes = {"extra": extra, "length": ROWS * COLUMNS + extra}
    learned = build("learned_2d", **sizes)
    wave = waves(torch.arange(9), dim=D // 2, base=10000.0, dtype=torch.float64)
    x = normal(B, sizes["length"], D)
    for made, row, column in (
        (learned, learned.row_table, learned.column_table),
        (build("sinusoidal_2d", **sizes), wave, wave),
    ):
        added = made.embed(x) - x
        assert not added[:, :extra].any()
        for r, c in product(range(ROWS), range(COLUMNS)):
            expected = torch.cat([row[r], column[c]]).expand(B, -1)
            assert_close(added[:, extra + r * COLUMNS + c], expected)


@pytest.mark.parametrize(
    ("name", "keys", "message"),
    [
        ("rotary", {"head_dim": 7}, r"of heads of width 7: 7; change that to an even"),
        ("rotary", {"scaling": "yarn_index", "base": 1.0}, r"pos_enc\.base=1: must be above 1"),
        ("relative", {"keys": False, "values": False}, r"keys=false and pos_enc\.values=false"),
        ("t5", {"buckets": 31}, r"pos_enc\.buckets=31 must be an even number of at least 4"),
        ("t5", {"buckets": 1, "causal": True}, r"pos_enc\.buckets=1 must be at least 2"),
        ("t5", {"max_distance": 8}, r"pos_enc\.max_distance=8 must be more than 8"),
    ],
)
def test_what_cannot_be_built_is_refused(name, keys, message):
    with pytest.raises(UserError, match=message):
        build(name, **keys)


def test_more_than_in_training_is_refused():
    for name, start, count in (("learned", N - 2, 3), ("learned_2d", 0, 13)):
        with pytest.raises(UserError, match=r"cannot take|take 12"):
            build(name).embed(torch.zeros(1, count, D), start)


def test_randomised_positions_are_sorted_samples_and_the_encoding_is_theirs():
    rotary, plain = build("rotary", randomize=20), build("rotary")
    waving, x = build("sinusoidal", randomize=20), torch.zeros(B, N, D).double()
    q, k = (normal(B, H, N, K).double() for _ in range(2))
    draws = []
    for _ in range(200):
        rotary.prepare(x)
        draws.append(rotary.drawn)
        expected = plain.rotate(q, k[:, :, 1:], draws[-1], draws[-1][1:])
        assert_close(rotary.rotate(q, k[:, :, 1:], POSITIONS, POSITIONS[1:]), expected)
    waving.prepare(x)
    assert_close(waving.embed(x)[0], waves(waving.drawn, dim=D, base=1e4, dtype=x.dtype))
    places = torch.stack(draws)
    assert (places.diff(dim=1) > 0).all()
    assert 0 <= places.min() <= places.max() < 20
    counts = places.flatten().bincount(minlength=20) / 200
    assert_close(counts, torch.full((20,), N / 20), rtol=0, atol=0.12)


def test_randomised_positions_outside_of_training_are_the_expected_ones():
    made = part("pos_enc", "sinusoidal", randomize=31)
    pos = build("sinusoidal", randomize=31).eval()
    assert pos.places(torch.arange(7)).tolist() == [3, 7, 11, 15, 19, 23, 27]
    model = gpt(pos_enc=made).double().eval()
    tokens, cache = torch.randint(11, (2, 7)), model.new_cache()
    steps = [model(tokens[:, n : n + 1], cache=cache) for n in range(7)]
    assert_close(torch.cat(steps, 1), model(tokens))
    pos.prepare(torch.empty(1, 15, D))  # longer than in training
    assert pos.places(torch.arange(15)).tolist() == [*range(1, 31, 2)]
    pos.prepare(torch.empty(1, 1, D))
    assert pos.places(torch.arange(6, 7)).item() == 27
    with pytest.raises(UserError, match="cannot read 32 tokens"):
        pos.prepare(torch.empty(1, 32, D))
    with pytest.raises(UserError, match=r"pos_enc\.randomize=6: must be at least 7"):
        gpt(pos_enc=part("pos_enc", "sinusoidal", randomize=6))


def test_all_parts_of_a_step_have_one_draw_of_positions():
    model = gpt(pos_enc=part("pos_enc", "rotary", randomize=200))
    draws = Draws(model)
    drawn = []
    for example in (0, 4):
        draws.keys = draws.of_batch(0, 3, example)
        model(torch.zeros(1, 7, dtype=torch.long))
        drawn.append(model.stack.pos_enc.drawn)
    assert_close(*drawn)
