"""GPT: what positions say, and its output map; test_properties.py has the rest."""

import math
from pathlib import Path

import numpy as np
import pytest
import torch
import torch.nn.functional as F
from make_model import SIZES, context, gpt, options, part, random_parts, tokens
from torch.testing import assert_close

import ablate
from ablate.training.build import build, build_data

LENGTH, VOCAB = SIZES["gpt"]["length"], SIZES["gpt"]["vocab_size"]
ONE_D = [name for name in options("pos_enc") if not name.endswith("_2d")]
EMBEDS = part("model.mixer", "attention", value_embedding=True)
SHIFT_INVARIANT = ["none", "rotary", "alibi", "relative", "t5"]


def random_gpt(**changes):
    return random_parts(gpt(**changes)).eval()


@pytest.mark.parametrize(
    ("score", "pos_enc"),
    [*(("scaled_dot", name) for name in ONE_D), ("additive", "rotary"), ("location", "none")],
)
def test_relative_encodings_do_not_know_where_the_text_begins(score, pos_enc):
    """Unseen tokens put before the text move all of it, and change nothing."""
    model = random_gpt(attention=score, pos_enc=pos_enc)
    text, shift = tokens(2, 4), 3
    moved = torch.cat([tokens(2, shift, seed=5), text], dim=1)
    keep = torch.ones(2, 4 + shift, dtype=torch.bool)
    keep[:, :shift] = False
    same = torch.allclose(model(moved, keep=keep)[:, shift:], model(text), atol=1e-10)
    # Turning both cancels in an inner product alone, not behind a tanh.
    assert same == (pos_enc in SHIFT_INVARIANT and score == "scaled_dot")


def test_smear_adds_the_embedding_of_the_token_before():
    model, text = random_gpt(smear=True, dim=18), tokens(2, LENGTH)
    embedded, (gate, share) = model.embedding(text), (model.smear.gate.weight, model.smear.share)
    expected = embedded.clone()
    for t in range(1, LENGTH):
        strength = share * torch.sigmoid((embedded[:, t, :12] * gate).sum(-1, keepdim=True))
        expected[:, t] += strength * embedded[:, t - 1]
    made = [model(text), model.stack(expected) @ model.embedding.weight.T]
    assert_close(*made)
    gradients = [torch.autograd.grad(out.square().sum(), [*model.parameters()]) for out in made]
    assert_close(*gradients)


@pytest.mark.parametrize("reads_pairs", [{"smear": True}, {"bigram": 5}])
def test_what_reads_the_token_before_starts_as_nothing(reads_pairs):
    models = [gpt(**changes) for changes in ({}, reads_pairs)]
    for model in models:
        model.initialize(0)
    assert torch.equal(*(model(tokens(2, LENGTH)) for model in models))


@pytest.mark.parametrize("vocab_size", [VOCAB, 50_257])
def test_an_embedding_of_each_pair_of_tokens_is_added(vocab_size):
    """Its number is that of the published code, in Python's integers."""
    model = random_gpt(bigram=5, dim=6, vocab_size=vocab_size)
    text = torch.randint(vocab_size, (2, LENGTH), generator=torch.Generator().manual_seed(0))
    table = model.bigram.table.weight
    assert len(table) == 5 * vocab_size
    expected = model.embedding(text).clone()
    for row, read in enumerate(text.tolist()):
        for t, token in enumerate(read):
            last = len(table) - 1
            number = (36313 * token ^ 27191 * read[t - 1]) % last if t else last
            expected[row, t] += model.bigram.factor * table[number]
    made = [model(text), model.stack(expected) @ model.embedding.weight.T]
    assert_close(*made)
    gradients = [torch.autograd.grad(out.square().sum(), [*model.parameters()]) for out in made]
    assert_close(*gradients)


def test_value_embeddings_are_added_to_the_values():
    """Of every other layer, with two heads of queries for each head of values."""
    own = part("model.mixer", "attention", value_embedding=True, kv_heads=1)
    plain = part("model.mixer", "attention")
    model = random_gpt(dim=18, heads=2, mixer=plain, layers=[{}, {"mixer": own}])
    assert [table.weight.shape for table in model.value_embeddings] == [(VOCAB, 9)]
    text = tokens(2, LENGTH)
    x = model.embedding(text)
    for block in model.stack.blocks:
        layer, read = block.attention.function, block.attention.norm_before(x)
        v = layer.values(read)
        if layer.value_gate is not None:
            strength = 2 * torch.sigmoid((read[..., :12] * layer.value_gate.weight).sum(-1))
            v = v + (strength[..., None] * model.value_embeddings[0](text))[:, None]
        read_values = layer.context(layer.queries(read), layer.keys(read), v, context().pos)
        x = x + layer.join(read_values, read)
        x = x + block.feed_forward.function(block.feed_forward.norm_before(x))
    assert_close(model(text), model.stack.final_norm(x) @ model.embedding.weight.T)


@pytest.mark.parametrize(
    ("changes", "names", "role"),
    [
        ({"mixer": "differential"}, ".vectors", "vector"),
        ({"connection": "hyper"}, ".mixes", "vector"),
        ({"mixer": EMBEDS}, ".value_gate.weight", "vector"),
        ({"mixer": EMBEDS}, "value_embeddings.", "embedding"),
    ],
)
def test_what_is_no_weight_matrix_has_its_own_role(changes, names, role):
    found = [each for name, each in gpt(**changes).roles().items() if names in name]
    assert found == [role] * len(found) != []


def test_without_biases_there_are_none():
    names = [name for name, _ in gpt(bias=False, ffn="swiglu").named_parameters()]
    assert not [name for name in names if "bias" in name]


def modded_nanogpt(w, text, *, depth, heads):
    """Logits of the frozen network of its optimizer track, from the named weights of ours: rotary
    pairs are a quarter of the width, m and m + d / 2, with frequencies from 1 to 1 / 1024; the
    other quarters stay."""

    def norm(x, gain):
        return x * gain / (x.square().mean(-1, keepdim=True) + 2**-7).sqrt()

    def linear(x, name):
        return x @ w[f"{name}.weight"].T + w[f"{name}.bias"]

    count, dim = text.shape[1], w["embedding.weight"].shape[1]
    n = dim // heads // 4
    # Ours has the rotated dimensions first and turns the other way: theirs in another order.
    order = [*range(n, 3 * n), *range(n), *range(3 * n, 4 * n)]
    angles = torch.arange(count)[:, None] * 1024 ** -torch.linspace(0, 1, n).double()
    angles = torch.cat([angles, torch.zeros(count, n)], 1)

    def turned(x):
        x1, x2 = F.normalize(x[..., order], dim=-1).chunk(2, -1)
        cos, sin = angles.cos(), angles.sin()
        return torch.cat([x1 * cos + x2 * sin, x2 * cos - x1 * sin], -1)

    x = norm(w["embedding.weight"][text], w["embedding.norm.weight"])
    for layer in range(depth):
        at = f"stack.blocks.{layer}.attention"
        y = norm(x, w[f"{at}.norm_before.weight"])
        q, k, v = (
            linear(y, f"{at}.function.{name}").unflatten(-1, (heads, -1)).transpose(1, 2)
            for name in ("query", "key", "value")
        )
        scores = 15.36 * turned(q) @ turned(k).mT
        later = torch.ones(count, count).triu(1).bool()
        y = scores.masked_fill(later, -torch.inf).softmax(-1) @ v
        x = x + linear(y.transpose(1, 2).flatten(2), f"{at}.function.out")
        at = f"stack.blocks.{layer}.feed_forward"
        y = linear(norm(x, w[f"{at}.norm_before.weight"]), f"{at}.function.up")
        x = x + linear(y.relu().square(), f"{at}.function.down")
    z = norm(x, w["stack.final_norm.weight"]) @ w["head.weight"].T
    return 15 * (z / 15).tanh()


@pytest.mark.ci
@pytest.mark.parametrize("suffix", ["", "_adamw"])
def test_the_recipe_of_modded_nanogpt_is_its_network_and_trains(suffix: str, tmp_path: Path):
    rng, heads, dim = np.random.default_rng(0), 2, 64
    for split in ("train", "val"):
        rng.integers(0, 60, 600).astype(np.uint16).tofile(tmp_path / f"{split}.bin")
    n = dim // heads // 4
    typed = f"""experiment=modded_nanogpt_124m{suffix} data.root={tmp_path} data.vocab_size=60
        data.seq_len=12 data.batch_size=4 model.dim={dim} model.depth=2 model.heads={heads}
        pos_enc.base={1024 ** (n / (n - 1))} compile=false trainer=cpu trainer.precision=32-true
        trainer.accumulate_grad_batches=2 trainer.max_steps=2 trainer.val_check_interval=4
        schedule.warmup=0 logger=none output_dir={tmp_path / "outputs"}"""
    cfg = ablate.compose(*typed.split())
    model = build(cfg, build_data(cfg)).eval()
    text = torch.randint(60, (2, 12))
    model.initialize(0)
    assert not model(text).any()  # the head starts at zero
    random_parts(model, std=0.2)
    weights = {name: p.detach().double() for name, p in model.named_parameters()}
    expected = modded_nanogpt(weights, text, depth=2, heads=heads)
    assert expected.std() > 0.1
    assert_close(model(text).double(), expected, atol=1e-5, rtol=0)
    metrics = ablate.run(cfg)["metrics"]
    assert metrics["val/loss"] != pytest.approx(math.log(60), abs=1e-4)
