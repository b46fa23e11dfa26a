"""What `import ablate` gives: its functions, whatever is imported, and nothing else in sight."""

import os
import pkgutil
import re
import subprocess
import tomllib
from importlib import import_module
from importlib.metadata import version
from itertools import chain
from pathlib import Path

import pytest
from packaging.requirements import Requirement
from packaging.utils import canonicalize_name
from packaging.version import Version
from tiny import in_a_process

import ablate
from ablate.version import NAME, checkout, described

PACKAGE = Path(ablate.__file__).parent


def test_the_functions_stay_whatever_is_imported():
    """No public name is a submodule too: importing that would put it where the function is."""
    names = {module.name for module in pkgutil.iter_modules(ablate.__path__)}
    assert names
    assert not names & {*ablate.__all__, "__version__"}
    homes = ("config.composition", "training.build", "training.load", "training.train")
    for name in (*names - {"__main__"}, *homes):
        import_module(f"ablate.{name}")
    assert all(callable(getattr(ablate, name)) for name in ablate.__all__)
    with pytest.raises(ModuleNotFoundError):
        import_module("ablate.build")
    with pytest.raises(AttributeError, match="no attribute 'nothing'"):
        _ = ablate.nothing


def test_dir_lists_what_a_person_uses_and_importing_it_is_quick():
    assert dir(ablate) == sorted([*ablate.__all__, "__version__"])
    names = "RunFailed UserError build compose load load_study run"
    assert set(ablate.__all__) == set(names.split())
    assert ablate.__version__ == version(NAME)
    code = "import sys, ablate; ablate.__version__; print({'torch', 'hydra'} & set(sys.modules))"
    assert in_a_process("-c", code).stdout == "set()\n"


def test_the_version_names_the_commit_of_its_own_checkout_alone(tmp_path):
    known = checkout(PACKAGE)
    if known is None:
        pytest.skip("ablate does not run from a checkout here")
    assert re.search(rf"\(commit {known['commit'][:12]}(, with changes)?\)$", described())
    who = ["-c", "user.name=x", "-c", "user.email=x@y.z"]
    for words in (["init", "-q"], [*who, "commit", "-q", "--allow-empty", "-m", "theirs"]):
        subprocess.run(["git", "-C", str(tmp_path), *words], check=True)
    (tmp_path / "site-packages").mkdir()
    (tmp_path / "site-packages" / "__init__.py").touch()
    assert checkout(tmp_path / "site-packages") is None


COMMAND = ("-c", "from ablate_attention import main; main()", "--version")


@pytest.mark.parametrize(
    ("start", "case"),
    [
        (COMMAND, "theirs first"),
        (("-m", "ablate", "--version"), "ours over theirs"),
        (("-c", "import ablate"), "ours over theirs"),
        (COMMAND, "apart"),
    ],
)
def test_a_mixture_with_the_other_package_is_refused(tmp_path, start, case):
    """PyPI's `ablate`, which has no command."""
    (tmp_path / "ablate-0.2.3.dist-info").mkdir()
    (tmp_path / "ablate-0.2.3.dist-info/METADATA").write_text("Name: ablate\nVersion: 0.2.3\n")
    if case == "ours over theirs":
        (tmp_path / "ablate").symlink_to(PACKAGE)
    else:
        (tmp_path / "ablate").mkdir()
        (tmp_path / "ablate/__init__.py").write_text("__version__ = '0.2.3'\n")
    folders = [str(tmp_path), str(PACKAGE.parent)]
    path = os.pathsep.join(folders if case != "apart" else folders[::-1])
    done = in_a_process(*start, folder=tmp_path.parent, PYTHONPATH=path)
    if case == "apart":
        assert (done.returncode, done.stderr) == (0, "")
        return
    assert done.returncode != 0
    last = done.stderr.strip().splitlines()[-1]
    assert "PyPI's package 'ablate' 0.2.3 is installed" in last
    assert f"install {NAME} again" in last


# requirements.lock holds a version of everything, inside the ranges of pyproject.toml

ROOT = Path(__file__).parents[1]
PROJECT = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]
EXTRAS = PROJECT["optional-dependencies"]
EVERY = [Requirement(text) for text in chain(PROJECT["dependencies"], *EXTRAS.values())]
RANGES = [requirement for requirement in EVERY if requirement.name != PROJECT["name"]]
LOCK = re.split(r"\n(?=\S)", (ROOT / "requirements.lock").read_text())
LOCKED = [one for text in LOCK for one in re.findall(r"^([\w.-]+)==(\S+)", text)]


@pytest.mark.parametrize("requirement", RANGES, ids=str)
def test_every_range_has_two_ends_and_the_lock_file_is_inside(requirement):
    """Several versions of one package are for several versions of Python."""
    name = canonicalize_name(requirement.name)
    versions = [Version(number) for other, number in LOCKED if canonicalize_name(other) == name]
    assert versions
    assert all(one in requirement.specifier for one in versions)
    if requirement.name != "types-PyYAML":  # stubs, numbered by their day
        assert {specifier.operator for specifier in requirement.specifier} == {">=", "<"}


def test_what_is_locked_has_a_hash():
    for entry in LOCK:
        assert entry.startswith("#") or "==" not in entry or "--hash=sha256:" in entry
