"""python -m ablate.show: maps of a run for a text or an example of one's own."""

from pathlib import Path
from types import SimpleNamespace

import pytest
import tiny
import torch
from test_figures import DATES, VIT, built, drawn, pixels

from ablate import show
from ablate.task import Task


@pytest.fixture
def command(tmp_path, monkeypatch, capsys):
    """`python -m ablate.show RUN_DIR` on a run that is in memory: exit code, output, errors."""

    def run(task: Task, *arguments: str) -> tuple[int, str, str]:
        loaded = SimpleNamespace(path=tmp_path, task=task, model=task.model, data=task.data)
        monkeypatch.setattr(show, "load", lambda run_dir, allow=(): loaded)
        monkeypatch.setattr("sys.argv", ["show", str(tmp_path), *arguments])
        with pytest.raises(SystemExit) as exited:
            show.command(show.main)
        return (int(exited.value.code or 0), *capsys.readouterr())

    return run


def test_show_draws_and_prints_paths(tmp_path, command):
    gpt = built(*tiny.overrides(tmp_path, "model.depth=2"))
    code, out, _ = command(gpt, "--text", "the cat sat")
    paths = [Path(line) for line in out.split()]
    assert (code, [path.parent for path in paths]) == (0, [tmp_path / "figures"] * 2)
    assert all(drawn(path) for path in paths)
    elsewhere = tmp_path / "elsewhere"
    assert command(gpt, "--layer", "1", "--out", str(elsewhere))[0] == 0
    assert [path.name for path in elsewhere.iterdir()] == ["attention_layer_01.png"]


PAIRS = ("model=rnn_seq2seq", *DATES)


def test_show_writes_the_target_of_a_source_and_draws_it(tmp_path, command):
    task = built(*PAIRS)
    path = tmp_path / "figures" / "alignment.png"
    assert command(task, "--source", "3 mars 2015") == (0, f"{path}\n", "")
    assert drawn(path)
    for index in "01":
        assert command(task, "--index", index, "--out", str(tmp_path / index))[0] == 0
    first, second = (pixels(tmp_path / index / path.name) for index in "01")
    assert not torch.equal(first, second)


GPT = ("data=pydoc", "model.depth=2", "model.dim=16", "model.heads=2")


@pytest.mark.parametrize(
    ("overrides", "arguments", "words"),
    [
        (GPT, "--layer 9", "layer 9: this model has layers 1 to 2"),
        (GPT, "--index 10000000", "--index 10000000: the validation split has examples 0 to"),
        (GPT, "--text=", "--text is empty"),
        (GPT, "--layer x", "invalid int value"),
        (GPT, "--text a --index 1", "not allowed with argument"),
        (PAIRS, "--text 2015", "--text: "),
        (PAIRS, "--source=", "--source is empty"),
        ((*PAIRS, "model.attention=none"), "", "no attention of ours to draw"),
        (VIT, "--source 2015", "was not trained on pairs"),
        (VIT, "--text hello", "was not trained on text"),
    ],
)
def test_show_refuses_in_one_line(tmp_path, command, overrides, arguments, words):
    code, _, error = command(built(*overrides), *arguments.split())
    assert (code, error[:8], error.count("\n")) == (2, "ablate: ", 1)
    assert words in error
    assert not list(tmp_path.rglob("*.png"))
