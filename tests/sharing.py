"""Processes that share out a model, or each sequence, against one process, in float64.

    python tests/sharing.py model|sequence < [[PROCESSES, CASES], ...] > [{NAME: ...}, ...]

CASES: a JSON {NAME: case}. Python starts once, and makes the models of all cases; it computes no
gradient, so that the processes can be its forks.
"""

import json
import os
import subprocess
import sys
from collections.abc import Mapping
from copy import deepcopy
from pathlib import Path
from tempfile import TemporaryDirectory
from types import SimpleNamespace
from typing import Any

import make_model
import torch
import torch.distributed as dist
from torch import Tensor, nn
from torch.multiprocessing.spawn import start_processes

from ablate.config.composition import compose
from ablate.data import Request
from ablate.interface.splits import Part
from ablate.kernel.context_parallel import join_group
from ablate.model.base import outputs
from ablate.model.layers.split import split
from ablate.parallel import Sharing
from ablate.random.draws import Draws
from ablate.task import Task, total
from ablate.task.accumulation import Accumulated
from ablate.training.build import build, build_data, make_task


def differences(what: str, *jobs: tuple[int, Mapping[str, Any]]) -> list[dict[str, Any]]:
    """What `of_model` or `of_sequence` find. jobs: how many processes compute which cases."""
    ended = subprocess.run(
        [sys.executable, __file__, what],
        input=json.dumps(jobs),
        stdout=subprocess.PIPE,
        text=True,
        check=True,
        timeout=900,
        env=os.environ | {"OMP_NUM_THREADS": "1"},
    )
    found: list[dict[str, Any]] = json.loads(ended.stdout.splitlines()[-1])
    return found


def work(rank: int, world: int, what: str, cases: dict[str, Any], folder: str) -> None:
    torch.set_num_threads(1)
    store = dist.FileStore(f"{folder}/store", world)
    dist.init_process_group("gloo", store=store, rank=rank, world_size=world)
    found = {}
    for name, case in cases.items():
        try:
            found[name] = KINDS[what][1](case, rank, world)
        except Exception as error:
            error.add_note(name)
            raise
    if rank == 0:
        Path(folder, "found.json").write_text(json.dumps(found))
    dist.destroy_process_group()


def main(what: str) -> None:
    jobs = json.load(sys.stdin)
    every = {name: case for _, cases in jobs for name, case in cases.items()}
    made = {name: KINDS[what][0](*case) for name, case in every.items()}
    found = []
    for number, cases in jobs:
        with TemporaryDirectory() as folder:
            arguments = (number, what, {name: made[name] for name in cases}, folder)
            start_processes(work, arguments, nprocs=number, start_method="fork")
            found.append(json.loads(Path(folder, "found.json").read_text()))
    print(json.dumps(found))


def apart(ours: Tensor, theirs: Tensor) -> float:
    assert ours.shape == theirs.shape
    return float((ours - theirs).abs().max())


# A model: its heads and hidden units

SIZES = {"dim": 16, "heads": 4, "dropout": 0.1, "ffn_dim": 48}


def make_one(name: str, keys: Mapping[str, Any]) -> tuple[str, Any]:
    """A model of make_model with these keys."""
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
    return name, model


def of_model(made: tuple[str, Any], rank: int, world: int) -> dict[str, Any]:
    """The largest differences of the outputs, of gradients by name, and of those whose norm was
    clipped, relative to the largest number there; and the share of the numbers that is kept."""
    name, whole = made
    mine, part = deepcopy(whole), Part(rank, world, dist.group.WORLD)
    expected = computed(name, whole)
    layout = split(mine, part)
    output = max(
        apart(ours, theirs) / float(theirs.abs().max())
        for ours, theirs in zip(computed(name, mine), expected, strict=True)
    )
    strategy = Sharing(tensor=world, sharded=False)
    strategy._model = nn.ModuleDict({"model": mine})
    strategy.layout, strategy.part, strategy._data_parallel_size = layout, part, 1

    strategy.reduce_gradients()
    largest = max(float(p.grad.abs().max()) for p in whole.parameters())
    gradients = {}
    for (path, theirs), ours in zip(whole.named_parameters(), mine.parameters(), strict=True):
        assert ours.grad is not None, path
        assert theirs.grad is not None, path
        gradients[path] = apart(strategy._whole(path, ours.grad), theirs.grad) / largest
    assert nn.utils.clip_grad_norm_(whole.parameters(), 1e-3) > 1e-3
    strategy.clip_gradients(1e-3)
    clipped = torch.tensor(
        [
            apart(ours.grad, strategy._mine(path, theirs.grad)) / 1e-3
            for (path, theirs), ours in zip(
                whole.named_parameters(), mine.parameters(), strict=True
            )
        ]
    )
    dist.all_reduce(clipped, dist.ReduceOp.MAX)
    kept = sum(p.numel() for p in mine.parameters()) / sum(p.numel() for p in whole.parameters())
    return {"output": output, "gradients": gradients, "clipped": float(clipped.max()), "kept": kept}


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


# Each sequence: its positions

EXAMPLES = 2


def make_step(*overrides: str) -> tuple[Task, dict[str, Tensor]]:
    """The task of a composition, and a batch of its data."""
    cfg = compose(*overrides)
    data = build_data(cfg)
    task = make_task(cfg, data, build(cfg, data).double()).train()
    batch = data.splits["train"][Request(0, torch.arange(EXAMPLES))]
    return task, {n: x.double() if x.is_floating_point() else x for n, x in batch.items()}


def of_sequence(made: tuple[Task, dict[str, Tensor]], rank: int, world: int) -> list[float]:
    """The difference of the loss, and the largest of a gradient, relative to its largest number."""
    task, batch = made
    alone = step(task, batch, 0, 1)
    task.data.context_parallel, task.group = world, join_group(world)
    shared = step(task, batch, rank, world)
    of_gradients = [
        apart(shared[name], value) / float(value.abs().max().clamp(min=1e-6))
        for name, value in alone.items()
        if name != "loss"
    ]
    return [apart(shared["loss"], alone["loss"]), max(of_gradients)]


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


KINDS: dict[str, Any] = {"model": (make_one, of_model), "sequence": (make_step, of_sequence)}

if __name__ == "__main__":
    main(*sys.argv[1:])
