"""Nothing is read or written outside the folder that a command names."""

import json
import shutil
from pathlib import Path

import pytest
from command_line import ablate_command, fail, runs, seen  # noqa: F401
from make_study import ADDITIVE, BASE, arm, make_study, shifted
from refusals import refusal, refused
from ways import WAYS, called

import ablate
from ablate import diff, evaluate, export, report
from ablate.run_files import CorruptFile
from ablate.study.launch.locks import RunLock
from ablate.study.plan import planfile

pytest_plugins = ["ways"]
SECRET = "what nobody should see"
OF_RUNS = WAYS | {
    "predictions": lambda folder, whole: called(evaluate.main, folder, "--predictions"),
    "export": lambda folder, whole: called(export.main, folder, folder.parent / "out"),
    "diff": lambda folder, whole: called(diff.main, folder, whole),
    "table": lambda folder, whole: called(report.main, folder.parent),
    "wandb": lambda folder, whole: called(report.main, folder, "--wandb"),
}
# Beside those that the tiny run leaves.
MORE_OF_RUNS = ("wandb", "tensorboard", "audio", "train.log", "stdout.log", "sample.txt")
OF_STUDIES = {
    "report": lambda folder: called(report.main, folder),
    "examples": lambda folder: called(report.main, folder, "--examples"),
    "status": lambda folder: called(report.main, folder, "--status"),
    "wandb": lambda folder: called(report.main, folder, "--wandb"),
    "load_study": ablate.load_study,
    "same command": lambda folder: planfile.refuse_other(folder, {}, {}),
}


@pytest.fixture(scope="module")
def whole(whole):
    called(evaluate.main, whole, "--predictions")
    return whole


@pytest.fixture
def outside(tmp_path):
    """A folder of somebody else, which is still as it was at the end."""
    folder = tmp_path / "outside"
    folder.mkdir()
    (folder / "private").write_text(SECRET)
    yield folder
    assert [path.name for path in folder.iterdir()] == ["private"]
    assert (folder / "private").read_text() == SECRET


def replaced(path: Path, outside: Path) -> None:
    """Put a link in the place of a file or folder; without one, of a file."""
    target = outside if path.is_dir() or not path.suffix else outside / "private"
    if path.is_dir():
        shutil.rmtree(path)
    path.unlink(missing_ok=True)
    path.parent.mkdir(exist_ok=True)
    path.symlink_to(target)


def every(folder):
    """The files and folders that a run or study has, by their names in it."""
    return sorted(path.relative_to(folder) for path in folder.rglob("*"))


@pytest.mark.ci
@pytest.mark.parametrize("way", OF_RUNS)
def test_no_link_in_the_folder_of_a_run_is_followed(whole, tmp_path, outside, way):
    named = [*every(whole), *MORE_OF_RUNS]
    for name in named if way == "load" else named[:: len(named) // 4]:
        folder = tmp_path / "runs" / "run"
        shutil.copytree(whole, folder)
        replaced(folder / name, outside)
        with refused(f"{folder / name} is a link to {outside}"):
            OF_RUNS[way](folder, whole)
        shutil.rmtree(folder)


@pytest.mark.parametrize("way", OF_STUDIES)
def test_no_link_in_the_folder_of_a_study_is_followed(tmp_path, outside, capsys, way):
    whole = make_study(tmp_path / "whole", {"baseline": arm(BASE), ADDITIVE: arm(shifted(0.1))})
    run = next(whole.glob("baseline-*")).name
    of_run = (f"{run}/{name}" for name in ("result.json", "sample.txt", "figures", "checkpoints"))
    named = ["plan.json", "figures", "report.html", "wandb.json", "old", run, *of_run]
    for name in named[:6] if way == "same command" else named:
        study = shutil.copytree(whole, tmp_path / "study")
        replaced(study / name, outside)
        with refused(f"{study / name} is a link to {outside}"):
            OF_STUDIES[way](study)
        shutil.rmtree(study)
    assert SECRET not in capsys.readouterr().out


def test_a_launcher_writes_through_no_link(tmp_path, outside):
    (tmp_path / "run").mkdir()
    (tmp_path / "run" / ".claim").symlink_to(outside / "made")
    with refused(".claim is a link"):
        RunLock.take(tmp_path / "run", launcher="local")


@pytest.mark.ci
@pytest.mark.parametrize(
    "flags", [(), ("-m", "hydra/sweeper=basic", "seed=0,1"), ("-m", "seed=0,1")]
)
def test_the_command_line_writes_through_no_link(ablate_command, tmp_path, outside, flags):  # noqa: F811
    place = tmp_path / "mine"
    place.mkdir()
    for name in ("train.log", "multirun.yaml", "figures"):
        (place / name).symlink_to(outside / "private")
        where = "hydra.sweep.dir" if flags else "hydra.run.dir"
        refusal(ablate_command(f"{where}={place}", *flags), f"{place / name} is a link to")
        (place / name).unlink()


@pytest.mark.ci
def test_links_that_stay_inside_and_a_folder_that_is_reached_by_one(whole, tmp_path):
    """As those of W&B, and outputs/ that leads to another disk."""
    folder = shutil.copytree(whole, tmp_path / "run")
    (folder / "wandb").mkdir()
    (folder / "wandb" / "debug.log").symlink_to("/nowhere")  # in its cache
    (folder / "latest").symlink_to("checkpoints")
    (folder / ".#config.yaml").symlink_to("me@here.1")  # of Emacs
    (tmp_path / "named").symlink_to(folder)
    assert ablate.load(tmp_path / "named").result["status"] == "finished"


# Paths that a plan names

PLACES = ("../run", "/tmp/run", ".", "", "a/../../run", "\0", "x" * 5000)


@pytest.mark.parametrize("way", [way for way in OF_STUDIES if way != "same command"])
@pytest.mark.parametrize("where", ["cells", "blocks"])
def test_no_path_of_a_plan_leads_out_of_the_study(tmp_path, where, way):
    study = make_study(tmp_path / "study", {"baseline": arm(BASE), ADDITIVE: arm(shifted(0.1))})
    shutil.copytree(study, tmp_path / "run")
    plan = json.loads((study / "plan.json").read_text())
    for name in PLACES:
        if where == "cells":
            plan["cells"][0]["folder"] = name
        else:
            of = {block: {"folder": name} for block in ("a", "b")}
            plan["blocks"] = {"factor": "data", "seeds": [0], "of": of}
        (study / "plan.json").write_text(json.dumps(plan))
        with refused(f"{study}/plan.json cannot be read", "a folder in the study", by=CorruptFile):
            OF_STUDIES[way](study)
    assert not (tmp_path / "run" / "report.html").exists()
