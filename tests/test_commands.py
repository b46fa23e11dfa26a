"""evaluate, generate, diff: what a person does with a finished run."""

import json
import re
import shlex
from functools import cache
from itertools import islice
from unittest.mock import Mock

import pytest
from tiny import built, images, overrides, pairs, trained, write_text

import ablate
from ablate import diff, evaluate, generate
from ablate.cli.summary import next_commands
from ablate.config.composition import Composition
from ablate.decode.sample import sample
from ablate.errors import UserError
from ablate.training.difference import difference as difference_of


@pytest.fixture(scope="module")
def finished(tmp_path_factory):
    """The folder of a finished run with a position encoding; each is trained once."""
    folder = tmp_path_factory.mktemp("runs")

    @cache
    def made(name):
        return trained(*overrides(folder, f"pos_enc={name}"))

    return made


@pytest.fixture
def measured(printed):
    """`python -m ablate.evaluate RUN CHANGES --json`: its rows."""

    def rows(run, *changes):
        out = printed(evaluate, run, *changes, "--json")
        return [json.loads(line) for line in out.splitlines()]

    return rows


@pytest.mark.ci
def test_longer_than_trained(finished, measured):
    run = finished("rotary")
    rows = measured(run, "data.seq_len=16,32,64")
    assert [row["data.seq_len"] for row in rows] == [16, 32, 64]
    trained = json.loads((run / "result.json").read_text())["metrics"]["val/loss"]
    assert rows[0]["val/loss"] == pytest.approx(trained, abs=1e-6)
    assert all(row["val/perplexity"] > 1 for row in rows)


@pytest.mark.ci
def test_one_row_that_is_refused_leaves_the_others(finished, measured, capsys):
    run = finished("learned")
    with pytest.raises(UserError, match=r"learned was trained for 16 positions.*32"):
        measured(run, "data.seq_len=8,32")
    assert json.loads(capsys.readouterr().out)["data.seq_len"] == 8


def test_another_text_is_read_with_the_runs_tokens(finished, tmp_path):
    run = ablate.load(finished("rotary"))
    other = tmp_path / "other.txt"
    other.write_text("was a cat that sat on the mat " * 40)
    texts = {"same": write_text(tmp_path / "same.txt"), "other": other}
    loss = {n: evaluate.evaluate(run, {"data.path": str(texts[n])})["val/loss"] for n in texts}
    assert loss["same"] == pytest.approx(run.result["metrics"]["val/loss"], abs=1e-6)
    assert loss["other"] != loss["same"]


@pytest.mark.ci
def test_rotary_positions_are_scaled_without_training(finished, measured):
    run = finished("rotary")
    scaled = ("pos_enc.scaling=null,ntk,yarn", "pos_enc.factor=4")
    plain, ntk, yarn = (row["val/loss"] for row in measured(run, *scaled, "data.seq_len=64"))
    assert len({plain, ntk, yarn}) == 3
    (row,) = measured(run, "data.seq_len=64")
    assert row["val/loss"] == pytest.approx(plain)
    with pytest.raises(UserError, match=r"pos_enc\.factor=4 has no effect on this model"):
        measured(run, "data.seq_len=64", "pos_enc.factor=4")
    (row,) = measured(run, "data.seq_len=64", "pos_enc.scaling=linear", "pos_enc.factor=1")
    assert row["val/loss"] == pytest.approx(plain)  # the first point of a curve


@pytest.mark.parametrize(
    ("change", "message"),
    [
        ("model.heads=4", r"model\.heads=4: a finished run can be measured with other data"),
        ("data.seq_len=range(1,0)", "names no value"),
        ("data.seq_len=four", "data.seq_len=four: must be an integer"),
    ],
)
def test_evaluate_refuses_what_is_no_value(finished, measured, change, message):
    with pytest.raises(UserError, match=message):
        measured(finished("rotary"), change)


def test_generate_continues_the_prompt(finished, printed):
    arguments = (generate, finished("rotary"), "--prompt", "the cat", "--tokens", 40)
    seeds = ([], [], ["--seed", 1])
    once, again, other = (printed(*arguments, *more) for more in seeds)
    assert once.startswith("the cat")
    assert len(once.rstrip("\n")) == len("the cat") + 40
    assert once == again != other


def test_a_stop_shows_what_was_written(finished, monkeypatch, printed, capsys):
    arguments = (generate, finished("rotary"), "--prompt", "the cat", "--tokens", 40)
    whole = printed(*arguments)

    def stopped(*given, **options):
        yield from islice(sample(*given, **options), 9)
        raise KeyboardInterrupt

    monkeypatch.setattr("ablate.task.causal_lm.sample", stopped)
    with pytest.raises(KeyboardInterrupt):
        printed(*arguments)
    assert capsys.readouterr().out == whole[: len("the cat") + 9] + "\n"


@pytest.mark.ci
def test_the_prompt_that_is_suggested_and_the_default_can_be_encoded(finished, printed):
    """Although the text of this run has no "T"."""
    run = finished("rotary")
    result = json.loads((run / "result.json").read_text()) | {"artifacts": ["sample.txt"]}
    typed, *_ = next_commands(result, run, "ablate.task.causal_lm.CausalLM")
    *start, prompt = shlex.split(typed)
    assert start == ["python", "-m", "ablate.generate", str(run), "--prompt"]
    for given in (["--prompt", prompt], []):
        assert printed(generate, run, *given).startswith(prompt)


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (("--prompt", ""), "--prompt: is empty"),
        (("--prompt", "ZZZ"), "not occur in the training text"),
        (("--tokens", 0), "--tokens: 0 must be an integer of at least 1"),
        (("--temperature", 1e-300), "--temperature: 1e-300 must be 0, or at least 1e-06"),
        (("--seed", 2**70), "--seed: 1180591620717411303424 must be an integer"),
        (("--top-p", 2), "--top-p: 2 must be"),
        (("--beam", 2, "--top-k", 3), "--beam: .* is a language model, and its options are"),
    ],
)
def test_generate_refuses(finished, printed, arguments, message):
    with pytest.raises(UserError, match=message):
        printed(generate, finished("rotary"), *arguments)


def test_a_model_of_images_writes_nothing(tmp_path, monkeypatch, printed):
    run = Mock(task=built(*images(tmp_path)))
    monkeypatch.setattr("ablate.training.load.load", lambda *_, **__: run)
    with pytest.raises(UserError, match="does not support generation"):
        printed(generate, tmp_path)


@pytest.mark.ci
def test_pairs_of_other_lengths_are_measured_with_the_runs_tokens(tmp_path, measured):
    cfg = ablate.compose(*pairs(tmp_path))
    trained, folder = ablate.run(cfg)["metrics"], Composition(cfg).folder
    same, longer = measured(folder, "data.test_max_length=5,12")
    assert {name: same[name] for name in trained} == pytest.approx(trained, abs=1e-5)
    assert "test/accuracy/length_11-15" in longer.keys() - same.keys()
    one, four = measured(folder, "task.beam=1,4", "task.length_penalty=0.0")
    assert one["test/bleu"] == pytest.approx(trained["test/bleu"])
    assert four["test/loss"] == pytest.approx(trained["test/loss"])
    for change, message in {
        "task.beam=0": "task.beam=0: must be an integer of at least 1",
        "task.length_penalty=0.6": "no effect with task.beam=1",
        "task.label_smoothing=0.1": "can be measured with other data",
    }.items():
        with pytest.raises(UserError, match=message):
            measured(folder, change)


def difference(base, *more):
    """Of a composition, and of the same with more overrides."""
    return difference_of(ablate.compose(*base), ablate.compose(*base, *more))


@pytest.mark.ci
def test_diff_says_what_a_change_does(tmp_path):
    found = difference(overrides(tmp_path), "model.attention=additive")
    assert found.only_second == ["stack.blocks.0.attention.function.score.v"]
    assert found.parameters[1] - found.parameters[0] == 16
    assert found.kernels[0] == ["sdpa (flash)"]
    assert found.keys["model.attention"] == ("scaled_dot", "additive")
    assert found.other_values == []
    assert found.output > 0
    assert not found.none
    found = difference(overrides(tmp_path), "kernel=reference")
    assert found.keys  # the config differs,
    assert found.output < 1e-6  # the function does not


@pytest.mark.ci
def test_diff_compares_the_folders_of_runs(finished, printed):
    run = finished("rotary")
    out = printed(diff, run, run)
    assert "No effect: the same parameters" in out
    assert re.search(r"decoding state, bytes per token +│ [1-9]\d+ +│ [1-9]\d+ ", out), out
    with pytest.raises(UserError, match=r"cannot split .* into overrides: No closing quotation"):
        printed(diff, "' seed=1", "seed=2")
    typed = " ".join(overrides(run.parents[2], "pos_enc=none"))
    out = printed(diff, run, typed)
    assert re.search(r"pos_enc +│ rotary +│ none ", out), out
