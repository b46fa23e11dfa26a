"""BERT: torch's encoder with copied weights, the published heads, and what sees what."""

from typing import Any

import pytest
import torch
from make_model import SIZES, bert, options, random_parts
from test_block import torchs
from torch import Tensor, nn
from torch.nn import functional as F

from ablate.model.bert import BERT

LENGTH, VOCAB = SIZES["bert"]["length"], SIZES["bert"]["vocab_size"]
SINGLE = {"segments": 1, "next_sentence": False}
# The stack of test_block.py, which makes torch's encoder.
BLOCK = {"dim": 12, "heads": 3, "ffn_dim": 20, "norm_eps": 1e-5}


def random_bert(**changes: Any) -> BERT:
    model = bert(**changes)
    random_parts(model)
    return model.eval()


def read(rows: int = 2, seed: int = 3) -> tuple[Tensor, Tensor, Tensor]:
    """Tokens, places and segments."""
    rng = torch.Generator().manual_seed(seed)
    tokens = torch.randint(VOCAB, (rows, LENGTH), generator=rng)
    places = torch.rand(rows, LENGTH, generator=rng).topk(3).indices
    return tokens, places, (torch.arange(LENGTH) > 4).long().expand(rows, -1)


# The published equations


@pytest.mark.filterwarnings("ignore:enable_nested_tensor")
@pytest.mark.parametrize("kernel", ["reference", "sdpa", "chunked"])
def test_it_is_the_published_model(kernel: str) -> None:
    """Embeddings, torch's post-norm encoder, head and pooler, written out."""
    model = random_bert(pos_enc="learned", kernel=kernel, **BLOCK)
    tokens, places, segments = read()
    tables = dict(model.named_parameters())
    words, kinds = tables["embedding.weight"], tables["segment_embedding.weight"]
    x = words[tokens] + kinds[segments] + tables["stack.pos_enc.table"]
    norm = model.stack.embedding_norm
    assert isinstance(norm, nn.LayerNorm)
    x = torchs(model.stack, activation="gelu", first=False)(norm(x))
    torch.testing.assert_close(model.encode(tokens, segments), x)

    found = model(tokens, places, segments)
    hidden = torch.stack([row[place] for row, place in zip(x, places, strict=True)])
    hidden = F.gelu(hidden @ tables["head.dense.weight"].T + tables["head.dense.bias"])
    hidden = F.layer_norm(
        hidden, (12,), tables["head.norm.weight"], tables["head.norm.bias"], eps=1e-5
    )
    torch.testing.assert_close(found.tokens, hidden @ words.T + tables["head.bias.weight"])
    pooled = (x[:, 0] @ tables["pooler.dense.weight"].T + tables["pooler.dense.bias"]).tanh()
    expected = pooled @ tables["next_sentence.weight"].T + tables["next_sentence.bias"]
    torch.testing.assert_close(found.next, expected)


def test_its_parameters_are_the_published_ones() -> None:
    """Counted from the paper's tables: 12 blocks of 768 are 109,482,240 with the pooler and 30,522
    words, 512 positions and 2 segments; the heads come on top."""
    with torch.device("meta"):
        model = bert(vocab_size=30522, length=512, dim=768, depth=12, heads=12, pos_enc="learned")
    sizes = {name: p.numel() for name, p in model.named_parameters()}
    heads = sum(size for name, size in sizes.items() if name.startswith(("head.", "next_")))
    assert heads == 768 * 768 + 768 + 2 * 768 + 30522 + 2 * 768 + 2
    assert sum(sizes.values()) - heads == 109_482_240


def test_without_pairs_nothing_of_them_is_left() -> None:
    pairs = {name for name, _ in bert().named_parameters()}
    single = {name for name, _ in bert(**SINGLE).named_parameters()}
    gone = ("segment_embedding.", "pooler.", "next_sentence.")
    assert pairs - single == {name for name in pairs if name.startswith(gone)}
    tokens, places, _ = read()
    found = random_bert(**SINGLE)(tokens, places)
    assert found.next is None


def test_without_segments_given_all_is_of_the_first() -> None:
    model, (tokens, _, segments) = random_bert(), read()
    torch.testing.assert_close(model.encode(tokens), model.encode(tokens, segments * 0))
    assert not torch.allclose(model.encode(tokens), model.encode(tokens, segments))


@pytest.mark.parametrize("norm", ["post", "pre", "sandwich", "none"])
def test_the_embeddings_are_normalised_where_the_stream_is(norm: str) -> None:
    names = {name.rsplit(".", 1)[0] for name, _ in bert(norm=norm).named_parameters()}
    assert ("stack.embedding_norm" in names) == (norm == "post")
    assert ("stack.final_norm" in names) == (norm in ("pre", "sandwich"))
    assert ("head.norm" in names) == (norm != "none")


def test_an_output_map_of_its_own() -> None:
    model = random_bert(tie_embeddings=False)
    names = {name for name, _ in model.named_parameters()}
    assert {"head.out.weight", "head.out.bias"} <= names
    assert "head.bias.weight" not in names
    tokens, places, segments = read()
    before = model(tokens, places, segments).tokens
    assert model.head.out is not None
    with torch.no_grad():
        model.head.out.weight.zero_()
        expected = model.head.out.bias.expand_as(before)
    torch.testing.assert_close(model(tokens, places, segments).tokens, expected)


def test_without_biases_there_are_none() -> None:
    assert not [name for name, _ in bert(bias=False).named_parameters() if "bias" in name]


# What sees what


def difference(model: BERT, changed: int) -> Tensor:
    """By how much the state of each position depends on the token at another."""
    tokens, _, segments = read()
    other = tokens.clone()
    other[:, changed] = (other[:, changed] + 1) % VOCAB
    with torch.no_grad():
        return (model.encode(tokens, segments) - model.encode(other, segments)).abs().amax((0, 2))


@pytest.mark.parametrize("score", ["scaled_dot", "additive"])
def test_every_token_sees_both_sides(score: str) -> None:
    model = random_bert(attention=score, pos_enc="learned")
    for changed in range(LENGTH):
        assert (difference(model, changed) > 1e-9).all()


@pytest.mark.parametrize("mixer", ["attention", "convolution", "fixed"])
@pytest.mark.parametrize("pos_enc", ["learned", "alibi", "t5"])
def test_a_causal_mask_leaks_nothing_from_the_right(pos_enc: str, mixer: str) -> None:
    if mixer != "attention" and pos_enc != "learned":
        pytest.skip("these positions act inside attention")
    model = random_bert(mask="causal", pos_enc=pos_enc, mixer=mixer, kernel="auto")
    for changed in range(LENGTH):
        found = difference(model, changed)
        assert (found[:changed] == 0).all()
        assert found[changed] > 1e-6


def test_the_summary_is_that_of_a_token_which_sees_all() -> None:
    x = torch.arange(2 * 4 * 12.0).view(2, 4, 12)
    keep = torch.tensor([[True] * 4, [True, True, False, False]])
    both = bert()
    assert torch.equal(both.summary(x), x[:, 0])
    assert torch.equal(both.summary(x, keep), x[:, 0])
    left = bert(mask="causal")
    assert torch.equal(left.summary(x), x[:, -1])
    assert torch.equal(left.summary(x, keep), torch.stack([x[0, 3], x[1, 1]]))


@pytest.mark.parametrize("mask", ["none", "causal"])
def test_the_next_sentence_is_judged_by_all_tokens(mask: str) -> None:
    model = random_bert(mask=mask)
    tokens, places, segments = read(rows=1)
    before = model(tokens, places, segments).next
    for changed in range(LENGTH):
        other = tokens.clone()
        other[:, changed] = (other[:, changed] + 1) % VOCAB
        assert (model(other, places, segments).next - before).abs().max() > 1e-9


@pytest.mark.parametrize("kernel", ["reference", "sdpa", "chunked"])
@pytest.mark.parametrize("mask", [m for m in options("model.mask") if m != "neighbours"])
def test_padding_has_no_effect(mask: str, kernel: str) -> None:
    model = random_bert(mask=mask, pos_enc="learned", kernel=kernel)
    tokens, _, segments = read()
    places = torch.tensor([[0, 3], [1, 2]])
    keep = torch.ones(2, LENGTH, dtype=torch.bool)
    keep[0, 5:] = False
    other = torch.where(keep, tokens, (tokens + 1) % VOCAB)
    plain, padded = (model.predict(t, places, segments, keep=keep) for t in (tokens, other))
    alone = model(tokens[:1, :5], places[:1], segments[:1, :5])
    for whole, same, single in zip(plain, padded, alone, strict=True):
        torch.testing.assert_close(whole, same, atol=0, rtol=0)
        torch.testing.assert_close(whole[:1], single)
