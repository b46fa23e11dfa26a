"""trainer.strategy=fsdp: shard parameters, gradients and optimizer state over the processes.

Zhao et al. 2023, PyTorch FSDP, https://arxiv.org/abs/2304.11277. This uses FSDP2 (`fully_shard`),
which keeps every parameter under its name and also runs on CPUs; Lightning's FSDPStrategy is the
first version, for GPUs only.

Only training is sharded. Every process builds the full model, so that its initial values are those
of a single process. Evaluation uses the full model too, since a search may take more steps in one
process than in another. Checkpoints hold full tensors under the names of a single process.
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
from ablate.run_files.sealed import read_state

# Full tensors by name, as in a single process; the first process writes the file.
IN_FILE = StateDictOptions(full_state_dict=True, cpu_offload=True)
EVERYWHERE = StateDictOptions(full_state_dict=True)


class Sharded(ModelParallelStrategy):
    """Data parallelism in which each process keeps a shard of every parameter during training."""

    def __init__(self) -> None:
        super().__init__(tensor_parallel_size=1, save_distributed_checkpoint=False)
        self.full_model: Model | None = None

    def setup_environment(self) -> None:
        self._data_parallel_size = self.num_nodes * self.num_processes
        super().setup_environment()

    def split(self, model: Model) -> None:
        """Shard for training; keep an unsharded CPU copy for `joined()`."""
        # The copy shares the kernels, which record for result.json what they ran.
        kernels = [part.kernel for part in model.modules() if hasattr(part, "kernel")]
        self.full_model = deepcopy(model, {id(kernel): kernel for kernel in kernels})
        shard(model, self.device_mesh["data_parallel"])

    def joined(self, model: Model) -> Model:
        """Return the unsharded model with the trained weights, in every process."""
        assert self.full_model is not None
        self.full_model.load_state_dict(get_model_state_dict(model, options=EVERYWHERE))
        return self.full_model

    def optimizer_state(self, optimizer: torch.optim.Optimizer) -> dict[str, Any]:
        """Return the state keyed by parameter name: Lightning's indices differ from those of a
        single process."""
        assert self.model is not None
        return get_optimizer_state_dict(self.model, optimizer, options=IN_FILE)

    def load_checkpoint(
        self, checkpoint_path: str | Path, weights_only: bool | None = None
    ) -> dict[str, Any]:
        """Read the file in every process and load that process's shard."""
        assert self.model is not None
        checkpoint = read_state(Path(checkpoint_path))
        set_model_state_dict(self.model, checkpoint["state_dict"], options=EVERYWHERE)
        for optimizer, state in zip(self.optimizers, checkpoint["optimizer_states"], strict=True):
            set_optimizer_state_dict(self.model, optimizer, state, options=EVERYWHERE)
        return checkpoint


def shard(model: nn.Module, mesh: DeviceMesh) -> None:
    """Shard a model's parameters block by block, then the rest; raise UserError for batch norm.

    Blocks with cross-attention are sharded with the rest, because the decoder's memory of the
    source is computed from their parameters before the blocks are called.
    """
    for name, part in model.named_modules():
        if isinstance(part, _BatchNorm):
            raise UserError(
                f"trainer.strategy=fsdp would keep separate statistics in each process for the"
                f" batch norm {name}; use trainer=cpu or trainer=gpu, or a model without"
            )
    for part in list(model.modules()):
        if isinstance(part, Block) and not any(layer.reads_memory for layer in part.layers):
            fully_shard(part, mesh=mesh)
    fully_shard(model, mesh=mesh)
