"""The runs of the arms: runs.csv, links to their folders and W&B pages, figures and samples."""

import os
import re
from base64 import b64encode
from io import BytesIO
from itertools import islice
from pathlib import Path
from urllib.parse import quote

import pandas as pd

from ablate.run_files import CorruptFile, open_file, read_text
from ablate.study.analysis.collect import Study, StudyRun
from ablate.study.analysis.rows import Report

MOST_ARMS = 8  # side by side
MOST_FIGURES = 4
WIDE = 480  # pixels of a figure in the page
MOST_PIXELS = 1 << 25
LONGEST = 1 << 24  # bytes of a figure that is read
LETTERS = 600  # of a sample in the page
W_AND_B = re.compile(r"https?://[^\s;,]+/runs/[\w-]+")
NUMBERS = (  # of a run, in runs.csv
    "flops_per_step", "steps", "best_step", "train_seconds", "wall_seconds", "peak_memory_bytes"
)  # fmt: skip
Sample = tuple[str, str, str]  # label of the arm, address of the file, text
Picture = tuple[str, list[tuple[str, str, str]]]  # name; label, address and small copy of each arm


def link(report: Report, path: Path) -> str:
    """Return the address of a file or folder, relative to the page."""
    # A folder's name may have a colon, and must not become a scheme.
    return quote(Path(os.path.relpath(path, report.study.folder)).as_posix(), safe="/=")


def shown(report: Report) -> dict[str, StudyRun]:
    """Map arms to their first finished run, each run once: the baseline, the largest differences,
    then arms that are not compared."""
    rows = [report.baseline, *report.largest(MOST_ARMS - 1)]
    rows += [row for row in report.others if row.comparison is None]
    found = {}
    for arm in (row.arm for row in rows if row.arm.same_as is None):
        runs = report.study.runs_of(arm.name).values()
        if first := next((run for run in runs if run.finished), None):
            found[arm.name] = first
    return dict(islice(found.items(), MOST_ARMS))


def pictures(report: Report) -> list[Picture]:
    """The PNGs that these runs drew, but for their curves; of many layers the first and last."""
    runs = shown(report)
    drawn = {path.name for run in runs.values() for path in (run.folder / "figures").glob("*.png")}
    names = sorted(drawn - {"curves.png"})
    half = MOST_FIGURES // 2
    names = names if len(names) <= MOST_FIGURES else names[:half] + names[-half:]
    by_name = []
    for name in names:
        copies = [
            (report.labels[arm], link(report, file), small)
            for arm, run in runs.items()
            if (small := embedded(file := run.folder / "figures" / name))
        ]
        by_name += [(name, copies)] if copies else []
    return by_name


def embedded(path: Path) -> str | None:
    """Return a small copy of a PNG as a data: address; None if there is none or it is damaged."""
    from PIL import Image

    try:
        with open_file(path, longest=LONGEST) as file, Image.open(file, formats=["PNG"]) as image:
            if image.width * image.height > MOST_PIXELS:
                return None
            small = image.convert("RGB")
            small.thumbnail((WIDE, 2 * WIDE))
            small.quantize(64).save(out := BytesIO(), "PNG", optimize=True)
    except (CorruptFile, OSError, SyntaxError, ValueError, Image.DecompressionBombError):
        return None
    return f"data:image/png;base64,{b64encode(out.getvalue()).decode()}"


def samples(report: Report) -> list[Sample]:
    """The beginnings of the samples (sample.txt) of these runs."""
    every = []
    for arm, run in shown(report).items():
        try:
            text = read_text(file := run.folder / "sample.txt", longest=LONGEST)
        except (CorruptFile, OSError):
            continue
        text = text[:LETTERS] + " …" * (len(text) > LETTERS)
        every.append((report.labels[arm], link(report, file), text))
    return every


def runs_csv(study: Study) -> str:
    """Write a row per folder of a run, tuning runs included. The arm is the one that trained it,
    the first of those that share it (cells.py); `same_as` names the others."""
    cells: dict[tuple[str, Path], list[StudyRun]] = {}
    for kind, runs in (("run", study.runs), ("tune", study.tuning)):
        for run in runs:
            cells.setdefault((kind, run.folder), []).append(run)
    rows = [
        {
            **dict.fromkeys(("arm", "same_as", "seed")),  # the first columns
            **study.options(run.arm, run.block),
            "arm": run.arm,
            "same_as": "; ".join(other.arm for other in others),
            "seed": run.seed,
            "kind": kind,
            "state": run.state,
            "run_id": run.run_id,
            "folder": run.folder.name,
            "detail": run.detail,
            **{name: run.result.get(name) for name in NUMBERS},
            "rate": run.number("throughput", "value"),
            **{f"parameters/{name}": run.number("parameters", name)
               for name in ("total", "trainable", "non_embedding")},
            **{f"choice/{key}": option for key, option in run.result.get("choices", {}).items()},
            **run.result.get("metrics", {}),
        }
        for (kind, _), (run, *others) in cells.items()
    ]  # fmt: skip
    text: str = pd.DataFrame(rows, dtype=object).to_csv(index=False, lineterminator="\n")
    return text
