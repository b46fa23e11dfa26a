"""python -m ablate.show: maps of a run for a text or an example of one's own."""

from pathlib import Path
from types import SimpleNamespace

import pytest
import tiny
import torch
from test_figures import DATES, VIT, built, drawn, pixels

from ablate import show
from ablate.task import Task


def command(monkeypatch: pytest.MonkeyPatch, task: Task, folder: Path, *arguments: str) -> int:
    """Exit code of `python -m ablate.show` on a run that is in memory."""
    loaded = SimpleNamespace(path=folder, task=task, model=task.model, data=task.data)
    monkeypatch.setattr(show, "load", lambda run_dir, allow=(): loaded)
    monkeypatch.setattr("sys.argv", ["show", str(folder), *arguments])
    with pytest.raises(SystemExit) as exited:
        show.command(show.main)
    return int(exited.value.code or 0)


def test_show_draws_and_prints_paths(tmp_path, monkeypatch, capsys):
    gpt = built(*tiny.overrides(tmp_path, "model.depth=2"))
    assert command(monkeypatch, gpt, tmp_path, "--text", "the cat sat") == 0
    paths = [Path(line) for line in capsys.readouterr().out.split()]
    assert [path.parent for path in paths] == [tmp_path / "figures"] * 2
    assert all(drawn(path) for path in paths)
    out = tmp_path / "elsewhere"
    assert command(monkeypatch, gpt, tmp_path, "--layer", "1", "--out", str(out)) == 0
    assert [path.name for path in out.iterdir()] == ["attention_layer_01.png"]


PAIRS = ("model=rnn_seq2seq", *DATES)


def test_show_writes_the_target_of_a_source_and_draws_it(tmp_path, monkeypatch, capsys):
    task = built(*PAIRS)
    assert command(monkeypatch, task, tmp_path, "--source", "3 mars 2015") == 0
    assert capsys.readouterr().out == f"{tmp_path / 'figures' / 'alignment.png'}\n"
    assert drawn(tmp_path / "figures" / "alignment.png")
    examples = {}
    for index in "01":
        folder = tmp_path / index
        assert command(monkeypatch, task, tmp_path, "--index", index, "--out", str(folder)) == 0
        examples[index] = pixels(folder / "alignment.png")
    assert not torch.equal(examples["0"], examples["1"])


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
def test_show_refuses_in_one_line(tmp_path, monkeypatch, capsys, overrides, arguments, words):
    assert command(monkeypatch, built(*overrides), tmp_path, *arguments.split()) == 2
    error = capsys.readouterr().err
    assert error.startswith("ablate: ")
    assert error.count("\n") == 1
    assert words in error
    assert not list(tmp_path.rglob("*.png"))
