"""BERT: torch's encoder with copied weights, the published heads, and what sees what."""

import pytest
import torch
from make_model import SIZES, bert, random_parts
from test_block import torchs
from torch.nn import functional as F
from torch.testing import assert_close

LENGTH, VOCAB = SIZES["bert"]["length"], SIZES["bert"]["vocab_size"]
SINGLE = {"segments": 1, "next_sentence": False}
# The stack of test_block.py, which makes torch's encoder.
BLOCK = {"dim": 12, "heads": 3, "ffn_dim": 20, "norm_eps": 1e-5}


def random_bert(**changes):
    return random_parts(bert(**changes)).eval()


def read(rows=2, seed=3):
    """Tokens, places and segments."""
    rng = torch.Generator().manual_seed(seed)
    tokens = torch.randint(VOCAB, (rows, LENGTH), generator=rng)
    places = torch.rand(rows, LENGTH, generator=rng).topk(3).indices
    return tokens, places, (torch.arange(LENGTH) > 4).long().expand(rows, -1)


@pytest.mark.filterwarnings("ignore:enable_nested_tensor")
def test_it_is_the_published_model():
    """Embeddings, torch's post-norm encoder, head and pooler, written out."""
    model = random_bert(pos_enc="learned", **BLOCK)
    tokens, places, segments = read()
    tables = dict(model.named_parameters())
    words, kinds = tables["embedding.weight"], tables["segment_embedding.weight"]
    x = words[tokens] + kinds[segments] + tables["stack.pos_enc.table"]
    x = torchs(model.stack, activation="gelu", first=False)(model.stack.embedding_norm(x))
    assert_close(model.encode(tokens, segments), x)

    found = model(tokens, places, segments)
    hidden = torch.stack([row[place] for row, place in zip(x, places, strict=True)])

    def mapped(x, name):
        return F.linear(x, tables[f"{name}.weight"], tables[f"{name}.bias"])

    hidden = F.gelu(mapped(hidden, "head.dense"))
    norm = tables["head.norm.weight"], tables["head.norm.bias"]
    hidden = F.layer_norm(hidden, (12,), *norm, eps=1e-5)
    assert_close(found.tokens, hidden @ words.T + tables["head.bias.weight"])
    assert_close(found.next, mapped(mapped(x[:, 0], "pooler.dense").tanh(), "next_sentence"))


@pytest.mark.parametrize("norm", ["post", "pre", "sandwich", "none"])
def test_the_embeddings_are_normalised_where_the_stream_is(norm):
    names = {name.rsplit(".", 1)[0] for name, _ in bert(norm=norm).named_parameters()}
    assert ("stack.embedding_norm" in names) == (norm == "post")
    assert ("stack.final_norm" in names) == (norm in ("pre", "sandwich"))
    assert ("head.norm" in names) == (norm != "none")


def test_the_summary_is_that_of_a_token_which_sees_all():
    x = torch.arange(2 * 4 * 12.0).view(2, 4, 12)
    keep = torch.tensor([[True] * 4, [True, True, False, False]])
    both = bert()
    assert torch.equal(both.summary(x), x[:, 0])
    assert torch.equal(both.summary(x, keep), x[:, 0])
    left = bert(mask="causal")
    assert torch.equal(left.summary(x), x[:, -1])
    assert torch.equal(left.summary(x, keep), torch.stack([x[0, 3], x[1, 1]]))


@pytest.mark.parametrize("mask", ["none", "causal"])
def test_padding_changes_nothing_of_either_head(mask):
    model = random_bert(mask=mask, pos_enc="learned")
    tokens, _, segments = read()
    places, keep = torch.tensor([[0, 3], [1, 2]]), torch.ones(2, LENGTH, dtype=torch.bool)
    keep[0, 5:] = False
    other = torch.where(keep, tokens, (tokens + 1) % VOCAB)
    plain, padded = (model.predict(t, places, segments, keep=keep) for t in (tokens, other))
    alone = model(tokens[:1, :5], places[:1], segments[:1, :5])
    for whole, same, single in zip(plain, padded, alone, strict=True):
        assert_close(whole, same, atol=0, rtol=0)
        assert_close(whole[:1], single)


def test_one_segment_needs_nothing_of_pairs():
    pairs = {name for name, _ in bert().named_parameters()}
    single = {name for name, _ in bert(**SINGLE).named_parameters()}
    gone = ("segment_embedding.", "pooler.", "next_sentence.")
    assert pairs - single == {name for name in pairs if name.startswith(gone)}
    tokens, places, segments = read()
    assert random_bert(**SINGLE)(tokens, places).next is None
    model = random_bert()
    assert_close(model.encode(tokens), model.encode(tokens, segments * 0))
    assert not torch.allclose(model.encode(tokens), model.encode(tokens, segments))
