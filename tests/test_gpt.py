"""GPT: what positions say, and its output map; test_properties.py has the rest."""

import pytest
import torch
from make_model import SIZES, gpt, options, random_parts, tokens
from torch.testing import assert_close

LENGTH, VOCAB = SIZES["gpt"]["length"], SIZES["gpt"]["vocab_size"]
ONE_D = [name for name in options("pos_enc") if not name.endswith("_2d")]
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


def test_tied_embeddings_are_the_output_map():
    tied, free = random_gpt(), random_gpt(tie_embeddings=False)
    text = tokens(2, LENGTH)
    names = {name for name, _ in tied.named_parameters()}
    assert {name for name, _ in free.named_parameters()} - names == {"head.weight"}
    assert_close(tied(text), tied.stack(tied.embedding(text)) @ tied.embedding.weight.T)
    assert_close(free(text), free.stack(free.embedding(text)) @ free.head.weight.T)


def test_without_biases_there_are_none():
    names = [name for name, _ in gpt(bias=False, ffn="swiglu").named_parameters()]
    assert not [name for name in names if "bias" in name]


def test_the_class_of_a_text_is_read_at_its_last_token():
    model = random_parts(gpt(classes=3)).eval()
    texts = torch.randint(VOCAB, (2, 5), generator=torch.Generator().manual_seed(1))
    keep = torch.tensor([[True] * 5, [True] * 3 + [False] * 2])
    for text, real, found in zip(texts, keep, model(texts, keep), strict=True):
        assert_close(found, model(text[None, real], real[None, real])[0])
