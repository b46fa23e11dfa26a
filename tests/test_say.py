"""Control characters of what others wrote do not reach the terminal."""

import io
import logging
import sys
from logging.config import DictConfigurator

import pytest
import yaml
from make_study import scores
from rich.table import Table
from rich.text import Text

from ablate import report
from ablate.cli.command import command
from ablate.config.tree import config_dir
from ablate.errors import UserError
from ablate.terminal.console import Console
from ablate.terminal.say import printable, put

HOSTILE = "a\x1b[2Jb\x07\x9b31m\r\x7f\udce9"
SHOWN = r"a\x1b[2Jb\x07\x9b31m\r\x7f\udce9"


def test_control_characters_are_written_as_python_does():
    assert printable(HOSTILE) == SHOWN
    for text in ("a line\nand a\ttab", "x ≤ y, naïve, 日本", ""):
        assert printable(text) == text


@pytest.mark.parametrize("error", [UserError(HOSTILE), ValueError(HOSTILE)])
def test_errors(error, capsys):
    def main() -> None:
        raise error

    with pytest.raises(SystemExit):
        command(main)
    told = capsys.readouterr().err
    assert r"a\x1b[2Jb\x07\x9b31m" in told
    assert told.replace("\n", "").isprintable()


@pytest.mark.parametrize("what", ["line", "text", "table", "title", "markup"])
def test_tables_and_lines(what):
    console = Console(file=io.StringIO(), force_terminal=True, width=80, highlight=False)
    table = Table(title=HOSTILE if what == "title" else None)
    table.add_column(HOSTILE)
    table.add_row(HOSTILE, style="bold")
    shown = {"line": HOSTILE, "text": Text(HOSTILE, "red"), "markup": f"[red]{HOSTILE}"}
    console.print(shown.get(what, table), style="green", markup=what == "markup")
    assert isinstance(console.file, io.StringIO)
    told = console.file.getvalue()
    assert "\x1b[2J" not in told
    assert not set(told) & set("\x07\x9b\r\x7f")
    assert r"a\x1b[2Jb" in told
    assert "\x1b[" in told  # the styles of the console itself


@pytest.mark.parametrize("name", ["console", "simple"])
def test_what_is_logged(name):
    logging_of = yaml.safe_load((config_dir() / "config.yaml").read_text())["hydra"]["job_logging"]
    made = DictConfigurator({}).configure_formatter(logging_of["formatters"][name])
    assert isinstance(made, logging.Formatter)
    assert made.format(logging.makeLogRecord({"msg": "%s", "args": (HOSTILE,)})).endswith(SHOWN)


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
    monkeypatch.setattr(sys, "argv", ["report", str(study), "--status"])
    report.main()
    told = capsys.readouterr()
    assert r"\x1b[2J" in told.out
    assert "\x1b" not in told.out + told.err
