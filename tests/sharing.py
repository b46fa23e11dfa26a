"""Processes that share each sequence against one process, in float64: losses and gradients.

    python tests/sharing.py PROCESSES < CASES, a JSON {name: overrides} > {name: [loss, gradient]}

Both are the largest difference, that of a gradient over the largest number in it. All cases share
one start of the processes.
"""

import json
import sys
from collections.abc import Mapping
from pathlib import Path
from tempfile import TemporaryDirectory
from types import SimpleNamespace
from typing import Any

import torch
import torch.distributed as dist
from omegaconf import DictConfig
from torch import Tensor
from torch.multiprocessing.spawn import start_processes

from ablate.config.composition import compose
from ablate.data import Data, Request
from ablate.kernel.context_parallel import join_group
from ablate.task import Task, total
from ablate.task.accumulation import Accumulated
from ablate.training.build import build, build_data, make_task

EXAMPLES = 2


def step(task: Task, batch: Mapping[str, Tensor], rank: int, world: int) -> dict[str, Tensor]:
    """The loss and the gradients of a step, averaged over the processes."""
    trainer: Any = SimpleNamespace(world_size=world, global_rank=rank, strategy=None)
    task._trainer, task.step_so_far = trainer, Accumulated(1)
    task.draws.keys = task.draws.of_batch(0, 3)
    task.zero_grad()
    with task.own_positions(dict(batch)) as own:
        loss = total(task.terms(own))
    loss.backward()  # type: ignore[no-untyped-call]
    results = {"loss": loss.detach()}
    for name, parameter in task.model.named_parameters():
        assert parameter.grad is not None, name
        results[name] = parameter.grad.clone()
    if world > 1:
        for value in results.values():
            dist.all_reduce(value)
            value /= world
    return results


def differences(cfg: DictConfig, data: Data, rank: int, world: int) -> list[float]:
    model = build(cfg, data).double()
    task = make_task(cfg, data, model).train()
    batch = {
        name: value.double() if value.is_floating_point() else value
        for name, value in data.splits["train"][Request(0, torch.arange(EXAMPLES))].items()
    }
    alone = step(task, batch, 0, 1)
    data.context_parallel, task.group = world, join_group(world)
    shared = step(task, batch, rank, world)
    data.context_parallel = 1
    of_gradients = [
        float((shared[name] - value).abs().max() / value.abs().max().clamp(min=1e-6))
        for name, value in alone.items()
        if name != "loss"
    ]
    return [float((shared["loss"] - alone["loss"]).abs()), max(of_gradients)]


def work(rank: int, world: int, cases: dict[str, tuple[DictConfig, Data]], folder: str) -> None:
    torch.set_num_threads(1)
    store = dist.FileStore(f"{folder}/store", world)
    dist.init_process_group("gloo", store=store, rank=rank, world_size=world)
    found = {name: differences(*case, rank, world) for name, case in cases.items()}
    if rank == 0:
        Path(folder, "found.json").write_text(json.dumps(found))
    dist.destroy_process_group()


if __name__ == "__main__":
    with TemporaryDirectory() as place:
        composed = {name: compose(*case) for name, case in json.load(sys.stdin).items()}
        cases = {name: (cfg, build_data(cfg)) for name, cfg in composed.items()}
        arguments = (int(sys.argv[1]), cases, place)
        start_processes(work, arguments, nprocs=arguments[0], start_method="fork")
        print(Path(place, "found.json").read_text())
