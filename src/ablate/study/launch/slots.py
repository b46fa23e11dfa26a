"""The loop of launchers whose runs end with them: waiting runs, slots, and ended runs."""

import signal
import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Protocol

from ablate.errors import Interrupted, RunFailed
from ablate.machine.stop import Stop, stopping
from ablate.study.launch.ending import Mark, mark, record_exit
from ablate.study.launch.forks import Event, ParentDied, Start
from ablate.study.launch.live import View
from ablate.study.launch.locks import RunLock
from ablate.study.launch.run import ScheduledRun
from ablate.study.launch.state import RESUMES, State, state, state_alone

LOOK = 0.2  # seconds between checks of the time limits
LOOK_ELSEWHERE = 2.0  # seconds between checks of a run that another launcher has
STOPPED = f"stopped with its study; {RESUMES} from its last checkpoint"


class Spawner(Protocol):
    """Starts runs, reports their events and ends them: here (forks.py) or elsewhere."""

    def start(self, number: int, run: Start, environment: Mapping[str, str]) -> None: ...

    def events(self, seconds: float) -> list[Event]: ...

    def ask(self, run: int) -> None: ...

    def kill(self, run: int) -> None: ...

    def close(self) -> None: ...


@dataclass
class Process:
    """The process of a slot, and the claim of its run."""

    run: ScheduledRun
    claim: RunLock
    slot: int
    before: Mark = field(init=False)  # the run's result when this attempt started
    tries: int = 0
    began: float | None = None  # time when this attempt started
    reason: str | None = None  # why it was asked to stop
    asked_at: float = 0.0


@dataclass
class Slots:
    """Train every unfinished run, and wait for those that other launchers have.

    devices: for each slot, additions to the environment of its runs. timeout: seconds of one
    attempt. retries: further attempts of a failed run. fail_fast: start none after one that failed.
    grace: seconds that a run which is asked to stop may take for its checkpoint. parent: starts the
    `Spawner`, such as the fork server.
    """

    devices: Sequence[Mapping[str, str]]
    grace: float
    parent: Callable[[], Spawner]
    launcher: str
    timeout: float | None = None
    retries: int = 0
    fail_fast: bool = False

    def __post_init__(self) -> None:
        self._parent: Spawner | None = None
        self._processes: dict[int, Process] = {}
        self._free = list(range(len(self.devices)))
        self._number = 0
        self._forked = False  # whether the parent has started a run yet
        self._failed = False  # whether a run has, after its last try

    def work(self, runs: Sequence[ScheduledRun], *, shown: int | None) -> list[State]:
        """Train them, and return their states. shown: slots of the display; None: as many as runs
        are running. Raises Interrupted after Ctrl-C or SIGTERM, when all runs have stopped."""
        folders = [run.folder for run in runs]
        with stopping(Stop()) as self.stop, View.of(folders, slots=shown) as self.view:
            self._loop(list(runs))
        if self.stop.signal:
            raise Interrupted(
                f"stopped by {self.stop.signal}; {RESUMES} from the runs' last checkpoints"
            )
        return [state(folder) for folder in folders]

    def _loop(self, waiting: list[ScheduledRun]) -> None:
        try:
            while self._processes or (waiting and not self._over):
                try:
                    self._take(waiting)
                    self._listen()
                except ParentDied:
                    self._orphaned()
                self._check_timeouts()
                self.view.update([process.run.folder for process in self._processes.values()])
        finally:
            if self._parent is not None:
                self._parent.close()
            for process in self._processes.values():  # an error, as of a full disk, ended the loop
                process.claim.release()

    @property
    def _over(self) -> bool:
        """Whether no further run is started."""
        return bool(self.stop.signal) or (self.fail_fast and self._failed)

    def _take(self, waiting: list[ScheduledRun]) -> None:
        for run in list(waiting):
            if not self._free or self._over:
                return
            training = [process.run for process in self._processes.values()]
            if run.waits({each.folder for each in (*waiting, *training)}):
                continue
            if claim := self._claim(run, waiting):
                self._start(Process(run, claim, self._free.pop(0)))

    def _claim(self, run: ScheduledRun, waiting: list[ScheduledRun]) -> RunLock | None:
        """Claim a run, or return None; remove it from `waiting` if it is claimed or has ended."""
        if time.monotonic() < run.look_at:
            return None
        claim = RunLock.take(run.folder, launcher=self.launcher)
        now = state_alone(run.folder)
        if claim is None or now.name == "running":  # another launcher; a command by hand
            run.look_at = time.monotonic() + LOOK_ELSEWHERE
        elif run.is_done(now):
            waiting.remove(run)
            self.view.ended(run.folder, now)
        else:
            waiting.remove(run)
            return claim
        if claim is not None:
            claim.release()
        return None

    def _start(self, process: Process) -> None:
        process.tries += 1
        process.began = process.reason = None
        self._number += 1
        self._processes[self._number] = process
        if self._parent is None:
            self._parent, self._forked = self.parent(), False
        process.before = mark(process.run.folder)
        self._parent.start(self._number, process.run.prepare(), self.devices[process.slot])

    def _listen(self) -> None:
        if self._parent is None or not self._processes:
            time.sleep(LOOK)  # only runs of other launchers are left
            return
        for event in self._parent.events(LOOK):
            process = self._processes[event.run]
            if event.code is None:
                process.began = time.monotonic()
                self._forked = True
            else:
                process.reason = process.reason or event.reason
                self._ended(event.run, event.code)

    def _ended(self, number: int, code: int) -> None:
        process = self._processes[number]
        folder = process.run.folder
        now = record_exit(folder, code, process.before, reason=process.reason)
        if now.name == "failed" and process.tries <= self.retries and not self.stop.signal:
            self.view.again(folder, now)
            del self._processes[number]
            self._start(process)
        else:
            self._failed = self._failed or now.name == "failed"
            process.claim.release()
            del self._processes[number]
            self.view.ended(folder, now)
            self._free = sorted([*self._free, process.slot])

    def _orphaned(self) -> None:
        """After the death of the parent: kill all its processes; each loses an attempt."""
        assert self._parent is not None
        self._parent.close()
        for number, process in self._processes.items():
            if process.began is not None:
                self._parent.kill(number)
        self._parent = None
        if not self._forked:
            raise RunFailed(f"hydra/launcher={self.launcher}: no process can be started; see above")
        for number in list(self._processes):
            self._ended(number, -signal.SIGKILL)

    def _check_timeouts(self) -> None:
        now = time.monotonic()
        for number, process in self._processes.items():
            if process.began is None:
                continue
            if process.reason is None:
                if self.stop.signal:
                    self._ask(number, STOPPED)
                elif self.timeout is not None and now - process.began > self.timeout:
                    self._ask(number, f"hydra.launcher.timeout={self.timeout:g}: not done in time")
            elif self.stop.at_once or now - process.asked_at > self.grace:
                assert self._parent is not None
                self._parent.kill(number)

    def _ask(self, number: int, reason: str) -> None:
        assert self._parent is not None
        process = self._processes[number]
        process.reason, process.asked_at = reason, time.monotonic()
        self._parent.ask(number)
