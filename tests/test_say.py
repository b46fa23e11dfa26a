"""What is printed: our lines alone, no control character of others, quiet where nobody reads."""

import io
import json
import logging
import os
import re
import subprocess
import sys
from logging.config import DictConfigurator
from pathlib import Path
from unittest.mock import Mock

import pytest
import yaml
from make_study import scores
from rich.table import Table
from rich.text import Text
from tiny import in_a_process, overrides
from ways import called

import ablate
from ablate import report
from ablate.cli.command import command
from ablate.config.composition import Composition
from ablate.config.tree import config_dir
from ablate.errors import UserError
from ablate.machine.terminal import pipe
from ablate.machine.terminal.console import Console
from ablate.machine.terminal.say import printable, put

pytest_plugins = ["make_study"]
HOSTILE = "a\x1b[2Jb\x07\x9b31m\r\x7f\udce9"
SHOWN = r"a\x1b[2Jb\x07\x9b31m\r\x7f\udce9"


def test_control_characters_are_written_as_python_does():
    assert printable(HOSTILE) == SHOWN
    for text in ("a line\nand a\ttab", "x ≤ y, naïve, 日本", ""):
        assert printable(text) == text


@pytest.mark.parametrize("error", [UserError(HOSTILE), ValueError(HOSTILE)])
def test_errors(error, capsys):
    with pytest.raises(SystemExit):
        command(Mock(side_effect=error))
    told = capsys.readouterr().err
    assert r"a\x1b[2Jb\x07\x9b31m" in told
    assert told.replace("\n", "").isprintable()


@pytest.mark.parametrize("what", ["line", "text", "table", "markup"])
def test_tables_and_lines(what):
    console = Console(file=io.StringIO(), force_terminal=True, width=80, highlight=False)
    table = Table(title=HOSTILE)
    table.add_column(HOSTILE)
    table.add_row(HOSTILE, style="bold")
    shown = {"line": HOSTILE, "text": Text(HOSTILE, "red"), "markup": f"[red]{HOSTILE}"}
    console.print(shown.get(what, table), style="green", markup=what == "markup")
    told = console.file.getvalue()
    assert "\x1b[2J" not in told
    assert not set(told) & set("\x07\x9b\r\x7f")
    assert r"a\x1b[2Jb" in told
    assert "\x1b[" in told  # the styles of the console itself


def test_what_is_logged():
    logging_of = yaml.safe_load((config_dir() / "config.yaml").read_text())["hydra"]["job_logging"]
    record = logging.makeLogRecord({"msg": "%s", "args": (HOSTILE,)})
    for formatter in logging_of["formatters"].values():
        made = DictConfigurator({}).configure_formatter(formatter)
        assert made.format(record).endswith(SHOWN)


def test_output_is_escaped_on_a_terminal_alone(monkeypatch, capsys):
    put("a\x1bb")
    assert capsys.readouterr().out == "a\x1bb\n"
    monkeypatch.setattr(sys.stdout, "isatty", lambda: True)
    put("a\x1bb")
    assert capsys.readouterr().out == "a\\x1bb\n"


def test_a_strangers_study(tmp_path, monkeypatch, capsys):
    study = scores(tmp_path)
    plan = study / "plan.json"
    plan.write_text(plan.read_text().replace("model.attention=general", r"\u001b[2Jgeneral"))
    failed = next(iter(study.glob("*/result.json")))
    failed.write_text('{"status": "failed", "error": "\\u001b[2J"}')
    monkeypatch.setenv("COLUMNS", "200")
    called(report.main, study, "--status")
    told = capsys.readouterr()
    assert r"\x1b[2J" in told.out
    assert "\x1b" not in told.out + told.err


@pytest.mark.ci
@pytest.mark.usefixtures("no_pdf")
@pytest.mark.parametrize("columns", [None, "80", "100"])
def test_no_cell_of_a_table_is_cut_off(columns, tmp_path, monkeypatch, capsys):
    """In a narrow terminal cells are wrapped; a pipe has no width."""
    monkeypatch.delenv("COLUMNS", raising=False)
    if columns:
        monkeypatch.setenv("COLUMNS", columns)
    called(report.main, scores(tmp_path))
    rows = [line for line in capsys.readouterr().out.splitlines() if line.startswith("│")]
    assert [line for line in rows if not line.endswith("│")] == []
    assert columns or any("seed 3 failed, seed 4 not run" in line for line in rows)


# What a run prints before its first step: one line about itself, and nothing of other packages

# Fewer steps than the default interval of logging, to a logger: Lightning would warn.
SHORT = ["trainer.max_steps=5", "trainer.val_check_interval=5", "trainer.log_every_n_steps=10"]


@pytest.mark.slow  # which is that of CI
def test_the_first_run_on_a_machine_prints_our_lines_alone(tmp_path, monkeypatch):
    """Where matplotlib has no font cache yet, and the output goes to a file."""
    for name in [one for one in os.environ if one.startswith(("WANDB_", "XDG_", "MPL"))]:
        monkeypatch.delenv(name)
    fonts = tmp_path / "fonts"
    own = {"HOME": str(tmp_path), "MPLCONFIGDIR": str(fonts), "NETRC": "/nowhere"}
    typed = [*overrides(tmp_path, *SHORT, "logger=wandb"), "model.attention=additive"]
    done = in_a_process("-m", "ablate", *typed, "output_dir=outputs", folder=tmp_path, **own)
    assert (done.returncode, done.stderr) == (0, "")
    assert list(fonts.glob("fontlist*")), "matplotlib had nothing to announce"
    (folder,) = (tmp_path / "outputs" / "runs").iterdir()
    first, second, *_, last = done.stdout.splitlines()
    assert re.fullmatch(
        r"gpt: [\d,]+ parameters \| text: [\d,]+ training tokens \| cpu, 1 thread \| (\S+)", first
    )
    assert first.endswith(f"| {folder.relative_to(tmp_path)}")
    assert second.startswith("step 5/5: ")
    assert last.startswith("  python -m ablate ")
    assert "python -m ablate.generate" in done.stdout
    assert "leaked" not in done.stdout
    result = json.loads((folder / "result.json").read_text())
    assert result["choices"]["model.attention"] == "additive"
    assert set(result["kernels"].values()) == {"chunked (fused)"}
    assert "train/loss" in (folder / "metrics.csv").read_text()
    assert not (folder / "train.log").exists()  # else it would be empty


def test_a_resumed_run_says_it_again(tmp_path, capsys):
    cfg = ablate.compose(*overrides(tmp_path, *SHORT))
    result = Composition(cfg).folder / "result.json"

    def headlines() -> list[str]:
        ablate.run(cfg)
        return [s for s in capsys.readouterr().out.splitlines() if " parameters | " in s]

    (line,) = headlines()
    total = json.loads(result.read_text())["parameters"]["total"]
    assert line.startswith(f"gpt: {total:,} parameters | text: ")
    assert headlines() == []  # it is finished
    result.unlink()
    assert headlines() == [line]


# Output whose reader leaves, as in `ablate --help | head -3`: quiet, and nothing is lost


AROUND = os.environ | {"PYTHONPATH": str(Path(pipe.__file__).parents[3]), "PYTHONUNBUFFERED": ""}


def unread(*line, folder, both=False, options=()):
    """`python OPTIONS -m LINE`, whose output nobody reads; `both`: its errors neither."""
    reader, writer = os.pipe()
    os.close(reader)
    errors = writer if both else subprocess.PIPE
    line = [sys.executable, *options, "-m", *line]
    done = subprocess.run(line, stdout=writer, stderr=errors, text=True, cwd=folder, env=AROUND)
    os.close(writer)
    return done.returncode, done.stderr or ""


@pytest.mark.ci
@pytest.mark.parametrize("both", [False, True])
def test_an_answer_that_nobody_reads_ends_quietly_and_a_refusal_stays_one(tmp_path, both):
    options = () if both else ("-u",)
    assert unread("ablate", "--help", folder=tmp_path, both=both, options=options) == (141, "")
    code, errors = unread("ablate", "seed=x", folder=tmp_path, both=both)
    assert (code, errors.count("\n")) == (2, 0 if both else 1)
    assert not list(tmp_path.iterdir())


@pytest.mark.parametrize(("trains", "code"), [(False, 141), (True, 0)])
def test_a_broken_pipe_is_told_to_the_shell_but_by_a_training(monkeypatch, trains, code):
    monkeypatch.setattr(pipe.Output, "lost", BrokenPipeError())
    monkeypatch.setattr(pipe.Output, "trains", trains)
    assert (pipe.exit_code(0), pipe.exit_code(2)) == (code, 2)


@pytest.mark.slow
@pytest.mark.parametrize("both", [False, True])
def test_training_continues_unread(both, tmp_path):
    code, errors = unread("ablate", *overrides(tmp_path), folder=tmp_path, both=both)
    told = [line for line in errors.splitlines() if "pipe is closed" in line]
    assert told == ["ablate: the output pipe is closed; training continues"] * (not both)
    assert not any(word in errors for word in ("Traceback", "BrokenPipe"))
    (result,) = tmp_path.glob("outputs/runs/*/result.json")
    assert (code, json.loads(result.read_text())["status"]) == (0, "finished")


def in_a_shell(line, folder):
    """`python LINE`: exit code, and what it printed."""
    line = f"{sys.executable} {line}"
    done = subprocess.run(line, shell=True, cwd=folder, env=AROUND, capture_output=True, text=True)
    return done.returncode, done.stdout, done.stderr


@pytest.mark.ci
def test_a_closed_output_is_no_mistake(tmp_path):
    """`ablate --help >&-`; the next files do not get its number, and with it what is printed."""
    assert in_a_shell("-m ablate --help >&-", tmp_path) == (0, "", "")
    said = "import os; os.write(2, b'from C'); print('x', file=sys.stderr); "
    code = f"import sys; from ablate.machine.terminal.pipe import *; survive_readers(); {said}"
    code += "file = open('numbers', 'w'); print(file.fileno(), sys.stdin.read(), file=file)"
    assert in_a_shell(f'-c "{code}" <&- >&- 2>&-', tmp_path) == (0, "", "")
    assert (tmp_path / "numbers").read_text() == "3 \n"


FULL = "the output cannot be written (No space left on device)"


@pytest.mark.ci
@pytest.mark.skipif(not os.path.exists("/dev/full"), reason="a device of Linux")
def test_an_output_that_is_full(tmp_path):
    assert in_a_shell("-m ablate --help >/dev/full", tmp_path) == (1, "", f"ablate: {FULL}\n")
    assert in_a_shell("-m ablate seed=x 2>/dev/full", tmp_path) == (2, "", "")
    trains = "import sys; from ablate.machine.terminal.pipe import *; survive_readers(); "
    trains += "Output.trains = True; print(1, flush=True); print(2); sys.exit(exit_code(0))"
    told = f"ablate: {FULL}; training continues\n"
    assert in_a_shell(f'-c "{trains}" >/dev/full', tmp_path) == (0, "", told)
    alone = trains.replace("flush=True", "file=sys.stderr")  # cannot be told
    assert in_a_shell(f'-c "{alone}" 2>/dev/full', tmp_path) == (0, "2\n", "")
