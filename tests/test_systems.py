"""Systems: whole models in a folder each, which the core does not import and which can go."""

import ast
import re
import shutil
from collections import Counter
from pathlib import Path

import pytest
from mutations.run import LEFT_OUT
from tiny import in_a_process, overrides

from ablate.config.keys import option_content, targets
from ablate.config.tree import config_dir, config_dirs
from ablate.machine.version import PACKAGE

ROOT = Path(__file__).parents[1]
SYSTEMS = sorted(path.parent.name for path in PACKAGE.glob("systems/*/conf"))
MODULES = sorted(PACKAGE.rglob("*.py"))


def of(path: Path) -> str | None:
    """The system of a module."""
    top, *inner = path.relative_to(PACKAGE).parts
    return inner[0] if top == "systems" and len(inner) > 1 else None


def imported(path: Path) -> set[str]:
    """The systems that a module imports, or names in a string."""
    named = set()
    for node in ast.walk(ast.parse(path.read_text())):
        names = [alias.name for alias in getattr(node, "names", []) if hasattr(alias, "asname")]
        if isinstance(node, ast.ImportFrom):
            names = [f"{node.module}.{name}" for name in names]
        elif isinstance(node, ast.Constant) and isinstance(node.value, str):
            names = [node.value]
        named |= {name for text in names for name in re.findall(r"ablate\.systems\.(\w+)", text)}
    return named


def test_no_module_imports_another_system() -> None:
    others = {str(path): imported(path) - {of(path)} for path in MODULES}
    assert {path: names for path, names in others.items() if names} == {}


def test_no_test_of_the_core_imports_a_system() -> None:
    assert [path for path in (ROOT / "tests").glob("*.py") if imported(path)] == []


def test_no_option_of_the_core_names_a_system() -> None:
    files = [*config_dir().rglob("*.yaml"), *(ROOT / "sweeps").rglob("*.yaml")]
    assert [file for file in files if "ablate.systems." in file.read_text()] == []


@pytest.mark.parametrize("system", SYSTEMS)
def test_the_options_of_a_system_are_its_modules(system: str) -> None:
    """By whose names messages and `model.layers` refer to them."""
    for file in (PACKAGE / "systems" / system / "conf").glob("*/*.yaml"):
        for target in targets(option_content(file)[0]).values():
            if target.startswith("ablate.systems."):
                assert target.startswith(f"ablate.systems.{system}.")
                assert target.split(".")[-2] == file.stem


def test_no_option_is_in_two_folders() -> None:
    files = [str(f.relative_to(folder)) for folder in config_dirs() for f in folder.rglob("*.yaml")]
    assert [name for name, times in Counter(files).items() if times > 1] == []


@pytest.mark.ci
@pytest.mark.parametrize("system", SYSTEMS)
def test_the_rest_works_without_a_system(system: str, tmp_path: Path) -> None:
    """`--help` lists no option of it, the default trains, every other test file can be imported,
    and those tests pass that go through all options."""
    copy = tmp_path / "project"
    shutil.copytree(ROOT, copy, symlinks=True, ignore=LEFT_OUT)
    options = [file.stem for file in (PACKAGE / "systems" / system / "conf").glob("model/*.yaml")]
    shutil.rmtree(copy / "src/ablate/systems" / system)

    def run(*argv: object) -> str:
        done = in_a_process(*argv, folder=copy, PYTHONPATH=str(copy / "src"), PYTEST_ADDOPTS="")
        assert done.returncode == 0, done.stdout + done.stderr
        return done.stdout

    listed = run("-m", "ablate", "--help").partition("  model=")[2].partition("  model.")[0]
    assert "gpt" in listed
    assert not [option for option in options if re.search(rf"\b{option}\b", listed)]
    run("-m", "ablate", *overrides(tmp_path))
    run("-m", "pytest", "-q", "-n", "0", "--collect-only", "tests")
    files = [f"tests/test_{name}.py" for name in ("systems", "config_tree", "schema", "axes")]
    run("-m", "pytest", "-q", "-n", "0", "-k", "not builds", *files)
