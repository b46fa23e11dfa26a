"""The rule's score and the reward model's, against the divergence from the reference model.

As Gao et al. 2022, figure 1, https://arxiv.org/abs/2210.10760.
"""

from __future__ import annotations

import csv
from collections.abc import Mapping
from pathlib import Path
from typing import TYPE_CHECKING, Any

from ablate.figures.save import save

if TYPE_CHECKING:
    from ablate.systems.rlhf.preferences import Preferences


def draw_preference(
    metrics: Path, out: Path, start: Mapping[str, float], data: Preferences
) -> Path:
    """A PNG of both gains at each validation of metrics.csv. start: the reference model's scores.

    With preferences by Bradley and Terry's model the difference of two scores of a perfect reward
    model is that of the rule's over the temperature, so that both have one axis.
    """
    from matplotlib.figure import Figure

    with open(metrics, encoding="utf-8", newline="") as file:
        rows = [row for row in csv.DictReader(file) if row.get("val/kl")]
    divergence = [0.0] + [float(row["val/kl"]) for row in rows]
    figure = Figure(figsize=(6.4, 4.2), layout="constrained")
    axis = figure.subplots()
    for name, label, style, unit in (
        ("reward", "reward model", "s--", 1.0),
        ("gold", f"gold rule: {data.preference_rule}", "o-", data.temperature),
    ):
        gains = [0.0] + [(float(row[f"val/{name}"]) - start[name]) / unit for row in rows]
        axis.plot(divergence, gains, style, label=label, markersize=4, linewidth=1.2)
    axis.axhline(0, color="gray", linewidth=0.8)
    axis.annotate("reference model", (0, 0), (10, 4), textcoords="offset points", fontsize=8)
    if rows:
        last = f"step {int(float(rows[-1]['step']))}"
        end = (divergence[-1], gains[-1])
        near: dict[str, Any] = {"textcoords": "offset points", "fontsize": 8, "ha": "right"}
        axis.annotate(last, end, (-6, -3), **near)
    axis.set(
        xlabel="divergence from the reference model (KL, nats per response)",
        ylabel="gain over the reference model\n(log-odds of being preferred)",
        title="Scores of the responses by the reward model and by the gold rule",
    )
    axis.title.set_fontsize(10)
    axis.grid(alpha=0.3)
    axis.legend()
    return save(figure, out)
