"""Control characters of what others wrote do not reach the terminal."""

import io
import json
import logging
import os
import re
import sys
from logging.config import DictConfigurator
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


# What a run prints before its first step: one line about itself, and nothing of other packages

# Fewer steps than the default interval of logging, to a logger: Lightning would warn.
SHORT = ["trainer.max_steps=5", "trainer.val_check_interval=5", "trainer.log_every_n_steps=10"]


def test_the_first_run_on_a_machine_prints_our_lines_alone(tmp_path, monkeypatch):
    """Where matplotlib has no font cache yet, and the output goes to a file."""
    chosen = ["model.attention=additive", "pos_enc=learned"]
    home = tmp_path / "home"
    home.mkdir()
    for name in [one for one in os.environ if one.startswith(("WANDB_", "XDG_", "MPL"))]:
        monkeypatch.delenv(name)
    own = {"HOME": str(home), "MPLCONFIGDIR": str(home / "mpl"), "NETRC": "/nowhere"}
    typed = [*chosen, *overrides(tmp_path, *SHORT, "logger=wandb"), "output_dir=outputs"]
    done = in_a_process("-m", "ablate", *typed, folder=tmp_path, **own)
    assert (done.returncode, done.stderr) == (0, "")
    assert list((home / "mpl").glob("fontlist*")), "matplotlib had nothing to announce"
    (folder,) = (tmp_path / "outputs" / "runs").iterdir()
    first, second = done.stdout.splitlines()[:2]
    assert re.fullmatch(
        r"gpt: [\d,]+ parameters \| text: [\d,]+ training tokens \| cpu, 1 thread \| (\S+)", first
    )
    assert first.endswith(f"| {folder.relative_to(tmp_path)}")
    assert second.startswith("step 5/5: ")
    assert done.stdout.splitlines()[-1].startswith("  python -m ablate ")
    assert "python -m ablate.generate" in done.stdout
    assert "leaked" not in done.stdout
    result = json.loads((folder / "result.json").read_text())
    assert result["choices"].items() >= dict(one.split("=") for one in chosen).items()
    assert set(result["kernels"].values()) == {"chunked (fused)"}
    assert "train/loss" in (folder / "metrics.csv").read_text()
    assert not (folder / "train.log").exists()  # else it would be empty


def test_a_resumed_run_says_it_again(tmp_path, capsys):
    cfg = ablate.compose(*overrides(tmp_path))

    def headlines() -> list[str]:
        ablate.run(cfg)
        return [s for s in capsys.readouterr().out.splitlines() if " parameters | " in s]

    (line,) = headlines()
    result = Composition(cfg).folder / "result.json"
    total = json.loads(result.read_text())["parameters"]["total"]
    assert line.startswith(f"gpt: {total:,} parameters | text: ")
    assert line.endswith(str(Composition(cfg).folder))
    assert headlines() == []  # it is finished
    result.unlink()
    assert headlines() == [line]
