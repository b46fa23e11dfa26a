"""The folders of src/ablate have an order, that of the tree in CONTRIBUTING.md, and no import goes
against it, be it inside a function or for types alone."""

import ast
import re
from collections.abc import Iterator
from graphlib import TopologicalSorter
from pathlib import Path

from ablate.version import PACKAGE

FILES = {
    ".".join(("ablate", *path.relative_to(PACKAGE).with_suffix("").parts)).removesuffix(
        ".__init__"
    ): path
    for path in PACKAGE.rglob("*.py")
}
# Of data and tasks that start from a finished run, and of what makes the data for its fingerprint.
UPWARDS = {
    ("ablate.config.composition", "ablate.data"),
    ("ablate.config.make", "ablate.data"),
    ("ablate.data.digit_strings", "ablate.model.autoencoder"),
    ("ablate.data.digit_strings", "ablate.training.load"),
    ("ablate.data.preferences", "ablate.decode.rollout"),
    ("ablate.data.preferences", "ablate.model.base"),
    ("ablate.data.preferences", "ablate.training.load"),
    ("ablate.task.judge", "ablate.training.load"),
    ("ablate.task.policy", "ablate.training.load"),
    ("ablate.task.speech", "ablate.training.load"),
}


def imported(path: Path) -> Iterator[str]:
    for node in ast.walk(ast.parse(path.read_text())):
        if isinstance(node, ast.Import):
            yield from (alias.name for alias in node.names)
        elif isinstance(node, ast.ImportFrom):
            assert node.module, f"{path}: a relative import"
            for alias in node.names:
                inner = f"{node.module}.{alias.name}"
                yield inner if inner in FILES else node.module


def folder(module: str) -> str:
    return module.removeprefix("ablate.").partition(".")[0]


ARROWS = {(file, other) for file in FILES for other in imported(FILES[file]) if other in FILES}


def test_no_import_goes_up() -> None:
    tree = (PACKAGE.parents[1] / "CONTRIBUTING.md").read_text()
    folders = re.findall(r"^      (\w+)/ ", tree, re.MULTILINE)
    assert sorted(folders) == sorted(path.parent.name for path in PACKAGE.glob("*/__init__.py"))
    place = {folder: number for number, folder in enumerate(folders)}
    between = [(a, b) for a, b in ARROWS if {folder(a), folder(b)} <= place.keys()]
    assert {(a, b) for a, b in between if place[folder(b)] < place[folder(a)]} == UPWARDS


def test_no_files_import_each_other_in_a_circle() -> None:
    graph: dict[str, set[str]] = {}
    for file, other in ARROWS:
        # Python imports the packages around a module before it.
        around = {".".join(other.split(".")[:depth]) for depth in range(2, other.count(".") + 1)}
        outer = {package for package in around if not f"{file}.".startswith(f"{package}.")}
        graph.setdefault(file, set()).update({other} | outer)
    TopologicalSorter(graph).prepare()  # CycleError names the circle
