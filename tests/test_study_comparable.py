"""What forbids to compare an arm with the baseline, and what is recorded for it."""

import os
import shutil
import subprocess
from dataclasses import replace
from pathlib import Path

import pytest
from make_study import BASE, arm, make_study

from ablate.study.analysis.collect import Run, collect
from ablate.study.analysis.comparable import objections
from ablate.training.record import CODE, code, provenance


def against(study):
    """(Arm, rule) -> reason."""
    found = objections(collect(study), "val/loss")
    return {(one.arm, one.rule): one.reason for one in found}


@pytest.mark.parametrize("origin", [{"dirty": True}, {"commit": None}], ids=["changed", "no git"])
def test_uncommitted_code_is_distinguished_by_its_source(tmp_path, origin):
    sources = {"baseline": {}, "a=1": {}, "a=2": {"source": "0123"}, "a=3": {"source": None}}
    arms = {name: arm(BASE, **origin, **source) for name, source in sources.items()}
    found = against(make_study(tmp_path / "s", arms))
    assert list(found) == [("a=2", "code"), ("a=3", "code")]
    assert "(source 0123)" in found["a=2", "code"]
    assert found["a=3", "code"] == "there is no record of its code"


@pytest.mark.parametrize("both", [False, True])
def test_runs_without_a_record_are_not_compared(tmp_path, both):
    study = make_study(tmp_path / "s", {"baseline": arm(BASE), "a=1": arm(BASE)})
    for file in study.glob("*/provenance.json" if both else "baseline-*/provenance.json"):
        file.unlink()
    assert list(against(study)) == [("a=1", "data"), ("a=1", "code")]
    assert "no record of" in against(study)["a=1", "data"]


@pytest.mark.parametrize(
    ("other", "refused"),
    [
        ({"tokens": 2048}, True),  # batches or windows of another size, accumulated gradients
        ({"tokens": 1100}, True),
        ({"tokens": 1034}, False),  # processes that share texts count their own ones
        ({"seconds": 91.7}, False),
        ({"steps": 800}, True),
        ({"steps": 200, "tokens": 2048}, True),
        ({"parameters": 900_000}, False),  # nothing was matched
    ],
)
def test_what_training_reads_is_a_budget(tmp_path, other, refused):
    arms = {"baseline": arm(BASE), "a=1": arm(BASE, **other)}
    found = against(make_study(tmp_path / "s", arms))
    assert list(found) == [("a=1", "budget")] * refused
    if other == {"tokens": 2048}:
        reason = "819,200 tokens in training, +100.0% of the baseline's 409,600"
        assert found["a=1", "budget"] == reason


@pytest.mark.skipif(shutil.which("git") is None, reason="git is not installed")
def test_the_record_of_the_code(tmp_path, monkeypatch):
    package = tmp_path / "package"
    file = package / "part" / "one.py"
    file.parent.mkdir(parents=True)
    file.write_text("a = 1")
    assert code(package)["git"] is None
    for command in ("init", "add .", "-c user.name=x -c user.email=x@y.z commit -m first"):
        subprocess.run(["git", *command.split()], cwd=tmp_path, check=True, capture_output=True)
    (tmp_path / "notes.txt").write_text("of the person, and results")
    (file.parent / ".#one.py").symlink_to("nobody@nowhere")  # an editor's mark, ignored by most
    (tmp_path / ".gitignore").write_text(".#*")
    clean = code(package)
    assert (len(clean["git"]["commit"]), clean["git"]["dirty"]) == (40, False)

    found = [clean]
    for number in (2, 3, 1):
        file.write_text(f"a = {number}")
        if number == 1:
            (package / "two.py").touch()
        found.append(code(package))
    assert [one["git"] for one in found[1:]] == [clean["git"] | {"dirty": True}] * 3
    assert len({one["source"] for one in found}) == 4
    (package / "two.py").unlink()
    monkeypatch.setenv("PATH", os.devnull)
    assert code(package) == {"git": None, "source": clean["source"]}


def test_a_run_records_the_code_that_its_process_has_read():
    assert provenance("of some data").items() >= CODE.items()
    assert len(CODE["source"]) == 16


def test_only_a_finished_run_has_a_value():
    run = Run("a", 0, "x", Path(), (), "failed", "", {"metrics": {"val/loss": 1.0}}, {})
    assert run.value("val/loss") is None
    assert replace(run, state="finished").value("val/loss") == 1
