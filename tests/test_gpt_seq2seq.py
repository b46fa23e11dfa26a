"""The decoder-only model of pairs: it is a GPT, nothing leaks, decoding equals teacher forcing."""

import pytest
import torch
from make_model import SIZES, gpt, gpt_seq2seq, part, random_parts
from tiny import pairs
from torch.testing import assert_close

import ablate
from ablate.data.pairs import BOS, PAD
from ablate.errors import UserError
from ablate.task.attention import attention_maps

IN, OUT = SIZES["gpt_seq2seq"]["source_length"], SIZES["gpt_seq2seq"]["target_length"]
WORDS, VOCAB = SIZES["gpt_seq2seq"]["source_vocab"], SIZES["gpt_seq2seq"]["target_vocab"]


def random_model(**changes):
    return random_parts(gpt_seq2seq(**changes)).eval()


def batch():
    """Sources of 8, 5 and 3 tokens, targets of 7, 2 and 5."""
    rng = torch.Generator().manual_seed(0)
    both = []
    for lengths, vocab in (([IN, 5, 3], WORDS), ([OUT, 2, 5], VOCAB)):
        tokens = torch.randint(4, vocab, (3, max(lengths)), generator=rng)
        both.append(tokens.where(torch.arange(max(lengths)) < torch.tensor(lengths)[:, None], PAD))
    both[1][:, 0] = BOS
    return both


def test_it_is_a_gpt_with_a_prefix():
    """Of whole sources: a GPT that has the tokens of both sides, and another size of prefix."""
    model = random_model(pos_enc="learned")
    one = gpt(vocab_size=WORDS + VOCAB, length=IN + OUT, mask=part("model.mask", "prefix", size=IN),
              pos_enc="learned", tie_embeddings=False, depth=2)  # fmt: skip
    one = random_parts(one).eval()
    one.stack.load_state_dict(model.stack.state_dict())
    tables = model.source_embedding.weight, model.target_embedding.weight
    with torch.no_grad():
        one.embedding.weight.copy_(torch.cat(tables))
        one.head.weight.copy_(torch.cat(tables))
    source, target_in = (tokens[:1] for tokens in batch())
    expected = one(torch.cat([source, target_in + WORDS], dim=1))[:, IN:, WORDS:]
    assert_close(model(source, target_in), expected)


def test_a_source_beyond_training_is_refused():
    source, target_in = batch()
    with pytest.raises(UserError, match="trained for 8 at most"):
        random_model()(torch.cat([source, source], dim=1), target_in)


def test_a_run_shows_where_the_target_looks_in_the_source(tmp_path):
    cfg = ablate.compose(*pairs(tmp_path, "model=gpt_seq2seq", "model.heads=2"))
    result = ablate.run(cfg, tmp_path / "run")
    assert "caution" not in result
    run = ablate.load(tmp_path / "run")
    example = run.data.example(0)
    maps = attention_maps(run.task, example)
    assert {one.kind for one in maps} == {"cross"}
    shape = len(example["target_labels"]), len(example["source_labels"])
    assert all(one.weights.shape[1:] == shape for one in maps)
