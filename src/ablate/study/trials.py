"""The runs of study.tune in a study: made of its arms, and read to set each arm's own values."""

from collections.abc import Mapping
from dataclasses import replace
from pathlib import Path

from ablate.errors import RunFailed, UserError
from ablate.study.cells import Cell, Cells, Composer, with_more
from ablate.study.layout import Layout
from ablate.study.override import value_text
from ablate.study.state import state
from ablate.study.tune import Trial, Tuning, choose


class Trials:
    """Of every arm of a layout; none where nothing is tuned. Arms that are the same runs share
    folders. untuned: arm -> why no value could be chosen for it."""

    def __init__(self, tuning: Tuning | None, layout: Layout, composer: Composer, cells: Cells):
        self.layout, self.composer = layout, composer
        self.untuned: dict[str, str] = {}
        self._of: dict[str, list[tuple[Trial, Cell]]] = {}
        known: dict[str, str] = {}
        for trial in tuning.trials() if tuning else []:
            more = [text for text in trial.overrides if not text.startswith("seed=")]
            for composed in layout.arms:
                config = with_more(composed, more, composer).config
                cell = cells.of(composed, trial.seed, kind="tune", config=config, more=more)
                cell = replace(cell, folder=known.setdefault(cell.run_id, cell.folder))
                self._of.setdefault(composed.name, []).append((trial, cell))

    @property
    def cells(self) -> list[Cell]:
        """In the order of launching: every arm's first trial before anyone's second."""
        rows = zip(*self._of.values(), strict=True)
        return [cell for row in rows for _, cell in row]

    def choose(self, folder: Path, metric: Mapping[str, str]) -> None:
        """Set what is best in every arm; one without any value that runs is left out.

        Raises RunFailed where that is the baseline.
        """
        layout = self.layout
        for composed in layout.arms:
            trials, cells = zip(*self._of[composed.name], strict=True)
            results = [state(folder / cell.folder).result or None for cell in cells]
            try:
                choice = choose(
                    composed.name, trials, results, metric=metric["name"], mode=metric["mode"]
                )
            except UserError as error:
                self.untuned[composed.name] = f"{error}; the same command tries them again"
                continue
            composed.tuned, composed.tuning = choice.point, choice.rows
            composed.warnings = choice.warnings
        if reason := self.untuned.get(layout.baseline.name):
            raise RunFailed(reason)
        layout.illegal |= self.untuned
        layout.arms[:] = [one for one in layout.arms if one.name not in self.untuned]
        for number, composed in enumerate(layout.arms):
            more = [f"{key}={value_text(value)}" for key, value in composed.tuned.items()]
            layout.arms[number] = with_more(composed, more, self.composer)
