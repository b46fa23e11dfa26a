"""Memory of a process when several share each sequence (trainer.context_parallel), on the CPU.

    OMP_NUM_THREADS=1 python benchmarks/context_parallel.py --length 4096 [OVERRIDE ...]

A training step of a GPT of width 256 in 4 blocks, of one text, in float32, by one, two and four
processes with gloo. `kept` is what the forward pass leaves for the backward pass beside parameters
and their gradients, in MB of tensors (torch's profiler) of the process with the most; `peak` is the
most during the step; `pairs` is the share of the pairs of queries and keys under a causal mask that
the busiest process computes.
"""

import argparse
import json
from collections.abc import Callable
from pathlib import Path
from tempfile import TemporaryDirectory
from types import SimpleNamespace
from typing import Any

import torch
import torch.distributed as dist
from torch import Tensor
from torch.multiprocessing.spawn import start_processes
from torch.profiler import ProfilerActivity, profile, record_function

import ablate
from ablate.kernel.context_parallel import Chunks, join_group
from ablate.model.layers.stack import Stack

SIZES = ["model.dim=256", "model.depth=4", "model.heads=4", "logger=none"]
VOCABULARY = 256


def memory(step: Callable[[], Tensor]) -> tuple[float, float]:
    """MB of tensors between forward and backward pass, and the most of a step."""
    with profile(activities=[ProfilerActivity.CPU], profile_memory=True) as found:
        loss = step()
        with record_function("BACKWARD"):
            loss.backward()  # type: ignore[no-untyped-call]
    events = sorted(found.profiler.kineto_results.events(), key=lambda event: event.start_ns())
    now = most = kept = 0
    for event in events:
        if event.name() == "BACKWARD":
            kept = now
        elif event.name() == "[memory]":
            now += event.nbytes()
            most = max(most, now)
    return kept / 2**20, most / 2**20


def measure(rank: int, size: int, length: int, overrides: list[str], folder: str) -> None:
    torch.set_num_threads(1)
    store = dist.FileStore(f"{folder}/store", size)
    dist.init_process_group("gloo", store=store, rank=rank, world_size=size)
    data: Any = SimpleNamespace(sizes={"vocab_size": VOCABULARY, "length": length})
    model = ablate.build(ablate.compose(*SIZES, *overrides), data)
    tokens = torch.randint(VOCABULARY, (1, length + 1))
    read, targets = tokens[:, :-1], tokens[:, 1:]
    if size > 1:
        part = Chunks(rank, size, length, join_group(size))
        read, targets = part.of(read), part.of(targets)
        for stack in model.modules():
            if isinstance(stack, Stack):
                stack.part = part

    def step() -> Tensor:
        logits = model(read)
        return torch.nn.functional.cross_entropy(logits.flatten(0, 1), targets.flatten())

    memory(step)  # gradients are there from now on
    kept, peak = memory(step)
    found = {"kept": kept, "peak": peak}
    Path(folder, f"{rank}.json").write_text(json.dumps(found))
    dist.barrier()
    dist.destroy_process_group()


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.partition("\n")[0])
    parser.add_argument("--length", type=int, default=4096)
    parser.add_argument("overrides", nargs="*")
    given = parser.parse_args()
    one: dict[str, float] = {}
    for size in (1, 2, 4):
        with TemporaryDirectory() as folder:
            arguments = (size, given.length, given.overrides, folder)
            start_processes(measure, arguments, nprocs=size, start_method="spawn")
            every = [json.loads(path.read_text()) for path in Path(folder).glob("*.json")]
        most = {key: max(process[key] for process in every) for key in every[0]}
        one = one or most
        parts = [Chunks(rank, size, given.length, None).positions(torch.device("cpu"))
                 for rank in range(size)]  # fmt: skip
        pairs = [int((part + 1).sum()) for part in parts]
        print(
            f"processes {size}  kept {most['kept']:.0f} MB ({most['kept'] / one['kept']:.2f})"
            f"  peak {most['peak']:.0f} MB ({most['peak'] / one['peak']:.2f})"
            f"  pairs {max(pairs) / sum(pairs):.3f}",
            flush=True,
        )


if __name__ == "__main__":
    main()
