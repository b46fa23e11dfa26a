"""trainer.strategy=fsdp: parameters, gradients and optimizer state split over the processes.

Zhao et al. 2023, PyTorch FSDP, https://arxiv.org/abs/2304.11277; here torch's second one,
`fully_shard`, which keeps every parameter, and its name, and runs on a CPU too. Lightning's
FSDPStrategy is the first, and is for GPUs alone.

Training alone is sharded. A model is built whole in every process, so that its initial values are
those of one process, and measured whole, since a search may take more steps in one process than in
another; checkpoints hold whole tensors under the names of one process.
"""

from copy import deepcopy
from pathlib import Path
from typing import Any

import torch
from lightning.pytorch.strategies import ModelParallelStrategy
from torch import nn
from torch.distributed.checkpoint.state_dict import (
    StateDictOptions,
    get_model_state_dict,
    get_optimizer_state_dict,
    set_model_state_dict,
    set_optimizer_state_dict,
)
from torch.distributed.device_mesh import DeviceMesh
from torch.distributed.fsdp import fully_shard
from torch.nn.modules.batchnorm import _BatchNorm

from ablate.errors import UserError
from ablate.model.base import Model
from ablate.model.layers.block import Block

# As one process has them: whole tensors by name, in the file that the first process writes.
IN_FILE = StateDictOptions(full_state_dict=True, cpu_offload=True)
EVERYWHERE = StateDictOptions(full_state_dict=True)


class Sharded(ModelParallelStrategy):
    """Data parallelism whose processes keep a part of every parameter each while they train."""

    def __init__(self) -> None:
        super().__init__(tensor_parallel_size=1, save_distributed_checkpoint=False)
        self.whole: Model | None = None

    def setup_environment(self) -> None:
        self._data_parallel_size = self.num_nodes * self.num_processes
        super().setup_environment()

    def split(self, model: Model) -> None:
        """For training. What it is without, for `joined`, stays on the CPU."""
        # Kernels remember what they did: result.json says it.
        kernels = [part.kernel for part in model.modules() if hasattr(part, "kernel")]
        self.whole = deepcopy(model, {id(kernel): kernel for kernel in kernels})
        shard(model, self.device_mesh["data_parallel"])

    def joined(self, model: Model) -> Model:
        """After training: the model with the weights of the sharded one, in every process."""
        assert self.whole is not None
        self.whole.load_state_dict(get_model_state_dict(model, options=EVERYWHERE))
        return self.whole

    def optimizer_state(self, optimizer: torch.optim.Optimizer) -> dict[str, Any]:
        """By the names of parameters; the numbers that Lightning makes of them are not those that
        they have in one process."""
        assert self.model is not None
        return get_optimizer_state_dict(self.model, optimizer, options=IN_FILE)

    def load_checkpoint(
        self, checkpoint_path: str | Path, weights_only: bool | None = None
    ) -> dict[str, Any]:
        """Every process reads the file and takes its part."""
        assert self.model is not None
        checkpoint: dict[str, Any] = torch.load(
            checkpoint_path, map_location="cpu", weights_only=False
        )
        set_model_state_dict(self.model, checkpoint["state_dict"], options=EVERYWHERE)
        for optimizer, state in zip(self.optimizers, checkpoint["optimizer_states"], strict=True):
            set_optimizer_state_dict(self.model, optimizer, state, options=EVERYWHERE)
        return checkpoint


def shard(model: nn.Module, mesh: DeviceMesh) -> None:
    """Split a model's parameters, a block at a time where it has some; UserError where it cannot.

    What a decoder remembers of its source is made before its blocks are reached, so that their
    parameters are gathered with those that stand outside of blocks.
    """
    for name, part in model.named_modules():
        if isinstance(part, _BatchNorm):
            raise UserError(
                f"trainer.strategy=fsdp would keep other statistics in every process for the batch"
                f" norm {name}; use trainer=cpu or trainer=gpu, or a model without"
            )
    for part in list(model.modules()):
        if isinstance(part, Block) and part.cross_attention is None:
            fully_shard(part, mesh=mesh)
    fully_shard(model, mesh=mesh)
