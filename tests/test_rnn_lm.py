"""RNN language model: carried state, any length, ties, initial values, refusals, a whole run."""

from pathlib import Path
from typing import Any

import pytest
import torch
from make_model import SIZES, options, random_parts, rnn_lm, tokens
from tiny import write_text
from torch import Tensor

import ablate
from ablate.config.composition import compose
from ablate.errors import UserError
from ablate.evaluate import evaluate
from ablate.model.rnn_lm import RNNLM
from ablate.training.flops import flops_per_step
from ablate.training.load import load

WITH_FIGURES = True  # tests/conftest.py

CELLS = options("model.cell")
LENGTH, VOCAB = SIZES["rnn_lm"]["length"], SIZES["rnn_lm"]["vocab_size"]
FORMS: list[dict[str, Any]] = [
    {},
    {"depth": 3},
    {"depth": 3, "residual": True},
    {"embedding_dim": 5, "tie_embeddings": False},
    {"dropout": 0.5},
]


def made(**changes: Any) -> RNNLM:
    model = rnn_lm(**changes)
    random_parts(model)
    return model.eval()


@pytest.mark.parametrize("form", FORMS, ids=str)
@pytest.mark.parametrize("cell", CELLS)
def test_reading_in_pieces_is_reading_at_once(cell: str, form: dict[str, Any]) -> None:
    """The state is carried: longer than training, in pieces of any size."""
    model, text = made(cell=cell, **form), tokens(2, 3 * LENGTH)
    at_once = model(text)
    assert at_once.shape == (2, 3 * LENGTH, VOCAB)
    cache, pieces = model.new_cache(), []
    for piece in text.split([1, 4, 3 * LENGTH - 6, 1], dim=1):
        pieces.append(model(piece, cache=cache))
    torch.testing.assert_close(torch.cat(pieces, 1), at_once)
    assert cache.length() == 3 * LENGTH


@pytest.mark.parametrize("form", FORMS, ids=str)
@pytest.mark.parametrize("cell", CELLS)
def test_every_parameter_learns(cell: str, form: dict[str, Any]) -> None:
    model = made(cell=cell, **form)
    model(tokens(2, LENGTH)).square().sum().backward()
    for name, parameter in model.named_parameters():
        assert parameter.grad is not None, name
        assert parameter.grad.abs().sum() > 0, name


@pytest.mark.parametrize("cell", CELLS)
def test_the_future_is_not_seen_and_the_past_is(cell: str) -> None:
    model, text = made(cell=cell), tokens(2, LENGTH)
    before = model(text)
    text[:, 3] = (text[:, 3] + 1) % VOCAB
    changed = (model(text) != before).any(-1).any(0)
    assert changed.tolist() == [False] * 3 + [True] * (LENGTH - 3)


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


def test_initial_values_depend_on_the_name() -> None:
    def initial(**changes: Any) -> dict[str, Tensor]:
        model = rnn_lm(**changes)
        model.initialise(0)
        return {name: parameter.detach() for name, parameter in model.named_parameters()}

    base = initial()
    for change in ({"depth": 3}, {"tie_embeddings": False}, {"dropout": 0.5}):
        arm = initial(**change)
        assert base.keys() <= arm.keys()
        assert all(torch.equal(base[name], arm[name]) for name in base)


def test_flops_are_those_of_the_products() -> None:
    b, i, d = 2, LENGTH, 12
    lstm = 3 * i * 4 * d * d + 3 * i * 4 * d * d - 4 * d * d  # the first state is zeros
    head = 3 * i * VOCAB * d
    assert flops_per_step(rnn_lm, tokens(b, i)) == 2 * b * (lstm + head)


def test_a_run_trains_writes_and_is_measured_on_longer_windows(tmp_path: Path) -> None:
    text = write_text(tmp_path / "tiny.txt")
    result = ablate.run(
        compose(
            "model=rnn_lm",
            "data=text",
            f"data.path={text}",
            "data.seq_len=16",
            "data.batch_size=4",
            "model.dim=16",
            "trainer.max_steps=6",
            "trainer.val_check_interval=3",
            "schedule.warmup=2",
            "logger=none",
            f"output_dir={tmp_path}",
        )
    )
    assert result["status"] == "finished"
    folder = next((tmp_path / "runs").iterdir())
    assert len((folder / "sample.txt").read_text()) > 400
    run = load(folder)
    assert evaluate(run, {"data.seq_len": 32})["val/loss"] > 0
