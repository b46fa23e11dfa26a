"""One command, one result: whoever changes a number changes the id of the run that has it."""

from pathlib import Path

import pytest
from pin import cases, measured, pinned, wrong

from ablate.random import dropout

FIRST = {found["id"]: command for command, found in reversed(pinned().items())}


def slow(command: str) -> list[pytest.MarkDecorator]:
    """The scores are pinned in self-attention too; a command that only names what is the default
    is the run of a shorter one."""
    again = FIRST[pinned()[command]["id"]] != command
    return [pytest.mark.slow] if again or "model.cross_attention" in command else []


@pytest.fixture(autouse=True)
def _memory(monkeypatch: pytest.MonkeyPatch) -> None:
    """Enough: asking makes every model once more. test_sizes.py asks."""
    monkeypatch.setattr("ablate.training.build.require_memory", lambda cfg, data: None)


@pytest.mark.parametrize("command", [pytest.param(c, marks=slow(c)) for c in pinned()])
def test_a_result_is_as_pinned(command: str, tmp_path: Path) -> None:
    if line := wrong(command, measured(command, tmp_path), pinned()[command]):
        pytest.fail(line, pytrace=False)


@pytest.mark.slow  # an example of docs/how-to/add-to-the-repository.md is not pinned
def test_everything_is_pinned() -> None:
    missing = [command for command in cases() if command not in pinned()]
    assert not missing, "PYTHONPATH=src python tests/pin.py"


def test_a_changed_draw_is_found(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    command = "model=gpt"
    now = dropout.draw
    monkeypatch.setattr(dropout, "draw", lambda key, *args: now(key + 1, *args))
    said = wrong(command, measured(command, tmp_path), pinned()[command])
    assert said is not None
    assert "raise the revision of the part that changed" in said
    assert "ablate.model.gpt.GPT" in said
    assert said.endswith("PYTHONPATH=src python tests/pin.py 'model=gpt'")
