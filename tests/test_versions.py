"""requirements.lock holds a version of everything, inside the ranges of pyproject.toml."""

import re
import tomllib
from pathlib import Path

import pytest
from packaging.requirements import Requirement
from packaging.utils import canonicalize_name
from packaging.version import Version

ROOT = Path(__file__).parents[1]
PROJECT = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]
EXTRAS = PROJECT["optional-dependencies"]
RANGES = [
    requirement
    for texts in (PROJECT["dependencies"], *EXTRAS.values())
    for requirement in map(Requirement, texts)
    if requirement.name != PROJECT["name"]
]
LOCKED: dict[str, list[Version]] = {}
for name, version in re.findall(
    r"^([\w.-]+)==(\S+)", (ROOT / "requirements.lock").read_text(), re.MULTILINE
):
    LOCKED.setdefault(canonicalize_name(name), []).append(Version(version))


@pytest.mark.parametrize("requirement", RANGES, ids=str)
def test_every_range_has_two_ends_and_the_lock_file_is_inside(requirement):
    """Several versions of one package are for several versions of Python."""
    versions = LOCKED[canonicalize_name(requirement.name)]
    assert all(version in requirement.specifier for version in versions)
    if requirement.name != "types-PyYAML":  # stubs, numbered by their day
        assert {specifier.operator for specifier in requirement.specifier} == {">=", "<"}


def test_what_is_locked_has_a_hash():
    text = (ROOT / "requirements.lock").read_text()
    for entry in re.split(r"\n(?=\S)", text):
        if "==" in entry and not entry.startswith("#"):
            assert "--hash=sha256:" in entry, entry[:60]
