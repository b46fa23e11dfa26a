"""What a change does, before anything is trained: parameters, FLOPs, outputs at initialisation.

python -m ablate.diff "model.attention=dot" "model.attention=cosine"
python -m ablate.diff "model=vit" "model=vit model.norm=post"
python -m ablate.diff RUN_DIR RUN_DIR

Each argument is a list of overrides, separated by spaces, or the folder of a run, whose config.yaml
it is. Models are built as at the start of training, each from its seed.
"""

import shlex
from collections.abc import Collection, Iterable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch
from omegaconf import DictConfig
from rich.table import Column, Table
from torch import Tensor, nn

from ablate.cli.command import Arguments, add_allow, command
from ablate.config.composition import compose
from ablate.config.keys import changed_keys
from ablate.config.overrides import value_text
from ablate.config.saved import read_config
from ablate.data import Data
from ablate.errors import UserError
from ablate.model.base import outputs
from ablate.model.layers.stack import kernels
from ablate.run_files import require_run
from ablate.study.plan.budget import DataSets
from ablate.terminal.console import Console
from ablate.training.build import build, count_cache, count_flops, make_task
from ablate.training.cache import CacheBytes
from ablate.training.record import count_parameters
from ablate.training.same_model import SameModel


@dataclass
class Side:
    """One of the two compositions, with its built model."""

    config: DictConfig
    model: nn.Module
    flops: int
    cache: CacheBytes | None
    inputs: tuple[Tensor, ...]
    outputs: list[Tensor]


@dataclass
class Difference:
    """What differs between two compositions.

    keys: config key -> the two values. only_first, only_second, other_values: names of parameters.
    output: largest absolute difference of the outputs on the first validation example at
    initialisation; None where they have different shapes or read different data. none: whether
    nothing changed but the spelling (see SameModel); None: the models are too large to tell.
    """

    keys: dict[str, tuple[Any, Any]]
    parameters: tuple[int, int]
    flops: tuple[int, int]
    cache: tuple[CacheBytes | None, CacheBytes | None]
    kernels: tuple[list[str], list[str]]
    only_first: list[str]
    only_second: list[str]
    other_values: list[str]
    output: float | None
    none: bool | None


def side(config: DictConfig, data: Data) -> Side:
    model = build(config, data).eval()
    task = make_task(config, data, model)
    inputs = task.inputs(task.prepared(data.example()))
    with torch.no_grad():
        computed = outputs(model(*inputs))
    flops, cache = count_flops(config, task), count_cache(config, task)
    return Side(config, model, flops, cache, inputs, computed)


def difference(first: DictConfig, second: DictConfig) -> Difference:
    """Build both compositions and compare them."""
    sets = DataSets()
    a, b = (side(config, sets(config)) for config in (first, second))
    of_first, of_second = (dict(s.model.named_parameters()) for s in (a, b))
    shared = [name for name in of_first if name in of_second]
    comparable = same_inputs(a, b) and shapes(a.outputs) == shapes(b.outputs)
    return Difference(
        keys=changed_keys(first, second),
        parameters=(count_parameters(a.model)["total"], count_parameters(b.model)["total"]),
        flops=(a.flops, b.flops),
        cache=(a.cache, b.cache),
        kernels=tuple(sorted(set(kernels(s.model).values())) for s in (a, b)),  # type: ignore[arg-type]
        only_first=[name for name in of_first if name not in of_second],
        only_second=[name for name in of_second if name not in of_first],
        other_values=[name for name in shared if not torch.equal(of_first[name], of_second[name])],
        output=largest_gap(a, b) if comparable else None,
        none=SameModel(first, sets)(second, b.model),
    )


def same_inputs(a: Side, b: Side) -> bool:
    """Whether both read the same example, which other data or another task may have changed."""
    return shapes(a.inputs) == shapes(b.inputs) and all(map(torch.equal, a.inputs, b.inputs))


def shapes(tensors: Iterable[Tensor]) -> list[torch.Size]:
    return [tensor.shape for tensor in tensors]


def largest_gap(a: Side, b: Side) -> float:
    return max((x - y).abs().max().item() for x, y in zip(a.outputs, b.outputs, strict=True))


def show(difference: Difference) -> None:
    table = Table(*(Column(name, overflow="fold") for name in ("", "first", "second")))
    for key, (before, after) in difference.keys.items():
        table.add_row(key, value_text(before), value_text(after))
    table.add_section()
    table.add_row("parameters", *(f"{count:,}" for count in difference.parameters))
    table.add_row("FLOPs a step", *(f"{count:,}" for count in difference.flops))
    if any(difference.cache):
        for name in CacheBytes._fields:
            sizes = (getattr(cache, name) if cache else 0 for cache in difference.cache)
            table.add_row(f"cache bytes, {name.replace('_', ' ')}", *(f"{n:,}" for n in sizes))
    table.add_row("kernels", *(", ".join(names) or "-" for names in difference.kernels))
    console = Console(soft_wrap=True, highlight=False, markup=False)
    console.print(table)
    for what, names in (
        ("parameters only in the first", difference.only_first),
        ("parameters only in the second", difference.only_second),
        ("parameters of one name that start otherwise", difference.other_values),
    ):
        if names:
            more = f" and {len(names) - 4} more" if len(names) > 4 else ""
            console.print(f"{what}: {', '.join(names[:4])}{more}", markup=False)
    if difference.none:
        console.print("No effect: the same parameters, initial values and function.")
    elif difference.output is None:
        console.print("Outputs at initialisation cannot be compared: other shapes or other data.")
    else:
        console.print(f"Outputs at initialisation differ by {difference.output:.3g} at most.")


def main() -> None:
    parser = Arguments(prog="python -m ablate.diff", description=__doc__.split("\n")[0])
    parser.add_argument(
        "first", help='overrides in one string, "model=vit pos_enc=none", or the folder of a run'
    )
    parser.add_argument("second")
    add_allow(parser)
    args = parser.parse_args()
    show(difference(*(configuration(text, args.allow) for text in (args.first, args.second))))


def configuration(text: str, allow: Collection[str] = ()) -> DictConfig:
    """The configuration of a run's folder, or composed of overrides. Raises UserError.

    allow: modules beside ablate whose classes a run's config may name. Their code is run.
    """
    folder = Path(text).expanduser()
    if text and ("=" not in text or folder.is_dir()):
        require_run(folder, text)
        return read_config(folder / "config.yaml", allow)
    return compose(*words(text))


def words(text: str) -> list[str]:
    try:
        return shlex.split(text)
    except ValueError as error:
        raise UserError(f"cannot split {text!r} into overrides: {error}") from error


if __name__ == "__main__":
    command(main)
