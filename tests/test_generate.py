"""python -m ablate.generate of a sequence-to-sequence model."""

import gzip
import os
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
import tiny
from make_model import random_parts
from test_figures import drawn
from ways import called

from ablate import generate
from ablate.decode.search import beam_search
from ablate.task import translate


@pytest.fixture(scope="module")
def task(tmp_path_factory):
    """A model that writes something else for each source."""
    made = tiny.built(*tiny.pairs(tmp_path_factory.mktemp("run"))).eval()
    random_parts(made.model, std=1.0)
    return made


class Command:
    """`python -m ablate.generate RUN_DIR` on a run that is in memory."""

    def __init__(self, task: Any, folder: Path, monkeypatch: Any, capsys: Any) -> None:
        self.folder, self.capsys = folder, capsys
        run = SimpleNamespace(path=folder, task=task, model=task.model, data=task.data)

        def load(run_dir: str, allow: list[str]) -> Any:
            task.beam, task.length_penalty = 1, 0.0
            return run

        monkeypatch.setattr("ablate.training.load.load", load)

    def __call__(self, *arguments: Any) -> tuple[int, str, str]:
        """Exit code, what was printed, and the errors."""
        with pytest.raises(SystemExit) as exited:
            generate.command(lambda: called(generate.main, "RUN", *arguments))
        printed = self.capsys.readouterr()
        return int(exited.value.code or 0), printed.out, printed.err


@pytest.fixture
def command(task, tmp_path, monkeypatch, capsys):
    return Command(task, tmp_path, monkeypatch, capsys)


def test_the_best_of_a_beam_and_their_scores(command, task):
    options = {"size": 4, "length_penalty": 0.8, "n_best": 3}
    typed = ["--beam", "4", "--length-penalty", "0.8", "--n-best", "3"]
    (best,) = beam_search(task.model, task.read(["3 1 2"]), max_length=task.max_length, **options)
    decode = task.data.target_tokenizer.decode
    lines = [f"{decode(one.tokens)}\t{one.score:.4f}\n" for one in best]
    assert command("--source", " 3 1 2 ", *typed) == (0, "".join(lines), "")
    assert any(one.score != one.log_prob for one in best)


def test_several_sources_each_with_its_drawing_and_what_training_never_showed(command, tmp_path):
    folder = tmp_path / "figures" / "generated"
    code, out, err = command("--source", "3 77 1", "--source", "4", "--show")
    assert code == 0
    assert err == "ablate: 1 token(s) of --source never occurred in training\n"
    first, one, second, two = out.splitlines()
    assert [one, two] == [str(folder / number / "alignment.png") for number in "12"]
    assert drawn(Path(one))
    assert command("--source", "3 77 1")[1] == f"{first}\n"
    shown = command("--source", "4", "--show")[1].splitlines()
    assert shown == [second, str(folder / "alignment.png")]


def test_a_file_is_written_line_by_line(command, task, tmp_path, monkeypatch):
    """Whatever lines share a batch, and with empty ones in between."""
    lines = ["3 1 2", "", "4", " 0 1 ", "2 2 2 2", "1 0", "   "]
    source, target = tmp_path / "in.txt", tmp_path / "out.txt"
    source.write_text("\n".join(lines) + "\n")
    monkeypatch.setattr(translate, "BATCH", 2)
    code, out, err = command("--input", source, "--output", target)
    assert (code, err) == (0, "")
    assert out == f"7 lines (2 of them empty): {target}\n"
    alone = [task.translate([line.strip()])[0] if line.strip() else "" for line in lines]
    assert target.read_text() == "".join(f"{line}\n" for line in alone)
    assert len({*alone}) > 2
    assert sorted(path.name for path in tmp_path.iterdir()) == ["in.txt", "out.txt"]


def test_what_files_may_look_like(command, task, tmp_path):
    """Gzip, a byte order mark, lines of Windows, a carriage return inside, a link to write to."""
    source, target = tmp_path / "in.txt.gz", tmp_path / "link"
    source.write_bytes(gzip.compress("\ufeff3 1 2\r\n\r\n1\r0 4".encode()))
    target.symlink_to("out.txt")
    assert command("--input", source, "--output", target)[0] == 0
    first, second = task.translate(["3 1 2"]) + task.translate(["1 0 4"])
    assert (tmp_path / "out.txt").read_text() == f"{first}\n\n{second}\n"
    assert target.is_symlink()


def test_a_stop_leaves_what_was_there(command, task, tmp_path, monkeypatch):
    source, target = tmp_path / "in.txt", tmp_path / "out.txt"
    source.write_text("1 2\n3\n")
    target.write_text("before\n")

    def stop(texts):
        raise KeyboardInterrupt

    monkeypatch.setattr(task, "translate", stop)
    code, _, err = command("--input", source, "--output", target)
    assert (code, err) == (130, "ablate: interrupted\n")
    assert target.read_text() == "before\n"
    assert sorted(path.name for path in tmp_path.iterdir()) == ["in.txt", "out.txt"]


MISTAKES = {
    "": "either --source TEXT, or --input FILE",
    "--source 1 --source": "--source: is empty: pass at least one character",
    "--input x": "--input FILE and --output FILE belong together",
    "--input x --output y": "--input=x: no such file",
    "--input IN --output PIPE": "--output PIPE is not a regular file",
    "--input IN --output y.gz": "output is plain text; choose a name without",
    "--input IN --output no/y": "--output no/y: no does not exist",
    "--input IN --output .": "--output . is a folder",
    "--input IN --output y --show": "--show goes with --source",
    "--source 1 --prompt The": "--prompt: ",
    "--sourc2 1": "did you mean '--source'?",
    "--source 1 --n-best 2": "--n-best 2 is more than --beam 1 finds",
    "--source 1 --length-penalty 0.5": "--length-penalty has no effect without a beam",
    "--source 1 --beam 2 --length-penalty -1": "must be a finite number of at least 0",
}


@pytest.mark.parametrize("arguments", MISTAKES)
def test_mistakes_get_one_line(command, tmp_path, monkeypatch, arguments):
    monkeypatch.chdir(tmp_path)
    Path("IN").write_text("1 2\n")
    os.mkfifo("PIPE")
    empty = [" "] if arguments.endswith("--source") else []
    code, out, err = command(*arguments.split(), *empty)
    assert (code, out, err.count("\n")) == (2, "", 1)
    assert err.startswith("ablate: ")
    assert MISTAKES[arguments] in err
    assert sorted(path.name for path in tmp_path.iterdir()) == ["IN", "PIPE"]
    assert Path("PIPE").is_fifo()
