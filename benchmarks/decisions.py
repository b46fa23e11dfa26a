"""Does a verdict at a small size apply to the largest? Of finished ladders (study.ladder).

    python benchmarks/decisions.py outputs/decisions outputs/ladder outputs/disputes/small_parts

Writes docs/results/decisions.csv and the page decisions.md; studies that are not named keep their
rows. A ladder of other sizes is judged alike, on a GPU server for instance

    python -m ablate sweep=decisions 'study.ladder.sizes=[10M,30M,124M]'
"""

import sys
from itertools import combinations
from pathlib import Path

import pandas as pd
from tables import table

from ablate.run_files import read_json

DATA = Path(__file__).parents[1] / "docs" / "results" / "decisions.csv"
MARKS = {"better": " ▲", "worse": " ▼", "equivalent": " ≈"}
HEAD = """# Decision accuracy

Does a verdict at a small size apply to a larger one? Each
[ladder](../how-to/write-a-sweep-file.md#a-ladder-of-sizes) repeats a study at several sizes. An arm
changes one part of the baseline of its study; cells are the difference of its validation loss, in
nats, from the baseline of the same size: ▲ better, ▼ worse, ≈ equivalent, no sign: no difference
shown. The last column compares the smallest size with the largest:

- **stays**: the same verdict
- **fades**: no difference is shown at the largest size
- **appears**: a difference is shown only at the largest size
- **turns**: the opposite verdict
- **open**: no difference is shown at either size

[decisions.csv](decisions.csv) has the intervals. `python benchmarks/decisions.py STUDY_DIRS` writes
both files.
"""


def outcome(small: str, large: str) -> str:
    """What becomes of a verdict at the largest size."""
    decided = {"better", "worse"}
    if small == large:
        return "stays" if small in MARKS else "open"
    if small in decided:
        return "turns" if large in decided else "fades"
    return "appears" if large in decided else "open"


def rows(folder: Path) -> list[dict[str, object]]:
    """A row for each size and arm of a study, the baselines' without a difference."""
    report = read_json(folder / "report.json")
    sizes = {
        size: {arm["name"]: arm for arm in block["arms"]}
        for size, block in report["blocks"].items()
    }
    largest = list(sizes)[-1]
    return [
        {
            "study": report["study"],
            "arm": name,
            "size": size,
            "mean": arm["mean"],
            "verdict": arm["verdict"],
            "difference": arm["difference"],
            "low": (arm["interval"] or [None, None])[0],
            "high": (arm["interval"] or [None, None])[1],
            "seeds": arm["n"],
            "outcome": ""
            if size == largest or name == report["baseline"]
            else outcome(arm["verdict"], sizes[largest][name]["verdict"]),
        }
        for size, arms in sizes.items()
        for name, arm in arms.items()
    ]


def agreement(every: pd.DataFrame, size: str, largest: str) -> dict[str, str]:
    """How often the results of a size agree with those of the largest, as "agreeing of all"."""
    arms = every.pivot(index=["study", "arm"], columns="size")
    small, large = arms.xs(size, axis=1, level="size"), arms.xs(largest, axis=1, level="size")
    compared = small.difference.notna() & large.difference.notna()
    fates = small.outcome[compared & small.verdict.isin(["better", "worse"])]
    sign = (small.difference * large.difference > 0)[compared]
    order = [
        (small["mean"][a] - small["mean"][b]) * (large["mean"][a] - large["mean"][b]) > 0
        for a, b in combinations(arms.index, 2)
        if a[0] == b[0]
    ]
    shown = {
        "differences shown that stay": (fates == "stays").sum(),
        "that turn": (fates == "turns").sum(),
    }
    return {
        "size": size,
        **{name: f"{count} of {len(fates)}" for name, count in shown.items()},
        f"differences with the sign of that at {largest}": f"{sign.sum()} of {len(sign)}",
        f"pairs of arms in the order at {largest}": f"{sum(order)} of {len(order)}",
    }


def page(every: pd.DataFrame) -> str:
    *smaller, largest = every["size"].unique()
    arms = every[every.verdict != "baseline"]
    cell = arms.difference.map("{:+.3f}".format) + arms.verdict.map(lambda v: MARKS.get(v, ""))
    by_arm = arms.assign(cell=cell).pivot(index=["study", "arm"], columns="size", values="cell")
    by_arm = by_arm[[*smaller, largest]].reset_index()
    first = arms[arms["size"] == smaller[0]].set_index(["study", "arm"]).outcome
    by_arm["outcome"] = [first[study, arm] for study, arm in by_arm[["study", "arm"]].values]
    accuracy = pd.DataFrame([agreement(every, size, largest) for size in smaller])
    return f"{HEAD}\n## By size\n\n{markdown(accuracy)}\n## By arm\n\n{markdown(by_arm)}"


def markdown(frame: pd.DataFrame) -> str:
    return table([*frame.columns], frame.to_numpy().tolist())


if __name__ == "__main__":
    if not sys.argv[1:]:
        raise SystemExit(__doc__)
    new = pd.DataFrame([row for name in sys.argv[1:] for row in rows(Path(name))])
    old = pd.read_csv(DATA).fillna({"outcome": ""})
    every = pd.concat([old[~old.study.isin(new.study)], new], ignore_index=True)
    every.to_csv(DATA, index=False, float_format="%.4f", lineterminator="\n")
    DATA.with_suffix(".md").write_text(page(every))
