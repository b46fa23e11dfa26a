"""Check the machine before a run: devices, a compiler, a writable folder."""

from pathlib import Path
from tempfile import TemporaryFile

import torch

from ablate.config.check import conflicts
from ablate.config.composition import Composition
from ablate.errors import UserError
from ablate.kernel import chunked


def check_devices(composition: Composition) -> None:
    """Raise UserError for devices that this machine lacks, or compile=true without a compiler."""
    values = composition.values
    trainer = values["trainer"]
    kind, gpus = accelerator(trainer["accelerator"])
    devices = trainer["devices"]
    if kind == "cpu":
        if isinstance(devices, list):
            raise UserError(
                f"trainer.devices={devices}: CPU processes have no index; write their number,"
                f" trainer.devices={len(devices)}"
            )
    elif devices != "auto":
        numbers = list(range(devices)) if isinstance(devices, int) else list(devices)
        if len(set(numbers)) < len(numbers):
            raise UserError(f"trainer.devices={devices}: holds a number twice")
        if max(numbers) >= gpus:
            raise UserError(f"trainer.devices={devices}: this machine has {gpus} GPU(s)")
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


def accelerator(wanted: str) -> tuple[str, int]:
    """Return what Lightning would choose here (cuda, mps or cpu), and the number of GPUs."""
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
    """Create a run's folder; raise UserError if it cannot be written."""
    try:
        run_dir.mkdir(parents=True, exist_ok=True)
        with TemporaryFile(dir=run_dir):
            pass
    except OSError as error:
        raise UserError(
            f"output_dir: cannot write to {run_dir} ({error.strerror}); choose another folder"
        ) from error
