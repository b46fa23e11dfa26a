"""The built wheel works by itself, from any folder: conf/ and sweeps/ are inside."""

import json
import re
import subprocess
import sys
from pathlib import Path
from textwrap import dedent

import pytest
from tiny import in_a_process, overrides

pytestmark = pytest.mark.ci
ROOT = Path(__file__).parents[1]


@pytest.fixture(scope="module")
def site(tmp_path_factory):
    """A folder with nothing but the unpacked wheel; the packages it needs come from here."""
    folder = tmp_path_factory.mktemp("wheel")
    pip = [sys.executable, "-m", "pip", "-q", "--disable-pip-version-check"]
    wheels = ["--no-deps", "--no-build-isolation", "-w", str(folder), str(ROOT)]
    subprocess.run([*pip, "wheel", *wheels], check=True, cwd=folder)
    (wheel,) = folder.glob("*.whl")
    target = folder / "site"
    install = ["--no-deps", "--no-compile", "--target", str(target), str(wheel)]
    subprocess.run([*pip, "install", *install], check=True, cwd=folder)
    return target


FORMS = ("python -m ablate", "ablate")


def ablate(site, folder, *arguments, form=FORMS[0], refused=False):
    """What the wheel's command says, as a module of Python or as it is installed."""
    start = ["-m", "ablate"] if form == FORMS[0] else [site / "bin" / "ablate"]
    done = in_a_process(*start, *arguments, folder=folder, PYTHONPATH=str(site))
    assert done.returncode == (2 if refused else 0), done.stderr
    return done.stderr if refused else done.stdout


def test_the_wheel_holds_every_option(site):
    for top, inside in (("conf", "conf"), ("sweeps", "conf/sweep")):
        for path in (ROOT / top).rglob("*.yaml"):
            assert (site / "ablate" / inside / path.relative_to(ROOT / top)).exists(), path
    for path in (*(ROOT / "src").rglob("*.yaml"), *(ROOT / "src").rglob("templates/*")):
        assert (site / path.relative_to(ROOT / "src")).exists(), path


@pytest.mark.parametrize("form", FORMS)
def test_the_wheel_runs_from_any_folder(site, tmp_path, form):
    where = ("-c", "import ablate; print(ablate.__file__)")
    assert in_a_process(*where, PYTHONPATH=str(site)).stdout.startswith(str(site))
    assert "attention_scores" in ablate(site, tmp_path, "--help", form=form)
    assert re.fullmatch(r"ablate [0-9.]+\n", ablate(site, tmp_path, "--version", form=form))
    assert not list(tmp_path.iterdir())


def the_readmes_part(folder):
    """Writes the files of "Add a component"; returns the words after `python -m ablate`."""
    text = (ROOT / "README.md").read_text().split("## Add a component")[1].split("\n## ")[0]
    lines = [line for line in text.splitlines() if line.startswith("    ") or not line]
    block = dedent("\n".join(lines))
    *files, command = re.split(r"^(?=# my/|python -m ablate )", block, flags=re.MULTILINE)[1:]
    assert len(files) == 2
    for content in files:
        first, rest = content.split("\n", 1)
        path = folder / first.removeprefix("# ")
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(rest)
    return command.split()[3:]


@pytest.mark.slow
def test_the_readmes_part_of_a_persons_own(site, tmp_path):
    """It is found in the current folder; from another one, one line says where to go."""
    words = the_readmes_part(tmp_path)
    for number, form in enumerate(FORMS):
        out = ablate(site, tmp_path, *words, *overrides(tmp_path), f"seed={number}", form=form)
        assert "val/loss" in out
    run, _ = (tmp_path / "outputs" / "runs").iterdir()
    result = json.loads((run / "result.json").read_text())
    assert result["choices"]["model.attention"] == "l2"
    assert set(result["kernels"].values()) == {"chunked"}
    elsewhere = tmp_path / "elsewhere"
    elsewhere.mkdir()
    assert "--allow my.l2" in ablate(site, tmp_path, "show", run, refused=True)
    said = ablate(site, elsewhere, "show", run, "--allow", "my", refused=True)
    assert "my.l2.NegativeDistance" in said
    assert f"in the directory that contains my (the current one is {elsewhere})" in said
    assert ".png" in ablate(site, tmp_path, "show", run, "--allow", "my", form=FORMS[1])


@pytest.mark.slow
def test_processes_that_a_command_starts_find_the_part_too(site, tmp_path):
    words = [*the_readmes_part(tmp_path), *overrides(tmp_path)]
    two = ["trainer=ddp", "trainer.accelerator=cpu", "trainer.devices=2"]
    ablate(site, tmp_path, *words, *two, form=FORMS[1])
    ablate(site, tmp_path, "-m", *words, "seed=0,1", "study.name=seeds", form=FORMS[1])
    results = (tmp_path / "outputs").glob("*/*/result.json")
    assert [json.loads(one.read_text())["status"] for one in results] == ["finished"] * 3
