"""study.rerun=all repeats every run once, whoever else is at it and however often it is killed."""

import fcntl
import json
import time
from dataclasses import replace
from types import SimpleNamespace
from unittest.mock import Mock

import pytest
from filelock import FileLock
from omegaconf import OmegaConf

from ablate.errors import Interrupted
from ablate.study.launch.locks import RunLock
from ablate.study.launch.run import ScheduledRun
from ablate.study.launch.running import (
    MOVED,
    SINCE,
    end_rerun,
    launch,
    move_aside,
    selected,
)
from ablate.study.launch.state import CLAIM, RESUMES, held, state
from ablate.study.plan.planned_run import PlannedRun, Resolved

ALL = ["a", "b", "c"]
TICK = 0.02  # seconds; clocks of file systems stand still for a while


def cells(names=ALL, kind="run"):
    return [PlannedRun(name, 0, name, name, kind, overrides=(name,)) for name in names]


def write(folder, **content):
    time.sleep(TICK)
    folder.mkdir(exist_ok=True)
    result = {"status": "finished", "run_id": folder.name} | content
    (folder / "result.json").write_text(json.dumps(result))


class Launcher:
    """Finishes at once what it is given; those named in `fails` fail. Stops before `stops_at`."""

    def __init__(self, study, *, stops_at=None, fails=()):
        self.study, self.stops_at, self.fails, self.trained = study, stops_at, fails, []

    def launch(self, jobs, initial_job_idx):
        for name, *_ in jobs:
            if name == self.stops_at:
                raise Interrupted("killed")
            self.trained.append(name)
            write(self.study / name, status="failed" if name in self.fails else "finished")
        return []


def trained(study, rerun, planned=None, **own):
    """What a command runs."""
    launcher = Launcher(study, **own)
    try:
        wanted = planned or cells()
        if launch(launcher, wanted, study, rerun) is None and wanted[0].kind == "run":
            end_rerun(wanted, study)
    except Interrupted:
        assert own["stops_at"]
    return launcher.trained


def test_folders_of_runs_are_those_that_a_branch_looks_for(tmp_path):
    """study/launch/run.py compares them with paths without "..", as of output_dir=../outputs."""
    found = []
    launcher = SimpleNamespace(train=found.extend)
    launch(launcher, cells(), tmp_path / "a" / ".." / "s", "missing")
    assert {run.folder.parent for run in found} == {tmp_path / "s"}


def test_a_finished_run_is_measured_under_a_new_condition(study):
    long = {"long": {"data.seq_len": 8}}
    wanted = [replace(each, resolved=Resolved(OmegaConf.create({"evaluate": long})))
              for each in cells()]  # fmt: skip
    write(study / ALL[0])
    write(study / ALL[1], evaluated=long)
    write(study / ALL[2], not_evaluated={"long": "too long"})
    assert [run.folder for run in selected(wanted, study, "missing")] == [ALL[0], *ALL[3:]]
    done = [ScheduledRun(study / run.folder, run).is_done(state(study / run.folder))
            for run in wanted[:3]]  # fmt: skip
    assert done == [False, True, True]


def moved(study):
    """Names of the runs that every `all` has moved aside."""
    places = sorted((study / MOVED).iterdir()) if (study / MOVED).exists() else []
    return [sorted(run.name for run in place.iterdir()) for place in places]


@pytest.fixture
def study(tmp_path):
    """One of its runs was stopped halfway, which begins anew."""
    for name in ALL:
        write(tmp_path / name, was="old")
    write(tmp_path / "a", status="failed", error=f"stopped after step 7; {RESUMES} from there")
    return tmp_path


def test_all_is_everything_each_time(study):
    assert [trained(study, rerun) for rerun in ("all", "missing", "all")] == [ALL, [], ALL]
    assert moved(study) == [ALL, ALL]
    assert not (study / SINCE).exists()
    assert not list(study.rglob("queued.json"))


def test_what_failed_alone(study):
    """Not what was stopped, nor what has not begun."""
    write(study / "b", status="failed", error="nan")
    assert trained(study, "failed", cells([*ALL, "new"])) == ["b"]
    assert trained(study, "missing", cells([*ALL, "new"])) == ["a", "new"]


def test_everything_that_was_killed_resumes(study, capsys):
    assert trained(study, "all", stops_at="b") == ["a"]
    assert capsys.readouterr().out == ""
    assert trained(study, "all", stops_at="c") == ["b"]
    assert "study.rerun=all continues: 1 of 3 runs are done" in capsys.readouterr().out
    assert trained(study, "all") == ["c"]
    assert moved(study) == [ALL]
    assert trained(study, "all") == ALL


def test_all_that_was_killed_while_it_moved_runs_moves_the_rest(study, monkeypatch):
    with monkeypatch.context() as patch:
        patch.setattr(RunLock, "release", Mock(side_effect=Interrupted("killed")))
        with pytest.raises(Interrupted):
            move_aside(study, ALL)
    assert moved(study) == [["a"]]
    assert trained(study, "all") == ALL
    assert moved(study) == [ALL]


def test_all_that_was_killed_after_its_tuning_keeps_that(study):
    tuning = cells(("t", "u"), kind="tune")
    for cell in tuning:
        write(study / cell.folder)
    assert trained(study, "all", tuning) == ["t", "u"]
    assert trained(study, "all", stops_at="c") == ["a", "b"]
    assert trained(study, "all", tuning) == []
    assert trained(study, "all") == ["c"]
    assert trained(study, "all", tuning) == ["t", "u"]


@pytest.mark.parametrize("rerun", ["all", "missing"])
def test_a_command_that_comes_to_its_end_ends_all(study, rerun):
    """Also where another command did the rest; where a run failed, the same command repeats it."""
    assert [run.folder for run in selected(cells(), study, "all")] == ALL  # as in a dry run
    assert trained(study, "all", stops_at="b") == ["a"]
    assert [run.folder for run in selected(cells(), study, "all")] == ["b", "c"]
    assert trained(study, rerun, fails="c") == ["b", "c"]
    assert trained(study, "all") == ["c"]
    assert trained(study, "all") == ALL


def test_another_command_joins_all_instead_of_beginning_it_anew(study):
    class Joined(Launcher):
        def launch(self, jobs, initial_job_idx):
            super().launch(jobs[:2], 0)
            move_aside(study, ALL)
            assert [cell.folder for cell in selected(cells(), study, "missing")] == ["c"]
            super().launch(jobs[2:], 0)

    launch(Joined(study), cells(), study, "all")
    assert moved(study) == [ALL]
    assert trained(study, "missing") == []


def test_a_run_that_somebody_has_stays(study):
    """Such as one between its failure and its retry, or one that is trained by hand."""
    write(study / "a", status="failed", error="it will be tried again")
    claim = RunLock.take(study / "a", launcher="local")
    write(study / "b", status="running")
    with FileLock(study / "b" / ".lock"):
        move_aside(study, ALL)
        assert moved(study) == [["c"]]
        assert [state(study / name).name for name in "ab"] == ["queued", "running"]
    claim.release()
    move_aside(study, ALL)
    assert moved(study) == [ALL]


def test_a_folder_that_is_moved_while_it_is_claimed_is_claimed_anew(study, monkeypatch):
    lock = fcntl.flock

    def late(descriptor, how):
        monkeypatch.setattr(fcntl, "flock", lock)
        (study / "a").rename(study / "elsewhere")
        lock(descriptor, how)

    monkeypatch.setattr(fcntl, "flock", late)
    claim = RunLock.take(study / "a", launcher="local")
    assert [held(study / name / CLAIM) for name in ("a", "elsewhere")] == [True, False]
    claim.release()
