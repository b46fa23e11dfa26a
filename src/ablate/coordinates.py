"""Coordinate check: do activations move as far at every width, or depth, in the first steps?

python -m ablate.coordinates model.dim=64,128,256 model.base_dim=64
python -m ablate.coordinates model.depth=2,4,8 model.base_depth=2 model.init_depth_scale=false

Slopes are powers of the size; a learning rate that transfers has slopes near 0. All steps are on
one batch, on the CPU, at the rate optimizer.lr.
"""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING

from rich.table import Table

from ablate.cli.command import Arguments, command
from ablate.config.composition import compose
from ablate.config.overrides import key_of
from ablate.errors import UserError
from ablate.machine.terminal.console import Console

if TYPE_CHECKING:
    from collections.abc import Sequence

    from ablate.training.coordinates import Distances

SIZES = ("model.dim", "model.depth")


def draw(key: str, sizes: Sequence[int], measured: Sequence[Distances], out: Path) -> Path:
    """A panel for each kind of activation: its change by size, a line for each step."""
    from matplotlib import colormaps
    from matplotlib.figure import Figure

    from ablate.figures.save import save

    kinds = list(measured[0])
    figure = Figure(figsize=(2.6 * len(kinds), 2.8), layout="constrained")
    axes = figure.subplots(1, len(kinds), sharey=True, squeeze=False)[0]
    for axis, kind in zip(axes, kinds, strict=True):
        steps = len(measured[0][kind])
        for step in range(steps):
            values, color = [each[kind][step] for each in measured], (step + 1) / steps
            line = {"color": colormaps["viridis_r"](color), "label": f"step {step + 1}"}
            axis.plot(sizes, values, "o-", markersize=3, linewidth=1.2, **line)
        axis.set(title=kind, xlabel=key, xscale="log", yscale="log")
        axis.set_xticks(sizes, [str(size) for size in sizes])
        axis.tick_params(axis="x", which="minor", bottom=False, labelbottom=False)
        axis.grid(alpha=0.3)
    axes[0].set_ylabel("mean absolute change")
    figure.legend(*axes[0].get_legend_handles_labels(), loc="outside right upper")
    return save(figure, out)


def swept(overrides: Sequence[str]) -> tuple[str, list[int], list[str]]:
    """The key of the sizes, the sizes, and the other overrides. Raises UserError."""
    found = [text for text in overrides if key_of(text) in SIZES and "," in text]
    if len(found) != 1:
        raise UserError(
            f"set either {' or '.join(SIZES)} to several values, such as model.dim=64,128,256"
        )
    key, _, values = found[0].partition("=")
    try:
        sizes = sorted({int(value) for value in values.split(",")})
    except ValueError:
        raise UserError(f"{found[0]}: must be integers separated by commas") from None
    if len(sizes) < 2:
        raise UserError(f"{found[0]}: a slope needs two sizes at least")
    return key, sizes, [text for text in overrides if text is not found[0]]


def main() -> None:
    parser = Arguments(prog="python -m ablate.coordinates", description=__doc__)
    parser.add_argument(
        "overrides", nargs="+", help="overrides, with several values of model.dim or model.depth"
    )
    parser.add_argument("--steps", type=int, default=4, help="optimizer steps (default 4)")
    parser.add_argument(
        "--out", type=Path, default=Path("coordinates.png"), help="figure (default coordinates.png)"
    )
    parser.add_argument("--config-dir", metavar="DIR", help="directory with your own options")
    args = parser.parse_intermixed_args()
    if args.steps < 1:
        raise UserError(f"--steps {args.steps}: must be 1 at least")
    if args.out.suffix != ".png":
        raise UserError(f"--out {args.out}: must be a file NAME.png")
    key, sizes, others = swept(args.overrides)
    composed = [compose(*others, f"{key}={n}", config_dir=args.config_dir) for n in sizes]
    from ablate.training.coordinates import distances, slopes

    measured = [distances(cfg, args.steps) for cfg in composed]
    table = Table("slope after step", *map(str, range(1, args.steps + 1)))
    for kind, each in slopes(sizes, measured).items():
        table.add_row(kind, *(f"{slope:+.2f}" for slope in each))
    Console(highlight=False, markup=False).print(table)
    print(draw(key, sizes, measured, args.out))


if __name__ == "__main__":
    command(main)
