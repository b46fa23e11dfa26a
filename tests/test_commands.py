"""evaluate, generate, diff: what a person does with a finished run."""

import json
from functools import cache

import pytest
from tiny import images, overrides, pairs, write_text

import ablate
from ablate import diff, evaluate, generate
from ablate.config.composition import Composition
from ablate.errors import UserError


@pytest.fixture(scope="module")
def finished(tmp_path_factory):
    """The folder of a finished run with a position encoding; each is trained once."""
    folder = tmp_path_factory.mktemp("runs")

    @cache
    def made(name):
        cfg = ablate.compose(*overrides(folder, f"pos_enc={name}"))
        ablate.run(cfg)
        return Composition(cfg).folder

    return made


def call(monkeypatch, capsys, command, *arguments):
    monkeypatch.setattr("sys.argv", ["ablate", *map(str, arguments)])
    command.main()
    return capsys.readouterr().out


@pytest.mark.parametrize(
    "name",
    ["rotary", *(pytest.param(name, marks=pytest.mark.slow)
                 for name in ("alibi", "sinusoidal", "none", "t5", "relative"))],
)  # fmt: skip
def test_longer_than_trained(finished, monkeypatch, capsys, name):
    run = finished(name)
    capsys.readouterr()
    out = call(monkeypatch, capsys, evaluate, run, "data.seq_len=16,32,64", "--json")
    rows = [json.loads(line) for line in out.splitlines()]
    assert [row["data.seq_len"] for row in rows] == [16, 32, 64]
    trained = json.loads((run / "result.json").read_text())["metrics"]["val/loss"]
    assert rows[0]["val/loss"] == pytest.approx(trained, abs=1e-6)
    assert all(row["val/perplexity"] > 1 for row in rows)


def test_one_row_that_is_refused_leaves_the_others(finished, monkeypatch, capsys):
    monkeypatch.setattr("sys.argv", ["", str(finished("learned")), "data.seq_len=8,32", "--json"])
    capsys.readouterr()
    with pytest.raises(UserError, match=r"learned was trained for 16 positions.*32"):
        evaluate.main()
    assert json.loads(capsys.readouterr().out)["data.seq_len"] == 8


def test_another_text_is_read_with_the_runs_tokens(finished, tmp_path):
    run = ablate.load(finished("rotary"))
    other = tmp_path / "other.txt"
    other.write_text("was a cat that sat on the mat " * 40)
    metrics = evaluate.evaluate(run, {"data.path": str(other)})
    same = evaluate.evaluate(run, {"data.path": str(write_text(tmp_path / "same.txt"))})
    assert same["val/loss"] == pytest.approx(run.result["metrics"]["val/loss"], abs=1e-6)
    assert metrics["val/loss"] != same["val/loss"]


def test_rotary_positions_are_scaled_without_training(finished, monkeypatch, capsys):
    run = finished("rotary")
    capsys.readouterr()
    changes = ("pos_enc.scaling=null,ntk,yarn", "pos_enc.factor=4", "data.seq_len=64", "--json")
    out = call(monkeypatch, capsys, evaluate, run, *changes)
    plain, ntk, yarn = (json.loads(line)["val/loss"] for line in out.splitlines())
    assert len({plain, ntk, yarn}) == 3
    loaded = ablate.load(run)
    assert evaluate.evaluate(loaded, {"data.seq_len": 64})["val/loss"] == pytest.approx(plain)
    with pytest.raises(UserError, match=r"pos_enc\.base=5.*can be measured with other data"):
        evaluate.evaluate(loaded, {"pos_enc.base": 5})


@pytest.mark.parametrize(
    ("change", "message"),
    [
        ("model.heads=4", r"model\.heads=4.*data\.seq_len"),
        ("data.seq_len=range(1,0)", "names no value"),
        ("data.seq_len=four", "data.seq_len=four: must be a whole number"),
    ],
)
def test_evaluate_refuses_what_is_no_value(finished, monkeypatch, capsys, change, message):
    with pytest.raises(UserError, match=message):
        call(monkeypatch, capsys, evaluate, finished("rotary"), change)


def test_generate_continues_the_prompt(finished, monkeypatch, capsys):
    arguments = (finished("rotary"), "--prompt", "the cat", "--tokens", 40)
    capsys.readouterr()
    once = call(monkeypatch, capsys, generate, *arguments)
    again = call(monkeypatch, capsys, generate, *arguments)
    other = call(monkeypatch, capsys, generate, *arguments, "--seed", 1)
    assert once.startswith("the cat")
    assert len(once.rstrip("\n")) == len("the cat") + 40
    assert once == again
    assert once != other


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (("--prompt", ""), "--prompt is empty"),
        (("--prompt", "ZZZ"), "not in the training text"),
        (("--tokens", 0), "--tokens 0"),
        (("--temperature", 1e-300), "--temperature 1e-300 must be 0, or at least 1e-06"),
        (("--seed", 2**70), "--seed 1180591620717411303424 has more than 64 bits"),
        (("--top-p", 2), "--top-p 2"),
        (("--beam", 2, "--top-k", 3), "--beam: .* is a language model, and its options are"),
    ],
)
def test_generate_refuses_in_one_line(finished, monkeypatch, capsys, arguments, message):
    with pytest.raises(UserError, match=message) as caught:
        call(monkeypatch, capsys, generate, finished("rotary"), *arguments)
    assert "\n" not in str(caught.value)


def test_a_model_of_images_writes_nothing(tmp_path, monkeypatch, capsys):
    cfg = ablate.compose(*images(tmp_path))
    ablate.run(cfg)
    with pytest.raises(UserError, match="neither a language model on text, nor"):
        call(monkeypatch, capsys, generate, Composition(cfg).folder)


def test_pairs_of_other_lengths_are_measured_with_the_runs_tokens(tmp_path, monkeypatch, capsys):
    cfg = ablate.compose(*pairs(tmp_path))
    trained = ablate.run(cfg)["metrics"]
    capsys.readouterr()
    arguments = (Composition(cfg).folder, "data.test_max_length=5,12", "--json")
    same, longer = map(json.loads, call(monkeypatch, capsys, evaluate, *arguments).splitlines())
    assert {name: same[name] for name in trained} == pytest.approx(trained, abs=1e-5)
    assert "test/accuracy/length_11-15" in longer
    assert "test/accuracy/length_11-15" not in same
    arguments = (Composition(cfg).folder, "task.beam=1,4", "task.length_penalty=0.0", "--json")
    one, four = map(json.loads, call(monkeypatch, capsys, evaluate, *arguments).splitlines())
    assert one["test/bleu"] == pytest.approx(trained["test/bleu"])
    assert four["test/loss"] == pytest.approx(trained["test/loss"])
    run = ablate.load(Composition(cfg).folder)
    for changes, message in (
        ({"task.beam": 0}, "task.beam=0: must be a whole number of at least 1"),
        ({"task.length_penalty": 0.6}, "no effect with task.beam=1"),
        ({"task.label_smoothing": 0.1}, "can be measured with other data"),
    ):
        with pytest.raises(UserError, match=message):
            evaluate.evaluate(run, changes)


def test_diff_says_what_a_change_does(tmp_path):
    base = overrides(tmp_path)
    first = ablate.compose(*base)
    found = diff.difference(first, ablate.compose(*base, "model.attention=additive"))
    assert found.only_second == ["stack.blocks.0.attention.function.score.v"]
    assert found.parameters[1] - found.parameters[0] == 16
    assert found.kernels[0] == ["sdpa (flash)"]
    assert found.keys["model.attention"] == ("scaled_dot", "additive")
    assert found.other_values == []
    assert found.output > 0
    assert not found.none


def test_diff_finds_a_change_without_effect(tmp_path, monkeypatch, capsys):
    base = overrides(tmp_path)
    found = diff.difference(ablate.compose(*base), ablate.compose(*base, "kernel=reference"))
    assert found.keys  # the config differs,
    assert found.output < 1e-6  # the function does not
    same = diff.difference(ablate.compose(*base), ablate.compose(*base))
    assert same.none
    assert not same.keys
    dots = (ablate.compose(*pairs(tmp_path), f"model.attention={a}") for a in ("dot", "general"))
    found = diff.difference(*dots)
    assert found.parameters[1] - found.parameters[0] == 8 * 8
    assert found.output > 0
    with pytest.raises(UserError, match=r"cannot split .* into overrides: No closing quotation"):
        call(monkeypatch, capsys, diff, "' seed=1", "seed=2")
