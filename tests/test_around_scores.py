"""Multi-head attention, and what acts around its scores, against one reference head by head."""

import math
from itertools import product

import pytest
import torch
from make_model import context, kernel, normal, part, place, random_parts
from torch.nn import functional as F
from torch.testing import assert_close

from ablate.config.overrides import ALIASES
from ablate.errors import UserError
from ablate.model.layers.layer import Memory
from ablate.model.layers.multi_head import CrossAttention, recording
from ablate.model.mixer.attention import Attention

B, N, D, H = 2, 6, 12, 4
WIDTH = D // H
AROUND = [
    {},
    {"bias": False},
    {"kv_heads": 2},
    {"kv_heads": 1},
    *({"qk_norm": kind} for kind in ("l2", "rms", "rms_all", "layer")),
    {"kv_heads": 2, "qk_norm": "rms_all"},
    {"softcap": 0.5},
    *({"sink": kind} for kind in ("zero", "learned")),
    *({"output_gate": kind} for kind in ("head", "element")),
    # All of them.
    {"kv_heads": 2, "qk_norm": "rms", "softcap": 0.5, "sink": "learned", "output_gate": "element"},
]
NEAR = [
    {"short_conv": 3},
    {"key_shift": True},
    {"exclusive": True},
    {"short_conv": 2, "key_shift": True, "exclusive": True},
]
KERNELS = ("reference", "sdpa", "chunked")
SETTINGS = {"chunked": {"chunk": 2, "compile": False}}


def made(run, mask="causal", own=None, **changes):
    parts = {
        "mask": part("model.mask", mask)(causal=True),
        "kernel": kernel(run, **SETTINGS.get(run, {})),
    }
    keys = {key: changes.pop(key) for key in [*changes] if f"model.{key}" in ALIASES}
    return random_parts(Attention(place(D, H, N, **parts, **changes), **keys, **(own or {})))


def normed(kind, whole, at, norm, root, head):
    """The vector of a head, of those of all heads."""
    x = whole[at]
    if kind == "rms_all":
        eps = torch.finfo(x.dtype).eps
        return norm.weight[at] * x / (whole.square().mean() + eps).sqrt()
    if kind is None:
        return x
    if kind == "l2":
        length = 1.0 if norm.factor is None else root * norm.factor[head]
        return length * x / x.square().sum().sqrt()
    if kind == "layer":
        x = x - x.mean()
    eps = 1e-5 if kind == "layer" else torch.finfo(x.dtype).eps
    return norm.weight * x / (x.square().mean() + eps).sqrt()


def reference(mine, q, k, v, x, seen, keys):
    """The output and the weights where b i attends to b j if `seen`, b i j; head by head."""
    groups = keys.get("kv_heads") or H
    kind, cap, sink = (keys.get(name) for name in ("qk_norm", "softcap", "sink"))
    joined, weights = torch.zeros_like(q), torch.zeros(B, H, q.shape[1], k.shape[1]).double()
    for b, i, h in product(range(len(q)), range(q.shape[1]), range(H)):
        g = h * groups // H
        at, of = slice(h * WIDTH, (h + 1) * WIDTH), slice(g * WIDTH, (g + 1) * WIDTH)
        query = normed(kind, q[b, i], at, mine.query_norm, WIDTH**0.5, h)
        places = [j for j in range(k.shape[1]) if seen[b, i, j]]
        scores = [
            query @ normed(kind, k[b, j], of, mine.key_norm, 1.0, h) / WIDTH**0.5 for j in places
        ]
        if cap is not None:
            scores = [cap * torch.tanh(score / cap) for score in scores]
        raised = [score.exp() for score in scores]
        total = torch.stack(raised).sum()
        if sink is not None:
            total = total + (mine.sink()[h].exp() if sink == "learned" else 1.0)
        shares = torch.stack(raised) / total
        weights[b, h, i, places] = shares.detach()
        read = shares @ v[b, places, of]
        if keys.get("exclusive"):
            value = v[b, i, of]
            read = read - (read @ value) / (value @ value) * value
        if mine.output_gate is not None:
            gates = 1 / (1 + (-mine.output_gate(x[b, i])).exp())
            read = read * (gates[h] if keys["output_gate"] == "head" else gates[at])
        joined[b, i, at] = read
    return mine.out(joined), weights


def maps(mine, x, y):
    return mine.query(x), mine.key(y), mine.value(y)


def padding():
    keep = torch.ones(B, N, dtype=torch.bool)
    keep[0, -2:] = False
    return keep


@pytest.mark.parametrize("keys", AROUND, ids=str)
@pytest.mark.parametrize("mask", ["causal", "none"])
def test_self_attention_is_the_formula_in_loops(mask, keys):
    """Causal without padding, for which kernels have ways of their own; or padded."""
    mine, x = made("reference", mask, **keys), normal(B, N, D)
    keep = None if mask == "causal" else padding()
    seen = torch.ones(B, N, N, dtype=torch.bool)
    seen = seen.tril() if keep is None else seen & keep[:, None]
    expected, weights = reference(mine, *maps(mine, x, x), x, seen, keys)
    wanted = torch.autograd.grad(expected.square().sum(), [*mine.parameters()])
    for run in KERNELS:
        if run == "sdpa" and "softcap" in keys:
            continue  # SDPA caps no scores
        one = made(run, mask, **keys)
        with recording(one) as recorded:
            output = one(x, context(keep=keep))
        assert_close((output, recorded[0][0]), (expected, weights))
        found = torch.autograd.grad(output.square().sum(), [*one.parameters()])
        assert_close(found, wanted)


GROUPS = {"kv_heads": 2, "sink": "learned", "output_gate": "head", "qk_norm": "rms"}
CROSSED = [
    ("scaled_dot", {}),
    *((score, GROUPS) for score in ("scaled_dot", "additive", "location", "uniform")),
]


@pytest.mark.parametrize("run", KERNELS)
@pytest.mark.parametrize(("score", "keys"), CROSSED, ids=str)
def test_cross_attention_is_the_formula_in_loops(score, keys, run):
    """Scores whose keys are prepared, or unused, read the keys of every head too."""
    if run == "sdpa" and score == "additive":
        pytest.skip("no dot product")
    whole = {"kernel": kernel(run, **SETTINGS.get(run, {})), "score": score}
    mine = random_parts(CrossAttention(place(D, H, N, **whole), **keys))
    assert mine.reads_input  # the gate does
    x, source, keep = normal(B, 3, D), normal(B, N, D, seed=2), padding()
    with recording(mine) as recorded:
        output = mine(x, context(memory=Memory({mine: mine.read(source)}, keep)))
    if score == "scaled_dot":
        seen = keep[:, None].expand(-1, 3, -1)
        expected = reference(mine, *maps(mine, x, source), x, seen, keys)
        assert_close((output, recorded[0][0]), expected)
        return
    every = random_parts(CrossAttention(place(D, H, N, **whole), **keys | {"kv_heads": H}))
    every.load_state_dict(of_every_head(mine, "key.", "value."))
    same = every(x, context(memory=Memory({every: every.read(source)}, keep)))
    assert_close(output, same)


def of_every_head(mine, *names):
    """The weights of heads that share keys -> of as many; rows of two heads -> of four."""
    return {
        name: value.unflatten(0, (2, WIDTH)).repeat_interleave(2, 0).flatten(0, 1)
        if name.startswith(names)
        else value
        for name, value in mine.state_dict().items()
    }


@pytest.mark.parametrize("own", NEAR, ids=str)
def test_what_is_near_is_the_formula_in_loops(own):
    mine, x = made("sdpa", own=own, kv_heads=2), normal(B, N, D)
    convs = mine.query_conv, mine.key_conv, mine.value_conv
    q, k, v = map(convolved, maps(mine, x, x), convs)
    if own.get("key_shift"):
        k = torch.cat([torch.zeros_like(k[:, :1]), k[:, :-1]], dim=1)
    seen = torch.ones(B, N, N, dtype=torch.bool).tril()
    expected, _ = reference(mine, q, k, v, x, seen, own | {"kv_heads": 2})
    assert_close(mine(x, context()), expected)


def convolved(y, conv):
    if conv is None:
        return y
    past = F.pad(y.mT, (conv.size - 1, 0))
    return y + F.conv1d(past, conv.weight, groups=len(conv.weight)).mT


@pytest.mark.parametrize("name", ["sparsemax", "entmax15"])
def test_a_sink_takes_a_share_of_any_weights_that_sum_to_one(name):
    normalizer = part("model.normalizer", name)
    mine = made("reference", "none", normalizer=normalizer, sink="learned")
    x = normal(B, N, D)
    with recording(mine) as weights:
        mine(x, context())
    q, k = mine.queries(x), mine.keys(x)
    scores = torch.cat([mine.score(q, k), mine.sink()[:, None, None].expand(B, H, N, 1)], dim=-1)
    assert_close(weights[0][0], normalizer(scores)[..., :-1])


@pytest.mark.parametrize("score", ["location", "uniform"])
def test_grouped_values_of_scores_without_keys_are_those_of_every_head(score):
    mine, every = (made("sdpa", own={"short_conv": 2}, kv_heads=g, score=score) for g in (2, H))
    every.load_state_dict(of_every_head(mine, "value.", "value_conv."))
    x = normal(B, N, D)
    assert_close(mine(x, context()), every(x, context()))


@pytest.mark.parametrize(("run", "keys"), [("sdpa", {"softcap": 1.0}), ("flex", {"sink": "zero"})])
def test_a_layer_tells_its_kernel_what_acts(run, keys):
    with pytest.raises(UserError, match=r"soft capping|a sink"):
        Attention(place(D, H, N, kernel=kernel(run)), **keys)


def test_recorded_weights_are_those_before_dropout_and_change_nothing():
    mine, x = made("reference", dropout=0.5), normal(B, N, D)
    torch.manual_seed(0)
    plain = mine(x, context())
    torch.manual_seed(0)
    with recording(mine) as weights:
        assert torch.equal(mine(x, context()), plain)
        mine(x, context())
    assert len(weights[0]) == 2
    for each in weights[0]:
        assert_close(each.sum(-1), torch.ones(B, H, N, dtype=torch.float64))
        assert not each.requires_grad
    mine(x, context())
    assert len(weights[0]) == 2  # recording has ended
    with pytest.raises(RuntimeError), recording(mine):
        mine(normal(B, N, D + 1), context())
    assert mine.recorded is None


def mixer(name, pos="none", around=None, **keys):
    """The mixer with its encoding, whose heads have a width of 4."""
    encoding = part("pos_enc", pos)(dim=D, heads=3, head_dim=4, length=N, depth=1)
    mask = part("model.mask", "causal")(causal=True)
    where = place(D, 3, N, mask=mask, pos=encoding, kernel=kernel("sdpa"), **(around or {}))
    return random_parts(part("model.mixer", name, **keys)(where)), encoding


@pytest.mark.parametrize("pos", ["none", "rotary"])
def test_latent_attention_is_the_formula_in_loops(pos):
    """DeepSeek-V2, equations 9 to 19."""
    (mine, encoding), x = mixer("latent", pos, rank=5, rotary_dim=2), normal(B, N, D)
    c = x @ mine.down.weight.mT
    c = mine.latent_norm.weight * c / (c.square().mean(-1, keepdim=True) + EPS).sqrt()
    q, k, v = mine.query(x), mine.key(c), mine.value(c)
    joined, root = torch.zeros(B, N, D, dtype=x.dtype), (4 + 2 * (pos == "rotary")) ** 0.5
    for b, i, h in product(range(B), range(N), range(3)):
        at = slice(4 * h, 4 * h + 4)
        scores = [q[b, i, at] @ k[b, j, at] for j in range(i + 1)]
        if pos == "rotary":
            turned = mine.rotary_query(x[b, i])[2 * h : 2 * h + 2]
            keys = [mine.rotary_key(x[b, j]) for j in range(i + 1)]
            scores = [s + rotation(i) @ turned @ (rotation(j) @ keys[j])
                      for j, s in enumerate(scores)]  # fmt: skip
        weights = (torch.stack(scores) / root).softmax(0)
        joined[b, i, at] = weights @ v[b, : i + 1, at]
    assert_close(mine(x, context(pos=encoding)), mine.out(joined))


EPS = torch.finfo(torch.float64).eps


def rotation(position):
    """By one radian a position, as rotary positions turn their first pair."""
    cos, sin = math.cos(position), math.sin(position)
    return torch.tensor([[cos, -sin], [sin, cos]]).double()


def test_differential_attention_is_the_formula_in_loops():
    """Ye et al. 2024, equations 1 to 3."""
    (mine, encoding), x = mixer("differential"), normal(B, N, D)
    q, k, v = mine.query(x), mine.key(x), mine.value(x)
    q1, k1, q2, k2 = mine.difference.vectors
    factor = (q1 @ k1).exp() - (q2 @ k2).exp() + 0.8
    joined = torch.zeros(B, N, D, dtype=x.dtype)
    for b, i, h in product(range(B), range(N), range(3)):
        maps = []
        for half in (2 * h, 2 * h + 1):
            at = slice(2 * half, 2 * half + 2)
            scores = torch.stack([q[b, i, at] @ k[b, j, at] / 2**0.5 for j in range(i + 1)])
            maps.append(scores.softmax(0))
        at = slice(4 * h, 4 * h + 4)
        read = (maps[0] - factor * maps[1]) @ v[b, : i + 1, at]
        joined[b, i, at] = 0.2 * mine.norm.weight * read / (read.square().mean() + EPS).sqrt()
    assert_close(mine(x, context(pos=encoding)), mine.out(joined))
