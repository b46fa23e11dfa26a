"""What a person does with the folder of a run, and what a stranger may have put into it."""

import copy
import shutil
import sys
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest
import yaml
from tiny import SMALL, overrides

import ablate
from ablate import evaluate, generate, show
from ablate.cli.summary import show_result
from ablate.config.composition import Composition
from ablate.training.build import build, build_data


@pytest.fixture(scope="module")
def whole(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A finished run that has every file, since it started from another, with tokens of that."""
    folder = tmp_path_factory.mktemp("whole")
    start: tuple[str, ...] = ()
    for _ in range(2):
        ablate.run(cfg := ablate.compose(*overrides(folder, *SMALL, *start)))
        start = (f"init_from={Composition(cfg).folder}",)
    return Composition(cfg).folder


@pytest.fixture
def folder(whole: Path, tmp_path: Path) -> Path:
    """A copy of it, for changes."""
    return shutil.copytree(whole, tmp_path / "run")


def called(main: Callable[[], None], *arguments: object) -> None:
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(sys, "argv", ["ablate", *map(str, arguments)])
        main()


def typed(whole: Path, *more: str) -> list[str]:
    """What makes `whole`."""
    first = yaml.safe_load((whole / "config.yaml").read_text())["init_from"]
    return overrides(whole.parents[2], *SMALL, f"init_from={first}", *more)


def start(folder: Path, whole: Path) -> None:
    """A run from its weights, up to the first step."""
    cfg = ablate.compose(*typed(whole, f"init_from={folder}"))
    build(cfg, build_data(cfg))


def resume(folder: Path, whole: Path) -> None:
    """The same command again."""
    cfg = ablate.compose(*typed(whole))
    show_result(ablate.run(cfg, folder), folder, cfg)


# By name, of a folder that is, or was, a copy of the other.
WAYS: dict[str, Callable[[Path, Path], Any]] = {
    "load": lambda folder, whole: ablate.load(folder),
    "evaluate": lambda folder, whole: called(evaluate.main, folder),
    "generate": lambda folder, whole: called(
        generate.main, folder, "--prompt", "the", "--tokens", "2"
    ),
    "show": lambda folder, whole: called(show.main, folder),
    "init_from": start,
    "resume": resume,
}


class Attack:
    """Creates a file when it is unpickled."""

    def __init__(self, made: Path) -> None:
        self.made = made

    def __reduce__(self) -> Any:
        return Path.touch, (self.made,)


def changes(content: Any, others: tuple[Any, ...]) -> Iterator[tuple[str, Any]]:
    """The content without each key, and with values of other types in its place."""
    for path, value in places(content, others):
        yield f"{path} {value}", changed(content, path, value)


def places(
    node: Any, others: tuple[Any, ...], path: tuple[Any, ...] = ()
) -> Iterator[tuple[tuple[Any, ...], Any]]:
    """What `changes` changes: where, and the value, or "removed"."""
    for value in ("removed", *(one for one in others if type(one) is not type(node))):
        if path:
            yield path, value
    if path != ("state_dict",):  # of a checkpoint: as many as there are parameters
        for key in (
            [*node]
            if isinstance(node, dict)
            else range(len(node[:9]) if isinstance(node, list) else 0)
        ):
            yield from places(node[key], others, (*path, key))


def changed(content: Any, path: tuple[Any, ...], value: Any) -> Any:
    """A copy with that in its place."""
    made = copy.deepcopy(content)
    inner = made
    for key in path[:-1]:
        inner = inner[key]
    if value == "removed":
        del inner[path[-1]]
    else:
        inner[path[-1]] = value
    return made
