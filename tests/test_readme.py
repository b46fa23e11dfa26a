"""What README.md and CONTRIBUTING.md promise about files and commands is there."""

import re
from importlib import import_module
from pathlib import Path

import pytest

from ablate.config.compose import compose

ROOT = Path(__file__).parents[1]
README = (ROOT / "README.md").read_text()
COMMANDS = re.findall(r"python -m ablate (?!-)([^`\n#|]*)", README)


def test_the_test_line_is_what_ci_runs():
    line = "pip install -e '.[dev]' && pytest"
    assert f"    {line}\n" in README
    assert (ROOT / ".ci" / "run").read_text().splitlines()[-1] == line


@pytest.mark.parametrize("overrides", sorted({c.strip() for c in COMMANDS}))
def test_every_command_composes(overrides, tmp_path):
    file = tmp_path / "FILE"
    file.write_text("text")
    words = overrides.replace("FILE", str(file)).replace("DIR", str(tmp_path)).split()
    if not any(word.startswith("--") for word in words):
        compose(*words)


@pytest.mark.parametrize("name", sorted(set(re.findall(r"python -m ablate\.(\w+)", README))))
def test_every_other_command_exists(name):
    assert callable(import_module(f"ablate.{name}").main)


def test_the_tree_in_the_readme_is_there():
    tree = README.split("## Where things are")[1].split("CONTRIBUTING")[0]
    for path in re.findall(r"^    (\w+/)", tree, re.MULTILINE):
        assert (ROOT / path).is_dir(), path
    for path in re.findall(r"^      (\w+(?:\.py|/))", tree, re.MULTILINE):
        assert (ROOT / "src" / "ablate" / path).exists(), path
