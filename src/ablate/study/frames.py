"""A study in Python: `ablate.load_study("outputs/NAME")`, with its runs and verdicts as frames."""

from collections.abc import Collection
from functools import cached_property
from io import StringIO
from pathlib import Path
from typing import Any

import pandas as pd

from ablate.run_files import read_text
from ablate.study.analysis.collect import Study, StudyRun, collect
from ablate.study.analysis.derived import COSTS
from ablate.study.analysis.rows import Report, assemble
from ablate.study.numbers import counted
from ablate.study.report.to_json import to_json


class LoadedStudy:
    """The result of `load_study`.

    runs: a row for each run, with its state, its metrics and its cost. curves: the rows of all
    metrics.csv. arms: a row for each arm, with its mean, its difference from the baseline and its
    verdict. These three have a column for each factor, such as "model.attention", and runs and
    curves one for study.blocks. claims: a row for each claim. report: the content of report.json.
    """

    def __init__(self, study: Study, report: Report) -> None:
        self._study, self._report = study, report
        self.folder: Path = study.folder
        self.name: str = study.name
        self.metric: str = report.metric
        self.baseline: str = study.baseline.name
        self.report: dict[str, Any] = to_json(report)

    @cached_property
    def runs(self) -> pd.DataFrame:
        names = self._study.metrics
        rows = [
            self._head(run)
            | {"state": run.state, "folder": str(run.folder)}
            | {name: run.value(name) for name in (*names, *COSTS)}
            for run in self._study.runs
        ]
        return pd.DataFrame(rows)

    @cached_property
    def curves(self) -> pd.DataFrame:
        frames = []
        for run in self._study.runs:
            path = run.folder / "metrics.csv"
            if path.is_file():
                frame = pd.read_csv(StringIO(read_text(path)))
                head = {name: value for name, value in self._head(run).items() if name not in frame}
                for place, (name, value) in enumerate(head.items()):
                    frame.insert(place, name, value)
                frames.append(frame)
        return pd.concat(frames, ignore_index=True) if frames else pd.DataFrame()

    def _head(self, run: StudyRun) -> dict[str, Any]:
        own = {"arm": run.arm, "seed": run.seed}
        return own | self._study.options(run.arm, run.block) | own

    @cached_property
    def arms(self) -> pd.DataFrame:
        frame = self._frame("arms", "name", drop=("values", "changes", "interval"))
        options = [self._study.options(name) for name in frame.index]
        factors = dict.fromkeys(factor for of in options for factor in of)
        return frame.assign(**{factor: [of.get(factor) for of in options] for factor in factors})

    @cached_property
    def claims(self) -> pd.DataFrame:
        return self._frame("claims", "statement", drop=("terms", "interval"))

    @cached_property
    def verdicts(self) -> dict[str, str]:
        """Arm -> its verdict in words."""
        return {row.arm.name: row.verdict for row in self._report.others}

    def _frame(self, part: str, index: str, drop: Collection[str]) -> pd.DataFrame:
        rows = []
        for entry in self.report[part]:
            low, high = entry["interval"] or (None, None)
            kept = {key: value for key, value in entry.items() if key not in drop}
            rows.append(kept | {"low": low, "high": high})
        return pd.DataFrame(rows).set_index(index) if rows else pd.DataFrame()

    def __repr__(self) -> str:
        arms, seeds = counted(len(self._study.arms), "arm"), counted(len(self._study.seeds), "seed")
        lines = [f"study {self.name}: {arms}, {seeds}, {self.metric}"]
        lines += [f"  {arm}: {words}" for arm, words in self.verdicts.items()]
        lines += [f"  {entry.verdict}: {entry.sentence}" for entry in self._report.claims]
        return "\n".join(lines)

    def _repr_html_(self) -> str:
        shown = ["n", "mean", "sd", "difference", "low", "high", "p", "verdict"]
        table: str = self.arms[shown].to_html(float_format="{:.4g}".format)
        return table


def load_study(
    folder: str | Path, *, metric: str | None = None, allow: Collection[str] = ()
) -> LoadedStudy:
    """Read a study's folder, as python -m ablate.report does, and write nothing.

    metric: other than the study's. allow: ignore these rules. UserError if it is not a study, or
    if no run has the metric.
    """
    study = collect(folder)
    return LoadedStudy(study, assemble(study, metric, None, allow))
