"""GPT: nothing leaks, nothing depends on padding or on the cache, and initial values are shared."""

import itertools
from typing import Any

import pytest
import torch
from make_model import SIZES, gpt, options, part, random_parts, scores, together, tokens
from torch import Tensor

from ablate.model.gpt import GPT
from ablate.model.layers.layer import Cache
from ablate.model.mask.causal import Causal

LENGTH, VOCAB = SIZES["gpt"]["length"], SIZES["gpt"]["vocab_size"]
ONE_D = [name for name in options("pos_enc") if not name.endswith("_2d")]
COMBINED = [pair for pair in itertools.product(scores(), ONE_D) if together(*pair)]
NOT_COMBINED = {("uniform", "relative"), ("uniform", "rotary"), ("location", "rotary")}
LOOK_BACK = {"causal": "causal", "window": part("model.mask", "window", size=3)}
# They say how far apart two tokens are, and not where they stand.
BEYOND_PRODUCTS = ("additive", "general", "gat", "gatv2")
SHIFT_INVARIANT = ["none", "rotary", "alibi", "relative", "t5"]


def random_gpt(seed: int = 0, **changes: Any) -> GPT:
    model = gpt(**changes)
    random_parts(model, seed=seed)
    return model.eval()


@pytest.fixture(params=[(*pair, mask) for pair in COMBINED for mask in LOOK_BACK], ids="-".join)
def looks_back(request: pytest.FixtureRequest) -> GPT:
    """A model that sees nothing ahead, of every pair under every such mask.

    For tests without gradients: in training kernel=auto would compile.
    """
    score, pos_enc, mask = request.param
    return random_gpt(attention=score, pos_enc=pos_enc, mask=LOOK_BACK[mask], kernel="auto")


def test_few_pairs_are_left_out() -> None:
    everything = set(itertools.product(scores(), ONE_D))
    assert everything - set(COMBINED) == NOT_COMBINED


@torch.no_grad()
def test_the_future_does_not_leak(looks_back: GPT) -> None:
    before = tokens(2, LENGTH)
    for changed in range(LENGTH):
        after = before.clone()
        after[:, changed] = (after[:, changed] + 1) % VOCAB
        difference = (looks_back(before) - looks_back(after)).abs().amax((0, 2))
        assert (difference[:changed] == 0).all()
        assert difference[changed] > 1e-6
        if isinstance(looks_back.stack.masks[0], Causal):
            assert (difference[changed:] > 1e-9).all()


def test_a_window_forgets() -> None:
    """Two layers that see 3 tokens each know nothing of what stood 5 tokens before."""
    model = random_gpt(mask=LOOK_BACK["window"], pos_enc="alibi")
    before = tokens(1, LENGTH)
    after = before.clone()
    after[:, 0] = (after[:, 0] + 1) % VOCAB
    difference = (model(before) - model(after)).abs().amax((0, 2))
    assert (difference[:5] > 1e-9).all()
    assert (difference[5:] == 0).all()


@pytest.mark.parametrize("mask", ["none", "prefix"])
def test_masks_that_look_ahead_do_leak(mask: str) -> None:
    model = random_gpt(mask=mask)
    before = tokens(1, LENGTH)
    after = before.clone()
    after[:, -1] = (after[:, -1] + 1) % VOCAB
    assert ((model(before) - model(after)).abs().amax((0, 2)) > 1e-9).all()


@pytest.mark.parametrize("kernel", ["reference", "sdpa", "chunked"])
@pytest.mark.parametrize("mask", options("model.mask"))
def test_padding_has_no_effect(mask: str, kernel: str) -> None:
    model = random_gpt(mask=mask, pos_enc="learned", kernel=kernel)
    text, keep = tokens(2, LENGTH), torch.ones(2, LENGTH, dtype=torch.bool)
    keep[0, 4:] = False
    other = torch.where(keep, text, (text + 1) % VOCAB)
    plain, padded = model(text, keep=keep), model(other, keep=keep)
    torch.testing.assert_close(plain[keep], padded[keep], atol=0, rtol=0)
    torch.testing.assert_close(plain[0, :4], model(text[:1, :4])[0])
    assert not torch.allclose(plain[~keep], padded[~keep])


def test_an_example_does_not_depend_on_its_batch() -> None:
    model, text = random_gpt(pos_enc="relative", norm_type="batch"), tokens(3, LENGTH)
    torch.testing.assert_close(model(text)[1:2], model(text[1:2]))


@pytest.mark.parametrize("score", scores())
def test_without_positions_and_mask_it_reads_a_set(score: str) -> None:
    model, text = random_gpt(attention=score, mask="none"), tokens(2, LENGTH)
    order = torch.randperm(LENGTH, generator=torch.Generator().manual_seed(0))
    same = torch.allclose(model(text[:, order]), model(text)[:, order], atol=1e-12)
    assert same == (score != "location")  # which weighs places


@pytest.mark.parametrize("pos_enc", ONE_D)
def test_positions_break_the_symmetry(pos_enc: str) -> None:
    model, text = random_gpt(pos_enc=pos_enc, mask="none"), tokens(2, LENGTH)
    order = torch.randperm(LENGTH, generator=torch.Generator().manual_seed(0))
    same = torch.allclose(model(text[:, order]), model(text)[:, order], atol=1e-9)
    assert same == (pos_enc == "none")


@pytest.mark.parametrize("mask", ["none", "causal", "window"])
@pytest.mark.parametrize(("score", "pos_enc"), COMBINED)
def test_relative_encodings_do_not_know_where_the_text_begins(
    score: str, pos_enc: str, mask: str
) -> None:
    """Unseen tokens put before the text move all of it, and change nothing."""
    model = random_gpt(attention=score, pos_enc=pos_enc, mask=LOOK_BACK.get(mask, mask))
    text, shift = tokens(2, 4), 3
    moved = torch.cat([tokens(2, shift, seed=5), text], dim=1)
    keep = torch.ones(2, 4 + shift, dtype=torch.bool)
    keep[:, :shift] = False
    same = torch.allclose(model(moved, keep=keep)[:, shift:], model(text), atol=1e-10)
    # Turning both cancels in an inner product alone: not behind a tanh, nor around a matrix.
    lost = score == "location" or (pos_enc == "rotary" and score in BEYOND_PRODUCTS)
    assert same == (pos_enc in SHIFT_INVARIANT and not lost)


# The cache


def cached(model: GPT, text: Tensor, splits: list[int]) -> Tensor:
    """The logits when the text arrives in pieces of these lengths."""
    cache = Cache()
    return torch.cat([model(piece, cache=cache) for piece in text.split(splits, dim=1)], dim=1)


@torch.no_grad()
def test_cached_logits_equal_uncached_ones(looks_back: GPT) -> None:
    text = tokens(2, LENGTH)
    expected = looks_back(text)
    for splits in ([1] * LENGTH, [4, 1, 2], [6, 1]):
        found = cached(looks_back, text, splits)
        torch.testing.assert_close(found, expected, atol=1e-10, rtol=1e-8)


@pytest.mark.parametrize("kernel", ["reference", "sdpa", "chunked"])
def test_every_kernel_works_with_the_cache(kernel: str) -> None:
    model = random_gpt(pos_enc="t5", kernel=kernel, share_layers=True, depth=3)
    text = tokens(2, LENGTH)
    with torch.no_grad():
        torch.testing.assert_close(cached(model, text, [3, 1, 3]), model(text))


# The head


def test_tied_embeddings_are_the_output_map() -> None:
    tied, free = random_gpt(), random_gpt(tie_embeddings=False)
    text = tokens(2, LENGTH)
    names = {name for name, _ in tied.named_parameters()}
    assert {name for name, _ in free.named_parameters()} - names == {"head.weight"}
    torch.testing.assert_close(
        tied(text), tied.stack(tied.embedding(text)) @ tied.embedding.weight.T
    )
    assert free.head is not None
    torch.testing.assert_close(free(text), free.stack(free.embedding(text)) @ free.head.weight.T)
    assert sum(p.numel() for p in free.parameters()) > sum(p.numel() for p in tied.parameters())


@pytest.mark.parametrize("ffn", ["gelu", "swiglu"])
def test_without_biases_there_are_none(ffn: str) -> None:
    names = [name for name, _ in gpt(bias=False, ffn=ffn).named_parameters()]
    assert not [name for name in names if "bias" in name]
    with_bias = [name for name, _ in gpt(ffn=ffn).named_parameters() if "bias" in name]
    assert len(with_bias) == 2 * (4 + (3 if ffn == "swiglu" else 2) + 2) + 1


def test_evaluation_twice_is_equal() -> None:
    model, text = random_gpt(dropout=0.5, drop_path=0.5), tokens(2, LENGTH)
    assert torch.equal(model(text), model(text))
    model.train()
    assert not torch.allclose(model(text), model(text))
