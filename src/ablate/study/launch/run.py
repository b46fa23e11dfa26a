"""A run to be launched."""

from collections.abc import Sequence
from dataclasses import dataclass, field
from pathlib import Path

from ablate.study.launch.ending import Mark


@dataclass
class Run:
    """A run. arguments: those of the command that trains it in `folder`."""

    folder: Path
    arguments: Sequence[str]
    before: Mark = field(init=False)  # its result when the launch began
    look_at: float = 0.0  # time before which not to check it again

    def __post_init__(self) -> None:
        self.before = Mark.of(self.folder)
