"""Output whose reader leaves, as in `ablate --help | head -3`: quiet, and nothing is lost."""

import json
import os
import subprocess
import sys
from pathlib import Path

import pytest
from tiny import overrides

from ablate.terminal import pipe

AROUND = os.environ | {"PYTHONPATH": str(Path(pipe.__file__).parents[2])}


def unread(*line, folder, both=False, options=()):
    """`python OPTIONS -m LINE`, whose output nobody reads; `both`: its errors neither."""
    reader, writer = os.pipe()
    os.close(reader)
    errors = writer if both else subprocess.PIPE
    line = [sys.executable, *options, "-m", *line]
    done = subprocess.run(line, stdout=writer, stderr=errors, text=True, cwd=folder, env=AROUND)
    os.close(writer)
    return done.returncode, done.stderr or ""


@pytest.mark.parametrize("both", [False, True])
def test_an_answer_that_nobody_reads_ends_quietly_and_a_refusal_stays_one(tmp_path, both):
    options = () if both else ("-u",)
    assert unread("ablate", "--help", folder=tmp_path, both=both, options=options) == (141, "")
    code, errors = unread("ablate", "seed=x", folder=tmp_path, both=both)
    assert (code, errors.count("\n")) == (2, 0 if both else 1)
    assert not list(tmp_path.iterdir())


@pytest.mark.parametrize(("trains", "code"), [(False, 141), (True, 0)])
def test_a_broken_pipe_is_told_to_the_shell_but_by_a_training(monkeypatch, trains, code):
    monkeypatch.setattr(pipe.Output, "unread", True)
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


def test_a_closed_output_is_no_mistake(tmp_path):
    """`ablate --help >&-`"""
    line = f"{sys.executable} -m ablate --help >&-"
    done = subprocess.run(line, shell=True, cwd=tmp_path, env=AROUND, capture_output=True)
    assert (done.returncode, done.stderr) == (0, b"")
