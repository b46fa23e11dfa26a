"""RNN language model: first state, dropout, ties, a whole run; test_properties.py has the rest."""

from pathlib import Path
from typing import Any

import pytest
import torch
from make_model import SIZES, random_parts, rnn_lm, tokens
from tiny import SMALL, overrides

import ablate
from ablate.config.composition import Composition, compose
from ablate.errors import UserError
from ablate.evaluate import evaluate
from ablate.model.rnn_lm import RNNLM
from ablate.training.load import load

WITH_FIGURES = True  # tests/conftest.py

LENGTH, VOCAB = SIZES["rnn_lm"]["length"], SIZES["rnn_lm"]["vocab_size"]


def made(**changes: Any) -> RNNLM:
    model = rnn_lm(**changes)
    random_parts(model)
    return model.eval()


def test_a_window_starts_from_zeros() -> None:
    model, text = made(cell="lstm"), tokens(2, LENGTH)
    cache = model.new_cache()
    zeros = torch.zeros(1, 2, model.recurrent.layers[0].hidden_size, dtype=torch.float64)
    cache.hidden = [(zeros, zeros)]
    torch.testing.assert_close(model(text, cache=cache), model(text))
    model(text, cache=cache)
    torch.testing.assert_close(model(text), made(cell="lstm")(text))  # nothing was kept


def test_dropout_acts_on_the_embedding_and_before_the_output_map() -> None:
    model, seen = made(dropout=0.5, tie_embeddings=False).train(), []
    for dropout in (model.dropout, model.read_out.dropout):
        dropout.register_forward_hook(lambda _, args, out: seen.append((*args, out)))
    logits = model(tokens(2, LENGTH))
    (read, _), (_, out) = seen
    assert torch.equal(read, model.embedding(tokens(2, LENGTH)))
    assert model.head is not None
    assert torch.equal(logits, model.head(out))


def test_ties_and_their_widths() -> None:
    assert made().head is None
    untied = made(tie_embeddings=False)
    assert untied.head is not None
    assert untied.head.weight.shape == untied.embedding.weight.shape
    with pytest.raises(UserError, match=r"set model.embedding_dim=12$"):
        made(embedding_dim=5)


def test_a_run_trains_writes_and_is_measured_on_longer_windows(tmp_path: Path) -> None:
    small = [one for one in overrides(tmp_path, *SMALL) if "heads" not in one]
    cfg = compose("model=rnn_lm", *small)
    assert ablate.run(cfg)["status"] == "finished"
    folder = Composition(cfg).folder
    assert len((folder / "sample.txt").read_text()) > 400
    assert evaluate(load(folder), {"data.seq_len": 32})["val/loss"] > 0
