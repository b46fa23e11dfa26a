"""One composition for the whole of a run: checked once, its data read once, never changed."""

from collections.abc import Callable
from typing import Any

import pytest
from omegaconf.errors import ReadonlyConfigError
from tiny import overrides

import ablate
from ablate.config import composition
from ablate.config.composition import Composition
from ablate.data.text import TextData

pytest_plugins = ["command_line"]


@pytest.fixture
def calls(monkeypatch: pytest.MonkeyPatch) -> list[str]:
    """What was called: `check`, and `load` for every data set that was read."""
    made: list[str] = []

    def counted(name: str, function: Callable[..., Any]) -> Callable[..., Any]:
        return lambda *args, **more: (made.append(name), function(*args, **more))[1]

    monkeypatch.setattr(composition, "check", counted("check", composition.check))
    monkeypatch.setattr(TextData, "__init__", counted("data", TextData.__init__))
    return made


def test_a_command_checks_once(ablate_command, runs, calls, tmp_path):
    assert ablate_command(*overrides(tmp_path))[0] == 0
    assert len(runs) == 1
    assert calls == ["check", "data"]  # for the name of the folder; the run takes them over


def test_a_run_makes_its_data_once(tmp_path, calls):
    cfg = ablate.compose(*overrides(tmp_path))
    calls.clear()
    ablate.run(cfg)
    assert calls == ["check", "data"]


def test_a_composition_is_never_changed(tmp_path):
    cfg = ablate.compose(*overrides(tmp_path))
    made = Composition(cfg)
    before = made.id
    cfg.model.dim = 32
    assert (made.cfg.model.dim, made.id) == (16, before)
    with pytest.raises(ReadonlyConfigError):
        made.cfg.model.dim = 32
