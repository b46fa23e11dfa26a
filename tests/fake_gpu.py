"""Computes models on a GPU that is not there: torch's fake tensors have a device, and no numbers.

    python tests/fake_gpu.py GROUP=OPTION ...

Prints every option whose forward pass fails on device "cuda", and why: a tensor that was made on
the CPU meets one of the GPU, or a step asks the GPU for a number and waits for it. In a process of
its own, since torch does without a GPU's guard for good once it has seen such a tensor; a backward
pass needs a real one.
"""

import sys
from pathlib import Path
from tempfile import TemporaryDirectory
from unittest import mock

import make_files
import pytest
import torch
from make_rows import base_overrides, inputs, needs
from make_systems import rows_of_systems
from torch import Tensor, nn
from torch._subclasses.fake_tensor import FakeTensorMode

from ablate.config.composition import compose
from ablate.kernel import chunked
from ablate.model.base import outputs
from ablate.training.build import build, build_data

GPU = torch.device("cuda:0")
OF_SYSTEMS = rows_of_systems("ON_FAKE_GPU")


def there(tensor: Tensor) -> Tensor:
    """A tensor like it on the GPU."""
    empty = torch.empty(tensor.shape, dtype=tensor.dtype, device=GPU)
    if isinstance(tensor, nn.Parameter):
        return nn.Parameter(empty, requires_grad=tensor.requires_grad)
    return empty


def move(model: nn.Module) -> None:
    """What `model.cuda()` moves, and no more; what two modules share stays shared."""
    moved: dict[int, Tensor] = {}
    for module in model.modules():
        for tensors in (module._parameters, module._buffers):
            for name, tensor in tensors.items():
                if tensor is not None:
                    if id(tensor) not in moved:
                        moved[id(tensor)] = there(tensor)
                    tensors[name] = moved[id(tensor)]


def failure(override: str) -> str | None:
    """Why an option's forward pass, in training with trainer=gpu, fails; None: it does not."""
    typed = [override, *needs(override), *OF_SYSTEMS.get(override, []), "trainer=gpu"]
    named = dict(text.split("=", 1) for text in typed)
    cfg = compose(*base_overrides(named.get("model", "gpt"), named.get("data")), *typed)
    data = build_data(cfg)
    with mock.patch("torch.cuda.is_available", return_value=True):  # kernels that need one ask
        model = build(cfg, data).train()
    read = inputs(cfg, data, model)
    try:
        with FakeTensorMode(), torch.backends.cudnn.flags(enabled=False):
            move(model)
            found = outputs(model(*map(there, read)))
            assert {one.device for one in found} == {GPU}
    except Exception as error:
        return f"{type(error).__name__}: {str(error).splitlines()[0]}"
    return None


def main() -> None:
    chunked.compiler = lambda device: False  # type: ignore[assignment]  # nothing can be compiled
    with TemporaryDirectory() as folder, pytest.MonkeyPatch.context() as patch:
        make_files.write(Path(folder), patch)
        for override in sys.argv[1:]:
            if why := failure(override):
                print(f"{override}: {why}", flush=True)


if __name__ == "__main__":
    main()
