"""A run to be launched."""

import json
from collections.abc import Collection
from dataclasses import asdict, dataclass, field
from pathlib import Path

from ablate.config.overrides import value_text
from ablate.machine.redact import without_credentials
from ablate.machine.terminal.say import command_line
from ablate.run_files import PLANNED, write_text
from ablate.study.launch.ending import Mark, mark
from ablate.study.launch.forks import Start
from ablate.study.launch.state import State
from ablate.study.plan.planned_run import RUN_DIR, PlannedRun, seal


@dataclass
class ScheduledRun:
    """A run of a plan, and its absolute folder."""

    folder: Path
    planned: PlannedRun
    before: Mark = field(init=False)  # its result when the launch began
    look_at: float = 0.0  # time before which not to check it again

    def __post_init__(self) -> None:
        self.before = mark(self.folder)

    def is_done(self, state: State) -> bool:
        """Whether it is finished and measured under all conditions, or another launcher has tried
        it since the launch began."""
        recorded = state.ended and state.result.get("status") != "running"
        finished = state.name == "finished" and not self.planned.lacks_conditions(state.result)
        return finished or (recorded and mark(self.folder) != self.before)

    @property
    def typed(self) -> str:
        """The command that makes the same run, for people."""
        own = without_credentials(self.planned.command.arguments(self.planned.overrides))
        where = f"{RUN_DIR}={value_text(str(self.folder))}"
        return command_line("ablate", *own, "hydra.mode=RUN", where)

    def prepare(self) -> Start:
        """Write the file of the run, and describe its process. The caller has its claim."""
        text = self.planned.file
        write_text(self.folder / PLANNED, text, flush=False)
        shared = self.planned.shared
        more = [json.dumps(asdict(shared))] if shared else []
        return Start([str(self.folder), seal(text), *more], self.typed, str(self.folder))

    def waits(self, unfinished: Collection[Path]) -> bool:
        """Whether one of these runs is to save the state at which this one begins."""
        shared = self.planned.shared
        state = shared.state(self.folder, self.planned.run_id) if shared else None
        return state is not None and state.parents[1] in unfinished and not state.exists()
