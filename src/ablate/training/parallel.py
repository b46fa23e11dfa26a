"""trainer.strategy=fsdp: processes that share one model.

Fully sharded data parallel: Zhao et al. 2023, PyTorch FSDP, https://arxiv.org/abs/2304.11277. This
uses FSDP2 (`fully_shard`), which keeps every parameter under its name and also runs on CPUs;
Lightning's FSDPStrategy is the first version, for GPUs only.

Training and its validations are split. Every process builds the full model, so that its initial
values are those of a single process. Evaluation after training uses the full model too, since a
search may take more steps in one process than in another. Each process writes its part of a state
(run_files/checkpoint_io.py), which has the names of a single process and is read as whole tensors
by any number of processes. The first process writes the weights, whole.
"""

from copy import deepcopy
from pathlib import Path
from typing import Any

import torch
import torch.distributed as dist
from lightning.pytorch.strategies import ModelParallelStrategy
from torch import Tensor, nn
from torch.distributed.checkpoint.state_dict import (
    StateDictOptions,
    get_model_state_dict,
    get_optimizer_state_dict,
    set_model_state_dict,
    set_optimizer_state_dict,
)
from torch.distributed.device_mesh import DeviceMesh, init_device_mesh
from torch.distributed.fsdp import fully_shard
from torch.distributed.tensor import DTensor
from torch.nn.modules.batchnorm import _BatchNorm

from ablate.errors import UserError
from ablate.model.base import Model
from ablate.model.layers.block import Block
from ablate.run_files.checkpoint_io import Piece, Place, index, read_state, write_shards
from ablate.task import Task
from ablate.training.average import averages

# Full tensors by name, as in a single process.
EVERYWHERE = StateDictOptions(full_state_dict=True)


class Sharing(ModelParallelStrategy):
    """Several processes train one model, each with a shard of every parameter.

    shards: how many processes share the shards, which the others have copies of (HSDP); None: all.
    """

    def __init__(self, *, shards: int | None = None) -> None:
        super().__init__(tensor_parallel_size=1, save_distributed_checkpoint=False)
        self.shards = shards
        self.full_model: Model | None = None

    def setup_environment(self) -> None:
        self._data_parallel_size = processes = self.num_nodes * self.num_processes
        if processes % (self.shards or 1):
            raise UserError(
                f"trainer.shards={self.shards} does not divide the {processes} processes"
                " (trainer.devices times trainer.num_nodes)"
            )
        super().setup_environment()
        self.shard_mesh = self.device_mesh["data_parallel"]
        if self.shards is not None:
            sizes = processes // self.shards, self.shards
            names = "copy", "shard"
            self.shard_mesh = init_device_mesh(self.root_device.type, sizes, mesh_dim_names=names)

    def split(self, task: Task) -> None:
        """Shard the model for training; keep a whole CPU copy for `joined()`. Evaluation uses the
        whole model."""
        require_one_model(task)
        if not task.fitting:
            return
        model = task.model
        # The copy shares the kernels, which record their implementation for result.json.
        kernels = [part.kernel for part in model.modules() if hasattr(part, "kernel")]
        self.full_model = deepcopy(model, {id(kernel): kernel for kernel in kernels})
        shard(model, self.shard_mesh)

    def joined(self, model: Model) -> Model:
        """Return the whole model with the trained weights, in every process."""
        assert self.full_model is not None
        self.full_model.load_state_dict(get_model_state_dict(model, options=EVERYWHERE))
        return self.full_model

    # checkpoints

    def lightning_module_state_dict(self) -> dict[str, Any]:
        """This process's part of each tensor, which `save_checkpoint` takes."""
        assert self.model is not None
        return get_model_state_dict(self.model)

    def optimizer_state(self, optimizer: torch.optim.Optimizer) -> dict[str, Any]:
        """The same of an optimizer, keyed by parameter name: Lightning's indices differ from those
        of a single process."""
        assert self.model is not None
        return get_optimizer_state_dict(self.model, optimizer)

    def save_checkpoint(
        self, checkpoint: dict[str, Any], filepath: str | Path, storage_options: Any = None
    ) -> None:
        if "optimizer_states" in checkpoint:
            checkpoint = self._with_shards_apart(checkpoint, Path(filepath).parent)
        else:
            whole = {
                name: full.cpu()
                for name, tensor in checkpoint["state_dict"].items()
                for full in [_gathered(tensor)]  # by all processes
                if self.is_global_zero
            }
            checkpoint = {**checkpoint, "state_dict": whole}
        super().save_checkpoint(checkpoint, filepath, storage_options)

    def _with_shards_apart(self, checkpoint: dict[str, Any], folder: Path) -> dict[str, Any]:
        """Write this process's part of a state, and return the rest with the names of the files of
        all processes; OSError in all of them if one could not write."""
        tensors: dict[Place, DTensor] = {}
        parts = ("state_dict", "optimizer_states")
        rest = {
            **checkpoint,
            **{key: self._without(checkpoint[key], (key,), tensors) for key in parts},
        }
        name = failure = None
        if pieces := self._pieces(tensors):
            try:
                name = write_shards(folder, pieces, self.global_rank)
            except OSError as error:
                failure = error.errno, error.strerror, error.filename
        ended: list[Any] = [None] * self.world_size
        dist.all_gather_object(ended, (name, failure))
        if failures := [failed for _, failed in ended if failed]:
            raise OSError(*failures[0])
        shapes = {place: tensor.shape for place, tensor in tensors.items()}
        return {**rest, "shards": index((file for file, _ in ended if file), shapes)}

    def _without(self, node: Any, place: Place, tensors: dict[Place, DTensor]) -> Any:
        """The same with None for every sharded tensor, which `tensors` gets by its place; the
        others, as a norm in the state of an optimizer, stay."""
        if isinstance(node, dict):
            return {k: self._without(value, (*place, k), tensors) for k, value in node.items()}
        if isinstance(node, list):
            return [self._without(value, (*place, n), tensors) for n, value in enumerate(node)]
        if not isinstance(node, Tensor):
            return node
        if not (isinstance(node, DTensor) and node.placements[-1].is_shard()):
            return _gathered(node).cpu()
        tensors[place] = node
        return None

    def _pieces(self, tensors: dict[Place, DTensor]) -> dict[Place, Piece]:
        """The tensors that this process writes; another process does not write them."""
        if self.shards and self.shard_mesh["copy"].get_local_rank():
            return {}
        return {place: _piece(tensor) for place, tensor in tensors.items()}

    def _by_name(self, state: dict[str, Any], optimizer: torch.optim.Optimizer) -> dict[str, Any]:
        """The state of an optimizer keyed by the names of the parameters, also that of a single
        process, which has numbers in their place."""
        assert self.model is not None
        names = {parameter: name for name, parameter in self.model.named_parameters()}
        ours = [names[x] for group in optimizer.param_groups for x in group["params"]]
        theirs = [key for group in state["param_groups"] for key in group["params"]]
        name_of = dict(zip(theirs, ours, strict=True))
        groups = [
            {**group, "params": [name_of[key] for key in group["params"]]}
            for group in state["param_groups"]
        ]
        values = {name_of[key]: value for key, value in state["state"].items()}
        return {"state": values, "param_groups": groups}

    def load_checkpoint(
        self, checkpoint_path: str | Path, weights_only: bool | None = None
    ) -> dict[str, Any]:
        """Read the file in every process and load that process's shard."""
        assert self.model is not None
        checkpoint = read_state(Path(checkpoint_path))
        for optimizer, state in zip(self.optimizers, checkpoint["optimizer_states"], strict=True):
            state = self._by_name(state, optimizer)
            set_optimizer_state_dict(self.model, optimizer, state, options=EVERYWHERE)
        # After the optimizer's, which torch creates by a step with hooks that change weights.
        set_model_state_dict(self.model, checkpoint["state_dict"], options=EVERYWHERE)
        return checkpoint


def require_one_model(task: Task) -> None:
    """Raise UserError if there are copies of the model, which are not sharded."""
    if averages(task) or task.copies():
        raise UserError(
            f"trainer.strategy=fsdp: {type(task).__name__} keeps a copy of its model, which is"
            " not sharded; use trainer=ddp"
        )


def _piece(tensor: DTensor) -> Piece:
    """A copy on the CPU of this process's part of a tensor, and its offsets."""
    (chunk,) = tensor.__create_chunk_list__()
    return tuple(chunk.offsets), tensor.to_local().detach().to("cpu", copy=True)


def _gathered(tensor: Tensor) -> Tensor:
    """Of all shards."""
    return tensor.full_tensor() if isinstance(tensor, DTensor) else tensor


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
