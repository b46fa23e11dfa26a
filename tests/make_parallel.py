"""Models whose heads and hidden units several processes share out, beside the same in one."""

from collections.abc import Mapping
from pathlib import Path
from typing import Any, NamedTuple

import make_model
import torch
import torch.distributed as dist
import torch.multiprocessing as mp
from torch import Tensor, nn

from ablate.interface.splits import Part
from ablate.model.base import outputs
from ablate.model.layers.split import split
from ablate.parallel import Sharing
from ablate.random.draws import Draws

SIZES = {"dim": 16, "heads": 4, "dropout": 0.1, "ffn_dim": 48}


class Difference(NamedTuple):
    """The largest ones from one process, relative to the largest number there."""

    output: float
    gradients: dict[str, float]
    clipped: float  # of the gradients, when their norm is clipped
    kept: float  # share of the numbers in layers that a process has


def differences(
    cases: Mapping[str, tuple[str, Mapping[str, Any]]], processes: int, folder: Path
) -> dict[str, Difference | str]:
    """Case -> how it differs. cases: the model of make_model, and its keys."""
    mp.spawn(_process, (processes, dict(cases), str(folder)), nprocs=processes)  # type: ignore[no-untyped-call]
    found: dict[str, Difference | str] = torch.load(folder / "found.pt", weights_only=False)
    return found


def _process(rank: int, processes: int, cases: dict[str, Any], folder: str) -> None:
    torch.set_num_threads(1)
    dist.init_process_group(
        "gloo", init_method=f"file://{folder}/store", rank=rank, world_size=processes
    )
    found: dict[str, Any] = {}
    for name, (model, keys) in cases.items():
        try:
            found[name] = _difference(model, keys, Part(rank, processes, dist.group.WORLD))
        except Exception as error:  # alike in every process
            found[name] = f"{type(error).__name__}: {error}"
    if rank == 0:
        torch.save(found, f"{folder}/found.pt")
    dist.destroy_process_group()


def _difference(name: str, keys: Mapping[str, Any], part: Part) -> Difference:
    whole, mine = made(name, keys), made(name, keys)
    expected = computed(name, whole)
    layout = split(mine, part)
    got = computed(name, mine)
    strategy = Sharing(tensor=part.size, sharded=False)
    strategy._model = nn.ModuleDict({"model": mine})
    strategy.layout, strategy.part, strategy._data_parallel_size = layout, part, 1
    strategy.reduce_gradients()
    gradients, largest = {}, max(float(p.grad.abs().max()) for p in whole.parameters())  # type: ignore[union-attr]
    for (path, theirs), ours in zip(whole.named_parameters(), mine.parameters(), strict=True):
        assert ours.grad is not None, path
        assert theirs.grad is not None, path
        joined = strategy._whole(path, ours.grad)
        assert joined.shape == theirs.grad.shape, path
        gradients[path] = float((joined - theirs.grad).abs().max()) / largest
    count = sum(p.numel() for p in mine.parameters()) / sum(p.numel() for p in whole.parameters())
    norm = torch.nn.utils.clip_grad_norm_(whole.parameters(), 1e-3)
    strategy.clip_gradients(1e-3)
    clipped = (
        float((strategy._whole(path, ours.grad) - theirs.grad).abs().max())  # type: ignore[arg-type, operator]
        for (path, theirs), ours in zip(whole.named_parameters(), mine.parameters(), strict=True)
    )
    assert norm > 1e-3
    error = max(
        float((a - b).abs().max() / b.abs().max()) for a, b in zip(got, expected, strict=True)
    )
    return Difference(error, gradients, max(clipped) / 1e-3, count)


def made(name: str, keys: Mapping[str, Any]) -> Any:
    keys = {**SIZES, **keys}
    if isinstance(changed := keys.get("mixer"), dict):  # attention with keys of its own
        keys["mixer"] = make_model.part("model.mixer", "attention", **changed)
    model = make_model.tiny(name, **keys).double()
    torch.manual_seed(0)
    for parameter in model.parameters():  # those that start at zero, too
        nn.init.normal_(parameter, std=0.3)
    model.train()
    model.random_numbers = Draws(model)
    model.random_numbers.keys = model.random_numbers.of_batch(0, 1)
    return model


def computed(name: str, model: Any) -> list[Tensor]:
    """The outputs, after a backward pass of a sum of them with weights."""
    torch.manual_seed(1)
    tokens = torch.randint(5, 11, (3, 7))
    inputs: dict[str, tuple[Tensor, ...]] = {
        "gpt": (tokens,),
        "bert": (torch.randint(5, 11, (3, 9)), torch.arange(2).repeat(3, 1)),
        "vit": (torch.randn(3, 2, 6, 6).double(),),
        "transformer": (torch.randint(5, 11, (3, 8)), tokens),
        "gpt_seq2seq": (torch.randint(5, 11, (3, 8)), tokens),
    }
    found = [tensor for tensor in outputs(model(*inputs[name])) if tensor.is_floating_point()]
    losses = model.stack.losses if hasattr(model, "stack") else []
    weighed = [(tensor * torch.randn_like(tensor)).sum() for tensor in found]
    sum([*weighed, *(value for _, value in losses)]).backward()  # type: ignore[union-attr]
    return [tensor.detach() for tensor in found]
