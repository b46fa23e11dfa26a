"""GPT: who sees whom, what positions say, and its output map; test_properties.py has the rest."""

import itertools

import pytest
import torch
from make_model import SIZES, gpt, options, part, random_parts, scores, together, tokens
from torch.testing import assert_close

LENGTH, VOCAB = SIZES["gpt"]["length"], SIZES["gpt"]["vocab_size"]
ONE_D = [name for name in options("pos_enc") if not name.endswith("_2d")]
COMBINED = [pair for pair in itertools.product(scores(), ONE_D) if together(*pair)]
# They say how far apart two tokens are, and not where they stand.
BEYOND_PRODUCTS = ("additive", "general", "gat", "gatv2")
SHIFT_INVARIANT = ["none", "rotary", "alibi", "relative", "t5"]


def random_gpt(**changes):
    return random_parts(gpt(**changes)).eval()


@torch.no_grad()
@pytest.mark.parametrize(
    ("mask", "sees"),
    [
        ("causal", lambda i, j: j <= i),
        ("none", lambda i, j: True),
        (part("model.mask", "window", size=3), lambda i, j: i - 2 <= j <= i),
        (part("model.mask", "prefix", size=3), lambda i, j: j <= i or j < 3),
    ],
)
def test_a_layer_sees_what_its_mask_allows(mask, sees):
    model, text = random_gpt(mask=mask, depth=1, pos_enc="alibi"), tokens(1, LENGTH)
    before = model(text)
    for j in range(LENGTH):
        other = text.clone()
        other[:, j] = (other[:, j] + 1) % VOCAB
        moved = (model(other) - before).abs().amax((0, 2)) > 1e-9
        assert moved.tolist() == [sees(i, j) for i in range(LENGTH)]


@pytest.mark.parametrize("pos_enc", ONE_D)
def test_without_positions_and_mask_it_reads_a_set(pos_enc):
    order = torch.randperm(LENGTH, generator=torch.Generator().manual_seed(0))
    for score in scores() if pos_enc == "none" else ["scaled_dot"]:
        model, text = random_gpt(attention=score, pos_enc=pos_enc, mask="none"), tokens(2, LENGTH)
        same = torch.allclose(model(text[:, order]), model(text)[:, order], atol=1e-10)
        assert same == (pos_enc == "none" and score != "location")  # which weighs places


@pytest.mark.parametrize(
    "mask", ["causal", *(pytest.param(mask, marks=pytest.mark.slow) for mask in ("none", "window"))]
)
@pytest.mark.parametrize(("score", "pos_enc"), COMBINED)
def test_relative_encodings_do_not_know_where_the_text_begins(score, pos_enc, mask):
    """Unseen tokens put before the text move all of it, and change nothing."""
    size = {"size": 3} if mask == "window" else {}
    model = random_gpt(attention=score, pos_enc=pos_enc, mask=part("model.mask", mask, **size))
    text, shift = tokens(2, 4), 3
    moved = torch.cat([tokens(2, shift, seed=5), text], dim=1)
    keep = torch.ones(2, 4 + shift, dtype=torch.bool)
    keep[:, :shift] = False
    same = torch.allclose(model(moved, keep=keep)[:, shift:], model(text), atol=1e-10)
    # Turning both cancels in an inner product alone: not behind a tanh, nor around a matrix.
    lost = score == "location" or (pos_enc == "rotary" and score in BEYOND_PRODUCTS)
    assert same == (pos_enc in SHIFT_INVARIANT and not lost)


def test_tied_embeddings_are_the_output_map():
    tied, free = random_gpt(), random_gpt(tie_embeddings=False)
    text = tokens(2, LENGTH)
    names = {name for name, _ in tied.named_parameters()}
    assert {name for name, _ in free.named_parameters()} - names == {"head.weight"}
    assert_close(tied(text), tied.stack(tied.embedding(text)) @ tied.embedding.weight.T)
    assert_close(free(text), free.stack(free.embedding(text)) @ free.head.weight.T)


@pytest.mark.parametrize("ffn", ["gelu", "swiglu"])
def test_without_biases_there_are_none(ffn):
    names = [name for name, _ in gpt(bias=False, ffn=ffn).named_parameters()]
    assert not [name for name in names if "bias" in name]
    with_bias = [name for name, _ in gpt(ffn=ffn).named_parameters() if "bias" in name]
    assert len(with_bias) == 2 * (4 + (3 if ffn == "swiglu" else 2) + 2) + 1


def test_the_class_of_a_text_is_read_at_its_last_token():
    model = random_parts(gpt(classes=3)).eval()
    texts = torch.randint(VOCAB, (2, 5), generator=torch.Generator().manual_seed(1))
    keep = torch.tensor([[True] * 5, [True] * 3 + [False] * 2])
    for text, real, found in zip(texts, keep, model(texts, keep), strict=True):
        assert_close(found, model(text[None, real], real[None, real])[0])
