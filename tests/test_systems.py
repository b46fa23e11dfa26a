"""Systems: whole models in a folder each, which the core does not import and which can go."""

import ast
import re
import shutil
from collections import Counter
from collections.abc import Callable
from pathlib import Path

import pytest
import yaml
from mutations.run import LEFT_OUT
from tiny import in_a_process, overrides

from ablate.config.keys import option_content, targets
from ablate.config.tree import config_dir, config_dirs
from ablate.machine.version import PACKAGE

ROOT = Path(__file__).parents[1]
SYSTEMS = sorted(path.parent.name for path in PACKAGE.glob("systems/*/conf"))
MODULES = sorted(PACKAGE.rglob("*.py"))
YAML = [*config_dir().rglob("*.yaml"), *(ROOT / "sweeps").rglob("*.yaml")]  # of the core


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


@pytest.mark.ci
def test_no_module_imports_another_system() -> None:
    others = {str(path): imported(path) - {of(path)} for path in MODULES}
    assert {path: names for path, names in others.items() if names} == {}


@pytest.mark.ci
def test_no_test_of_the_core_imports_a_system() -> None:
    assert [path for path in (ROOT / "tests").glob("*.py") if imported(path)] == []


def test_no_option_of_the_core_names_a_system() -> None:
    assert [file for file in YAML if "ablate.systems." in file.read_text()] == []


@pytest.mark.ci
@pytest.mark.skipif(not SYSTEMS, reason="all were removed")
def test_no_module_or_option_of_the_core_names_an_option_of_a_system() -> None:
    options = [
        file.relative_to(folder).with_suffix("").parts
        for folder in config_dirs()[1:]
        for file in folder.glob("*/*.yaml")
    ]
    core = [*config_dir().glob("*/*.yaml")]  # with the same names of options or of keys
    common = {name for file in core for name in (file.stem, file.parent.name.split(".")[-1])}
    names = {name for _, name in options} - common
    any_name = "|".join(sorted(names))
    typed = "|".join(f"{re.escape(group)}={name}" for group, name in options)
    naming = re.compile(rf"^(?:{any_name})$|=(?:{any_name})\b|(?:{typed})\b")
    found = []
    for file in [*filter(lambda file: of(file) is None, MODULES), *YAML]:
        found += [(str(file), text) for text in strings(file) if naming.search(text)]
    assert found == []


def strings(file: Path) -> list[str]:
    """Those of a module, without its docstrings; or of a YAML file."""
    if file.suffix == ".yaml":
        return [str(event.value) for event in yaml.parse(file.read_text()) if is_scalar(event)]
    nodes = [*ast.walk(ast.parse(file.read_text()))]
    docs = {id(node.value) for node in nodes if isinstance(node, ast.Expr)}
    constants = [n for n in nodes if isinstance(n, ast.Constant) and id(n) not in docs]
    return [node.value for node in constants if isinstance(node.value, str)]


def is_scalar(event: yaml.Event) -> bool:
    return isinstance(event, yaml.ScalarEvent)


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


@pytest.fixture
def without(tmp_path: Path) -> Callable[..., Callable[..., str]]:
    """What runs Python in a copy of the project without these systems, and returns its output."""

    def made(*systems: str) -> Callable[..., str]:
        copy = tmp_path / "project"
        shutil.copytree(ROOT, copy, symlinks=True, ignore=LEFT_OUT)
        for system in systems:
            shutil.rmtree(copy / "src/ablate/systems" / system)

        def run(*argv: object, limit: int = 300) -> str:
            env = {"PYTHONPATH": str(copy / "src"), "PYTEST_ADDOPTS": ""}
            done = in_a_process(*argv, folder=copy, limit=limit, **env)
            assert done.returncode == 0, done.stdout + done.stderr
            return done.stdout

        return run

    return made


@pytest.mark.ci
@pytest.mark.parametrize("system", SYSTEMS)
def test_the_rest_works_without_a_system(
    system: str, without: Callable[..., Callable[..., str]], tmp_path: Path
) -> None:
    """`--help`, the default training, imports of all tests, and tests of all options."""
    options = [file.stem for file in (PACKAGE / "systems" / system / "conf").glob("model/*.yaml")]
    run = without(system)
    listed = run("-m", "ablate", "--help").partition("  model=")[2].partition("  model.")[0]
    assert "gpt" in listed
    assert not [option for option in options if re.search(rf"\b{option}\b", listed)]
    run("-m", "ablate", *overrides(tmp_path))
    run("-m", "pytest", "-q", "-n", "0", "--collect-only", "tests")
    files = [f"tests/test_{name}.py" for name in ("systems", "config_tree", "schema", "axes")]
    run("-m", "pytest", "-q", "-n", "0", "-k", "not builds", *files)


@pytest.mark.slow
def test_the_default_suite_passes_without_any_system(
    without: Callable[..., Callable[..., str]],
) -> None:
    without(*SYSTEMS)("-m", "pytest", "-q", "tests", limit=3600)
