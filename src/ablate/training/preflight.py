"""Check the machine before a run: devices, a compiler, a writable folder; warn of slow settings."""

import os
from collections.abc import Mapping
from importlib.util import find_spec
from pathlib import Path
from tempfile import TemporaryFile
from typing import Any

import torch
from lightning.pytorch.plugins.environments import TorchElasticEnvironment
from omegaconf import DictConfig

from ablate.config.composition import Composition
from ablate.config.conflicts import conflicts
from ablate.config.keys import to_dict
from ablate.config.parts import locate
from ablate.config.view import CompositionView, Unreadable
from ablate.errors import UserError
from ablate.kernel import chunked

# Of a run, relative to its folder.
WRITTEN = (
    "*.json", "*.yaml", "*.csv", "*.txt", "figures/*.png",
    "checkpoints/*.ckpt", "checkpoints/*.safetensors", "checkpoints/*.tmp",
    "checkpoints/*.json",
)  # fmt: skip
MANY, FEWER = 512, 256  # tokens of an image: the most without a message, and the number it suggests


def check_machine(cfg: DictConfig, gpus_per_run: int = 0) -> None:
    """Raise UserError if this machine lacks something that a run needs: devices, a compiler for
    compile=true, a logger's packages. gpus_per_run: GPUs that its launcher shows it; 0: all."""
    check_devices(cfg, gpus_per_run)
    values = to_dict(cfg)
    for node in (values["logger"], *(values["logger"] or {}).values()):  # one, or several
        if not isinstance(node, Mapping) or "_target_" not in node:
            continue
        packages = getattr(locate(node["_target_"]), "packages", ())
        if missing := [name for name in packages if find_spec(name) is None]:
            name = node["_target_"].split(".")[-2]
            raise UserError(f"logger={name} needs a package: pip install {' '.join(missing)}")


def check_devices(cfg: DictConfig, gpus_per_run: int = 0) -> None:
    """Raise UserError for devices that this machine lacks, or compile=true without a compiler."""
    values = to_dict(cfg)
    trainer = values["trainer"]
    kind, gpus = accelerator(trainer["accelerator"])
    devices = trainer["devices"]
    if kind == "cpu":
        if isinstance(devices, list):
            raise UserError(
                f"trainer.devices={devices}: CPU processes have no index; set their number,"
                f" trainer.devices={len(devices)}"
            )
    elif devices != "auto":
        numbers = list(range(devices)) if isinstance(devices, int) else list(devices)
        if len(set(numbers)) < len(numbers):
            raise UserError(f"trainer.devices={devices}: duplicate device")
        if max(numbers) >= gpus:
            raise UserError(f"trainer.devices={devices}: this machine has {gpus} GPU(s)")
        if gpus_per_run and max(numbers) >= gpus_per_run:
            raise UserError(
                f"trainer.devices={devices}: hydra.launcher.gpus_per_run={gpus_per_run} shows a run"
                f" {gpus_per_run} GPU(s); set it to at least {max(numbers) + 1}"
            )
    check_processes(trainer, gpus if devices == "auto" and gpus else devices)
    if kind == "mps" and trainer["strategy"] != "auto":
        raise UserError(
            f"trainer.strategy={trainer['strategy']} cannot run on Apple's GPU (mps); use"
            " trainer.strategy=auto, or trainer.accelerator=cpu"
        )
    if values["compile"] and not chunked.compiler(kind):
        raise UserError("compile=true needs a C++ compiler (g++ or clang++) on the path")
    if kind == trainer["accelerator"]:  # `check` has covered it
        return
    # Check the conflicts for the accelerator found: without a GPU, the rules for CPUs apply.
    resolved = {**values, "trainer": {**trainer, "accelerator": kind}}
    if lines := list(conflicts(resolved)):
        raise UserError(*lines)


def check_processes(trainer: Mapping[str, Any], devices: int | list[int] | str) -> None:
    """Raise UserError for another number of processes than srun or torchrun has started, and for
    several machines without a rank of this one."""
    nodes = trainer["num_nodes"]
    each = 1 if devices == "auto" else devices if isinstance(devices, int) else len(devices)
    by, started, here = "srun", tasks_of_srun(), int(os.environ.get("SLURM_STEP_NUM_NODES", nodes))
    if TorchElasticEnvironment.detect():
        by, started, here = "torchrun", int(os.environ["WORLD_SIZE"]), nodes
    if started > 1 and (started, here) != (each * nodes, nodes):
        raise UserError(
            f"{by} has started {started} processes{f' on {here} nodes' if here != nodes else ''},"
            f" and trainer.devices={trainer['devices']} with trainer.num_nodes={nodes} are"
            f" {each * nodes}: start as many, or set these keys"
        )
    by_hand = "MASTER_ADDR" in os.environ and {"NODE_RANK", "GROUP_RANK"} & {*os.environ}
    if nodes > 1 and started == 1 and not by_hand:
        raise UserError(
            f"trainer.num_nodes={nodes}: the rank of this machine is not set; start"
            " the command on each by srun or torchrun, or with MASTER_ADDR, MASTER_PORT and"
            " NODE_RANK in its environment"
        )


def tasks_of_srun() -> int:
    """The processes that srun has started with this one; 1 in a shell of srun, salloc or sbatch: a
    run starts its processes by itself there."""
    return 1 if "SLURM_PTY_PORT" in os.environ else int(os.environ.get("SLURM_STEP_NUM_TASKS", 1))


def accelerator(wanted: str) -> tuple[str, int]:
    """Return the device that Lightning would choose (cuda, mps or cpu), and the number of GPUs."""
    available = {
        "mps": int(torch.backends.mps.is_available()),
        "cuda": torch.cuda.device_count(),
        "cpu": 0,
    }
    order = {"auto": ("mps", "cuda", "cpu"), "gpu": ("mps", "cuda")}.get(wanted, (wanted,))
    for kind in order:
        if kind == "cpu" or available[kind]:
            return kind, available[kind]
    raise UserError(
        f"trainer.accelerator={wanted}: torch sees no such GPU on this machine; use trainer=cpu"
    )


def check_output(run_dir: Path) -> None:
    """Create a run's folder; raise UserError if it cannot be written, or if a folder is in the
    place of a file of the run."""
    for folder in (run_dir, run_dir / "checkpoints", run_dir / "figures"):
        try:
            if folder == run_dir:
                folder.mkdir(parents=True, exist_ok=True)
            if folder.exists():
                with TemporaryFile(dir=folder):
                    pass
        except OSError as error:
            raise UserError(
                f"output_dir: cannot write to {folder} ({error.strerror}); choose another folder"
            ) from error
    for path in (path for pattern in WRITTEN for path in run_dir.glob(pattern)):
        if path.is_dir():
            raise UserError(f"{path} is a folder, and this run writes a file there; move it away")


def many_tokens(composition: Composition) -> str | None:
    """A line on how to have fewer tokens, if the model reads more than MANY of an image."""
    facts = CompositionView(composition.cfg)
    try:
        if not facts.trait("model", "has_grid") or facts.positions <= MANY:
            return None
        side, patch = facts.side, int(facts("model.patch"))
    except Unreadable:  # no model of square images in patches
        return None
    stride = facts.get("model.stride", None)
    larger = range(patch + 1, side // 4 + 1)
    better = next((p for p in larger if side % p == 0 and (side // p) ** 2 <= FEWER), None)
    fewer = []
    if better:
        whole = " model.stride=null" if stride else ""
        fewer.append(f"model.patch={better}{whole} ({(side // better) ** 2} patches)")
    if "size" in composition.cfg.data:
        fewer.append("a smaller data.size")
    overlap = f", model.stride={stride}" if stride else ""
    return (
        f"an image of {side} pixels per side is {facts.positions:,} tokens (model.patch={patch}"
        f"{overlap}), which takes much time and memory"
        + (f"; for fewer: {', or '.join(fewer)}" if fewer else "")
    )
