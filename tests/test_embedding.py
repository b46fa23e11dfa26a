"""Embeddings: one-hot vectors, and word2vec's own vectors."""

import sys

import numpy as np
import pytest
import torch
from make_model import gpt, part, rnn_seq2seq, tokens, transformer
from tiny import SMALL, overrides, pairs
from torch.testing import assert_close

import ablate
from ablate.data import Request
from ablate.data.pairs import BOS, EOS, PAD
from ablate.errors import UserError
from ablate.model.embedding import word2vec
from ablate.training.build import build, build_data

W2V = ("model.embedding=word2vec", "model.embedding.epochs=2")
FROZEN = (*W2V, "model.embedding.freeze=true", "model.tie_embeddings=false")


class Numbers:
    """In place of data: the same tokens for everything that is read."""

    def __init__(self, *sequences):
        self.read = [np.asarray(sequence, np.int32) for sequence in sequences]
        self.asked = []

    def sequences(self, name):
        self.asked.append(name)
        return self.read


def table(count, dim, *, seed=0, **changes):
    """A word2vec table with its vectors; what is drawn for it before depends on the seed."""
    torch.manual_seed(seed)
    made = part("model.embedding", "word2vec", **changes)(count, dim)
    made.learn_from(text(), seed)
    return made


def text():
    return Numbers(np.random.default_rng(0).integers(8, size=3000))


@pytest.mark.parametrize(
    ("make", "tables"),
    [(gpt, ["embedding"]), (rnn_seq2seq, ["source_embedding", "target_embedding"])],
)
def test_one_hot_vectors_are_rows_of_the_unit_matrix(make, tables):
    model = make(embedding=part("model.embedding", "onehot"), tie_embeddings=False)
    for place in tables:
        embedding = model.get_submodule(place)
        assert not list(embedding.parameters())
        assert not embedding.state_dict()
        width = embedding(tokens(2, 5)).shape[-1]
        for dtype in (torch.float32, torch.bfloat16):
            seen = embedding.to(dtype)(tokens(2, 5))
            assert torch.equal(seen, torch.eye(width, dtype=dtype)[tokens(2, 5)])


def test_normed_vectors_have_one_length():
    model = gpt(embedding=part("model.embedding", "normed", std=3.0, eps=1e-9))
    model.initialize(0)
    table, text = model.embedding.weight, tokens(2, 5)
    assert table.std().item() == pytest.approx(3, rel=0.2)
    assert_close(model.embedding(text), table[text] / table[text].square().mean(-1, True).sqrt())


def test_a_vocabulary_wider_than_the_model_has_no_one_hot_vectors(tmp_path):
    chosen = ("model.embedding=onehot", "model.tie_embeddings=false", "model.heads=1")
    count = build_data(ablate.compose(*overrides(tmp_path))).sizes.vocab_size
    less, fits = (overrides(tmp_path, *chosen, f"model.dim={dim}") for dim in (count - 1, count))
    with pytest.raises(UserError, match=rf"for each of {count} tokens.*set model\.dim={count} or"):
        ablate.build(ablate.compose(*less))
    logits = ablate.build(ablate.compose(*fits))(torch.arange(count)[None])
    assert logits.shape == (1, count, count)


@pytest.mark.parametrize(("algorithm", "sg"), [("skip_gram", 1), ("cbow", 0)])
def test_the_vectors_are_gensims_as_long_as_one_hot_vectors(algorithm, sg):
    from gensim.models import Word2Vec

    made = table(8, 6, seed=5, algorithm=algorithm, window=3, negative=4, epochs=2)
    sentence = [str(token) for token in text().read[0]]
    given = {"window": 3, "negative": 4, "epochs": 2, "seed": 5}
    theirs = Word2Vec([sentence], vector_size=6, sg=sg, min_count=1, workers=1, **given)
    expected = torch.from_numpy(np.stack([theirs.wv[str(token)] for token in range(8)]))
    factor = (made.weight.detach() / expected).flatten()
    assert_close(factor, factor[:1].expand(48))
    assert made.weight.square().sum(-1).mean().item() == pytest.approx(1)


def test_a_token_that_training_never_shows_keeps_what_was_drawn():
    torch.manual_seed(0)
    drawn = torch.empty(10, 6).normal_(std=0.02)
    made = table(10, 6)
    assert torch.equal(made.weight[8:], drawn[8:])
    assert not torch.isclose(made.weight[:8], drawn[:8]).any(-1).all()


def test_a_long_text_is_read_to_its_end(monkeypatch):
    """gensim leaves out what stands beyond 10,000 tokens of a sentence."""
    from gensim.models.word2vec import MAX_WORDS_IN_BATCH

    assert word2vec.LONGEST <= MAX_WORDS_IN_BATCH
    long = np.zeros(25_000, np.int32)
    long[-1] = 7
    cut = list(word2vec.pieces([long, long[-3:]]))
    assert [len(piece) for piece in cut] == [10_000, 10_000, 5_000, 3]
    assert np.array_equal(np.concatenate(cut), np.concatenate([long, long[-3:]]))


def test_without_gensim_one_line_says_what_to_install(monkeypatch):
    monkeypatch.setitem(sys.modules, "gensim.models", None)
    with pytest.raises(UserError, match=r"gensim: pip install 'ablate-attention\[word2vec\]'"):
        table(8, 6)


def test_the_validation_split_leaves_no_trace_in_the_vectors(tmp_path):
    vectors = []
    for name, end in (("text", "cat mat sat "), ("other", "tam tac tas ")):
        path = tmp_path / f"{name}.txt"
        path.write_text("the cat sat on the mat " * 90 + end * 19)
        cfg = ablate.compose(*overrides(tmp_path, *W2V, f"data.path={path}"))
        data = build_data(cfg)
        (read,) = data.sequences("tokens")
        assert np.array_equal(read, data.tokens["train"].numpy())
        words = data.tokenizer.decode(data.tokens["train"].tolist()).split()
        assert not {"tam", "tac"} & set(words)
        vectors.append(build(cfg, data).embedding.weight)
    assert torch.equal(*vectors)


def test_pairs_are_read_as_the_model_reads_them(tmp_path):
    data = build_data(ablate.compose(*pairs(tmp_path)))
    batch = data.splits["train"][Request(0, torch.arange(40))]
    for name in ("source", "target_in"):
        read = [sequence.tolist() for sequence in data.sequences(name)]
        assert read == [[t for t in row if t != PAD] for row in batch[name].tolist()]
        assert all((row[-1] == EOS) if name == "source" else (row[0] == BOS) for row in read)


def test_each_side_of_a_transformer_learns_from_its_own():
    both = {"joint": True, "target_vocab": 12, "embedding": part("model.embedding", "word2vec")}
    for shared in (True, False):
        model = transformer(share_embeddings=shared, **both)
        asked = []
        for embedding in filter(None, (model.source_embedding, model.target_embedding)):
            data = text()
            embedding.learn_from(data, 0)
            asked.append(data.asked)
        assert asked == ([["source", "target_in"]] if shared else [["source"], ["target_in"]])


def test_frozen_vectors_stay_and_are_loaded_with_a_run(tmp_path, monkeypatch):
    folder, cfg = tmp_path / "run", ablate.compose(*overrides(tmp_path, *SMALL, *FROZEN))
    ablate.run(cfg, folder)
    first = build(cfg).embedding.weight
    monkeypatch.setitem(sys.modules, "gensim.models", None)
    run = ablate.load(folder)
    assert torch.equal(first, run.model.embedding.weight)
    assert not run.model.embedding.weight.requires_grad
    counted = run.result["parameters"]
    assert counted["total"] - counted["trainable"] == first.numel()
    assert counted["total"] - counted["non_embedding"] >= first.numel()
