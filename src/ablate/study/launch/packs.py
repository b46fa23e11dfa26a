"""Group runs whose commands differ only in the seed into packs.

`ablate.training.pack` trains them.
"""

from collections.abc import Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING

from ablate.config.overrides import value_text
from ablate.errors import UserError
from ablate.study.launch.run import Run

if TYPE_CHECKING:
    from ablate.study.plan.layout import Layout


SEED, FOLDER = "seed=", "hydra.run.dir="


@dataclass(frozen=True)
class Packing:
    """The settings study.pack and study.batched."""

    size: int = 1
    batched: bool | str = "auto"


ALONE = Packing()


def packs(runs: Sequence[Run], size: int) -> list[list[Run]]:
    """Split runs into packs of at most `size`, in the order of their first runs."""
    alike: dict[tuple[str, ...], list[Run]] = {}
    for run in runs:
        alike.setdefault(_shared(run) if size > 1 else (str(run.folder),), []).append(run)
    cut = [
        (runs.index(group[first]), group[first : first + size])
        for group in alike.values()
        for first in range(0, len(group), size)
    ]
    return [group for _, group in sorted(cut, key=lambda one: one[0])]


def _shared(run: Run) -> tuple[str, ...]:
    """Return the arguments that a pack's runs share; a run without an explicit seed is alone."""
    shared = [text for text in run.arguments if not text.startswith((SEED, FOLDER))]
    return tuple(shared if len(shared) == len(run.arguments) - 2 else [str(run.folder)])


def together(runs: Sequence[Run], batched: bool | str) -> list[str]:
    """Return the arguments of the command that trains all of them in the folder of the first."""
    first, *others = runs
    if not others:
        return list(first.arguments)
    packed = value_text({_seed(run): str(run.folder) for run in others})
    how = value_text(batched)
    return [*first.arguments, f"study.packed={packed}", f"study.batched={how}"]


def _seed(run: Run) -> str:
    return next(text for text in run.arguments if text.startswith(SEED)).removeprefix(SEED)


def refuse_packs(packing: Packing, layout: "Layout", *, launcher: str) -> None:
    """Raise UserError, before anything is trained, if packing is impossible; it names the arm."""
    if packing.size == 1:
        if packing.batched != ALONE.batched:
            raise UserError(
                f"study.batched={value_text(packing.batched)} says how a pack is computed, and has"
                " no effect with study.pack=1; leave it at auto, or set study.pack"
            )
        return
    if launcher != "local":
        raise UserError(
            f"study.pack: hydra/launcher={launcher} trains every run by itself; use local"
        )
    from ablate.training.pack.trial import refuse_pack

    for composed in layout.arms:
        try:
            composed.config.study.batched = packing.batched
            refuse_pack(composed.config, layout.seeds)
        except UserError as error:
            raise UserError(f"[{composed.name}] {error}") from error
