"""task=masked_lm: nothing hidden is seen, what is measured, and what a finished run does."""

import json
import re
from functools import partial

import pytest
import tiny
import torch
from torch.nn import functional as F

import ablate
from ablate import evaluate, generate
from ablate.errors import UserError

WITH_FIGURES = True  # tests/conftest.py


def overrides(folder, *more):
    return tiny.overrides(folder, "model=bert", *more)


def built(folder, *more):
    return tiny.built(*overrides(folder, *more)).eval()


@pytest.fixture(scope="module")
def finished(tmp_path_factory):
    folder = tmp_path_factory.mktemp("run")
    return tiny.trained(*overrides(folder, "pos_enc=learned"))


@torch.no_grad()
@pytest.mark.parametrize("masked", [True, False])
def test_a_masked_token_is_never_seen(tmp_path, masked):
    """Another text under the same [MASK]s gives the same logits, to the last bit; and what is left
    as it is, others."""
    task = built(tmp_path, f"task.mask_share={int(masked)}", "task.random_share=0")
    before = task.data.example()
    hidden, size = before["targets"], task.data.tokenizer.text_size
    read = before["tokens"].gather(1, before["positions"])
    assert torch.equal(
        read, torch.full_like(hidden, task.data.tokenizer.mask) if masked else hidden
    )
    split = task.data.splits["val"]
    original, split.text = split.text, torch.arange(len(split.text))
    places = task.data.example()["targets"]  # where in the text they stood
    split.text = original.int()
    split.text[places] = ((hidden + 1) % size).int()
    other = task.data.example()
    assert not torch.equal(other["targets"], hidden)
    found = zip(task(*task.inputs(before)), task(*task.inputs(other)), strict=True)
    assert all(torch.equal(one, two) == masked for one, two in found)


@pytest.mark.parametrize("next_sentence", [True, False])
def test_the_loss_is_the_sum_of_both_and_the_curve_is_that_of_the_tokens(tmp_path, next_sentence):
    task = built(tmp_path, f"task.next_sentence={next_sentence}")
    batch = next(iter(task.data.train_dataloader()))
    tokens, following = task(*task.inputs(batch))
    hidden = round(0.15 * (16 - 2 - next_sentence))  # which alone reach the output map
    assert tokens.shape[:2] == batch["targets"].shape == (4, hidden)
    expected = {"loss": F.cross_entropy(tokens.transpose(1, 2), batch["targets"])}
    if next_sentence:
        expected["next_sentence"] = F.cross_entropy(following, batch["next"])
    torch.testing.assert_close(task.losses(batch), expected)


def test_measures_are_those_of_the_whole_split(tmp_path):
    task = built(tmp_path, "data.batch_size=5")
    with torch.no_grad():
        for batch in task.data.val_dataloader():
            task.evaluate(batch)
        found = task.measures("val")
        (whole,) = built(tmp_path, "data.batch_size=1000").data.val_dataloader()
        tokens, following = task(*task.inputs(whole))
    loss = F.cross_entropy(tokens.transpose(1, 2), whole["targets"])
    expected = {
        "loss": loss,
        "perplexity": loss.exp(),
        "accuracy": (tokens.argmax(-1) == whole["targets"]).float().mean(),
        "next_accuracy": (following.argmax(-1) == whole["next"]).float().mean(),
    }
    torch.testing.assert_close({name: found[name] for name in expected}, expected)


@pytest.mark.ci
def test_evaluate_measures_the_same_again_and_other_texts(finished, tmp_path, printed):
    trained = json.loads((finished / "result.json").read_text())["metrics"]
    assert json.loads(printed(evaluate, finished, "--json")) == pytest.approx(trained, abs=1e-6)
    names = ("loss", "perplexity", "accuracy", "next_accuracy")
    assert set(trained) == {f"val/{name}" for name in names}
    other = tmp_path / "other.txt"
    other.write_text("was a cat that sat on the mat " * 40)
    measured = evaluate.evaluate(ablate.load(finished), {"data.path": str(other)})
    assert measured["val/loss"] != pytest.approx(trained["val/loss"])
    with pytest.raises(UserError, match="trained for 16 positions"):
        evaluate.evaluate(ablate.load(finished), {"data.seq_len": 32})


@pytest.mark.ci
def test_generate_fills_in(finished, printed):
    written = partial(printed, generate, finished)
    prompt = "the c[MASK]t s[MASK][MASK]"
    filled = written("--prompt", prompt)
    assert filled == written("--prompt", prompt)
    assert re.fullmatch("the c.t s..\n", filled)
    prompt = ablate.load(finished).result["prompt"]  # of a text without a "T"
    assert len(written("--prompt", prompt)) == len("four\n")
    shown = written()
    assert shown.count("read:") == shown.count("written:") == 3
    assert "[MASK]" in shown
    for prompt, message in (
        ("the cat", r"--prompt the cat: has no \[MASK\]"),
        ("[MASK]" * 30, "trained for 16 positions"),
    ):
        with pytest.raises(UserError, match=message):
            written("--prompt", prompt)


def test_the_surest_is_filled_in_first(tmp_path):
    task = built(tmp_path)
    example = task.data.from_text("the c[MASK]t s[MASK][MASK]")
    read, forward = [], task.model.forward
    task.model.forward = lambda *a, **k: read.append(a[0].clone()) or forward(*a, **k)
    filled = task.presenter(task).filled(example)
    mask = task.data.tokenizer.mask
    assert [(tokens == mask).sum().item() for tokens in read] == [3, 2, 1]
    places = (read[0] == mask).nonzero()[:, 1]
    with torch.no_grad():
        logits = forward(read[0], places[None], example["segments"]).tokens[0]
    likely = logits[:, : task.data.tokenizer.text_size].softmax(-1).amax(-1)
    first = places[likely.argmax()]
    assert read[1][0, first] == filled[first] != mask
    assert (filled[places] < task.data.tokenizer.text_size).all()
