"""Draws docs/figures/reverse_length.png from the runs of `python -m ablate sweep=reverse_length`.

    python docs/figures/reverse_length.py [STUDY_DIR]

The share of test sequences written backwards without a mistake, by source length: after Bahdanau et
al. 2015 (https://arxiv.org/abs/1409.0473), figure 2, which shows BLEU by sentence length.
"""

import json
import re
import sys
from pathlib import Path

from matplotlib.figure import Figure

OUT = Path(__file__).with_suffix(".png")
BIN = re.compile(r"test/accuracy/length_(\d+)-(\d+)")


def accuracies(folder: Path) -> dict[str, list[tuple[float, float]]]:
    """Score -> (middle of the lengths, accuracy), of the finished runs."""
    found = {}
    for path in sorted(folder.glob("*/result.json")):
        result = json.loads(path.read_text())
        if result["status"] != "finished":
            continue
        points = []
        for name, value in result["metrics"].items():
            if bounds := BIN.fullmatch(name):
                points.append(((int(bounds[1]) + int(bounds[2])) / 2, value))
        found[result["choices"]["model.attention"]] = sorted(points)
    return found


def main() -> None:
    found = accuracies(Path(sys.argv[1] if len(sys.argv) > 1 else "outputs/reverse_length"))
    figure = Figure(figsize=(6.4, 4), layout="constrained")
    axes = figure.subplots()
    for place, (score, points) in enumerate(sorted(found.items())):
        style = {"color": "black", "linestyle": "--"} if score == "none" else {"color": f"C{place}"}
        label = "no attention" if score == "none" else score
        axes.plot(*zip(*points, strict=True), marker="o", label=label, **style)
    axes.set_xlabel("integers in the source")
    axes.set_ylabel("sequences reversed without a mistake")
    axes.set_ylim(-0.02, 1.02)
    axes.legend()
    figure.savefig(OUT, dpi=120)
    print(OUT)


if __name__ == "__main__":
    main()
