"""A run to be launched."""

from collections.abc import Sequence
from dataclasses import dataclass, field
from pathlib import Path

from ablate.study.launch.ending import Mark, mark
from ablate.study.launch.state import State


@dataclass
class Run:
    """A run. arguments: those of the command that trains it in `folder`."""

    folder: Path
    arguments: Sequence[str]
    before: Mark = field(init=False)  # its result when the launch began
    look_at: float = 0.0  # time before which not to check it again

    def __post_init__(self) -> None:
        self.before = mark(self.folder)

    def is_done(self, state: State) -> bool:
        """Whether it is finished, or another launcher has tried it since the launch began."""
        recorded = state.ended and state.result.get("status") != "running"
        return state.name == "finished" or (recorded and mark(self.folder) != self.before)
