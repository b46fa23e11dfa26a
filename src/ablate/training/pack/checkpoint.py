"""Checkpoints of a pack: one per seed, in its own folder, in the format of a separate run.

Each parameter group of a pack's optimizer holds the parameters of all seeds, seed after seed.
"""

from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from ablate.cli.say import say
from ablate.files import Damaged
from ablate.training.checkpoint import LAST, PREVIOUS, Checkpoints, Flushed, write
from ablate.training.pack.task import Packed
from ablate.training.sealed import read_state

State = dict[str, Any]


def common(runs: Sequence[Checkpoints]) -> int | None:
    """Return the last step from which all can resume; 0 if none has started, None if there is no
    common step."""
    problems: list[str] = []
    steps = [set(_by_step(one, problems)) for one in runs]
    for line in problems:
        say(line)
    shared = set.intersection(*steps) if steps else set()
    return max(shared) if shared else None if any(steps) else 0


def _by_step(run: Checkpoints, problems: list[str]) -> dict[int, Path]:
    """Map each step to a readable checkpoint; add a line about each damaged one."""
    found = {}
    for path in filter(Path.exists, (run.folder / PREVIOUS, run.folder / LAST)):
        try:
            found[read_state(path, run.run_id)["global_step"]] = path
        except Damaged as error:
            problems.append(f"{error}; it is not used")
    return found


class Folders(Flushed):
    """Read and write the state of a pack's Trainer as one file per seed.

    wanted: the members to save next. step: the step from which all of them resume.
    """

    def __init__(self, pack: Sequence[Packed]):
        super().__init__(None)
        self.pack = self.wanted = list(pack)
        self.step = 0

    def save_checkpoint(self, checkpoint: State, path: Any, storage_options: Any = None) -> None:
        for one in self.wanted:
            own = part(checkpoint, self.pack.index(one), len(self.pack))
            if "callbacks" in own:
                callbacks = (one.run.curves, one.run.checkpoints)
                own["callbacks"] = {c.state_key: c.state_dict() for c in callbacks}
            place = one.run.checkpoints.folder / Path(path).name
            write(place, own, one.run.checkpoints.run_id)

    def load_checkpoint(self, path: Any, *args: Any, **kwargs: Any) -> State:
        parts = []
        for one in self.pack:
            at = _by_step(one.run.checkpoints, [])[self.step]
            parts.append(super().load_checkpoint(at, *args, **kwargs))
            for callback in (one.run.curves, one.run.checkpoints):
                callback.load_state_dict(parts[-1]["callbacks"][callback.state_key])
        return joined(parts)


def part(checkpoint: Mapping[str, Any], number: int, count: int) -> State:
    """Extract the state of one seed from that of a pack."""
    prefix = f"tasks.{number}."
    weights = checkpoint["state_dict"].items()
    mine = {k.removeprefix(prefix): v.clone() for k, v in weights if k.startswith(prefix)}
    own = {**checkpoint, "state_dict": mine}
    if "optimizer_states" in checkpoint:
        own["optimizer_states"] = [
            _part_of_optimizer(state, number, count) for state in checkpoint["optimizer_states"]
        ]
    return own


def _part_of_optimizer(state: State, number: int, count: int) -> State:
    groups: list[State] = []
    kept: list[int] = []
    for group in state["param_groups"]:
        size = len(group["params"]) // count
        mine = group["params"][number * size : (number + 1) * size]
        groups.append({**group, "params": list(range(len(kept), len(kept) + size))})
        kept += mine
    numbers = {old: new for new, old in enumerate(kept)}
    own = {numbers[old]: value for old, value in state["state"].items() if old in numbers}
    return {"state": own, "param_groups": groups}


def joined(parts: Sequence[State]) -> State:
    """Merge the states of the seeds into that of a pack; anything not kept per seed is the
    first's."""
    weights = {
        f"tasks.{number}.{name}": value
        for number, own in enumerate(parts)
        for name, value in own["state_dict"].items()
    }
    optimizers = zip(*(own["optimizer_states"] for own in parts), strict=True)
    return {
        **parts[0],
        "callbacks": {},
        "state_dict": weights,
        "optimizer_states": [_joined_optimizer(states) for states in optimizers],
    }


def _joined_optimizer(states: Sequence[State]) -> State:
    groups: list[State] = []
    state: dict[int, Any] = {}
    count = 0
    for alike in zip(*(one["param_groups"] for one in states), strict=True):
        first = count
        for one, group in zip(states, alike, strict=True):
            for old in group["params"]:
                if old in one["state"]:
                    state[count] = one["state"][old]
                count += 1
        groups.append({**alike[0], "params": list(range(first, count))})
    return {"state": state, "param_groups": groups}
