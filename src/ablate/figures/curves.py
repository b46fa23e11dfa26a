"""Loss curves of a run."""

import csv
from pathlib import Path

from ablate.figures.save import save


def draw_curves(metrics: Path, out: Path, *, unit: str = "nats") -> Path:
    """Training and validation loss over steps, from metrics.csv, as a PNG."""
    from matplotlib.figure import Figure

    with open(metrics, encoding="utf-8", newline="") as file:
        rows = list(csv.DictReader(file))
    figure = Figure(figsize=(6.4, 4.0), layout="constrained")
    axis = figure.subplots()
    for column, name, style in (("train/loss", "training", "-"), ("val/loss", "validation", "o-")):
        points = [(int(r["step"]), float(r[column])) for r in rows if r.get(column)]
        if points:
            axis.plot(*zip(*points, strict=True), style, label=name, markersize=4, linewidth=1.2)
    axis.set(xlabel="optimizer step", ylabel=f"loss ({unit})")
    axis.grid(alpha=0.3)
    axis.legend()
    return save(figure, out)
