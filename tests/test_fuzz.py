"""Whatever is typed, or stands in a file, is taken or refused: no traceback, and no long wait.

A refusal ends with code 2 and prints at most SCREEN characters, two lines of a wide screen. A part
runs by default, on the same inputs every time; `pytest -m slow` tries 5,000 others.
"""

import signal
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import make_fuzz as fuzz
import pytest
import tiny
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

import ablate
from ablate.config import tree
from ablate.config.composition import Composition, compose
from ablate.errors import SCREEN, UserError
from ablate.training.build import build_data

pytest_plugins = ["command_line"]

Command = Callable[..., tuple[int, str, str]]

SECONDS = 20  # the longest wait


class TooLong(BaseException):
    """No `except OSError` may hold it back, and hypothesis would shrink an Exception for long."""


def tries(few: int, many: int) -> pytest.MarkDecorator:
    return pytest.mark.parametrize("count", [few, pytest.param(many, marks=pytest.mark.slow)])


def try_all(count: int, inputs: st.SearchStrategy[Any], act: Callable[[Any], None]) -> None:
    """Call `act` with so many inputs; UserError is the only exception it may raise."""

    @settings(
        max_examples=count,
        derandomize=count < 1000,
        database=None,
        suppress_health_check=list(HealthCheck),
    )
    @given(inputs)
    def one(given: Any) -> None:
        with limited(given):
            try:
                act(given)
            except UserError as refused:
                message = str(refused)
            else:
                message = "taken"
        assert message.strip()

    one()


@contextmanager
def limited(given: object) -> Iterator[None]:
    def stop(*_: object) -> None:
        raise TooLong(f"{given} takes longer than {SECONDS} s")

    before = signal.signal(signal.SIGALRM, stop)
    signal.alarm(SECONDS)
    try:
        yield
    finally:
        signal.alarm(0)
        signal.signal(signal.SIGALRM, before)


@pytest.mark.ci
@tries(60, 3500)
def test_overrides(count: int) -> None:
    try_all(count, fuzz.overrides(), lambda words: compose(*words))


@pytest.mark.ci
@tries(8, 500)
def test_files_of_options(count: int, tmp_path: Path) -> None:
    def act(file: tuple[str, str, bytes]) -> None:
        group, name, content = file
        path = tmp_path / group / f"{name}.yaml"
        path.parent.mkdir(exist_ok=True)
        path.write_bytes(content)
        try:
            compose(f"{group}={name}", config_dir=tmp_path)
        finally:
            path.unlink()
            tree._trees.popitem()  # each has what it composed

    try_all(count, fuzz.option_files(), act)


@pytest.mark.ci
@tries(20, 500)
def test_data_files(count: int, tmp_path: Path) -> None:
    paths = [tmp_path / "a", tmp_path / "b"]

    def act(given: tuple[str, list[bytes]]) -> None:
        for path, content in zip(paths, given[1], strict=True):
            path.write_bytes(content)
        data = build_data(compose(*given[0].format(*paths).split()))
        next(iter(data.train_dataloader()))

    both = st.lists(fuzz.contents(), min_size=2, max_size=2)
    try_all(count, st.tuples(st.sampled_from(fuzz.DATA), both), act)


@pytest.fixture(scope="module")
def folders(tmp_path_factory: pytest.TempPathFactory) -> dict[str, str]:
    """What each command reads: the folder of a run, or of a study."""
    folder = tmp_path_factory.mktemp("runs")
    cfg = ablate.compose(*tiny.overrides(folder, "trainer.max_steps=2"))
    ablate.run(cfg)
    run = str(Composition(cfg).folder)
    return dict.fromkeys(("evaluate", "generate", "show"), run) | {"report": str(Path(run).parent)}


@pytest.mark.ci
@tries(15, 500)
def test_command_lines(count: int, folders: dict[str, str], ablate_command: Command) -> None:
    def act(words: list[str]) -> None:
        code, _, err = ablate_command(*words)
        assert code in (0, 2), err
        assert "Traceback" not in err
        assert code == 0 or len(err) <= SCREEN + len("ablate: \n")

    try_all(count, fuzz.command_lines(folders), act)
