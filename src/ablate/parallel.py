"""trainer.strategy=fsdp and trainer.tensor_parallel=N: processes that share one model.

Fully sharded data parallel: Zhao et al. 2023, PyTorch FSDP, https://arxiv.org/abs/2304.11277. This
uses FSDP2 (`fully_shard`), which keeps every parameter under its name and also runs on CPUs;
Lightning's FSDPStrategy is the first version, for GPUs only.

Tensor parallel: see ablate.interface.splits. N processes with neighbouring numbers have a part of
the heads and hidden units each and read the same batch; data are shared out over the groups of N.

Only training is split. Every process builds the full model, so that its initial values are those
of a single process. Evaluation uses the full model too, since a search may take more steps in one
process than in another. Each process writes what it has of a state (ablate.run_files.sealed), which
has the names of a single process and is read as whole tensors by any number of processes. Weights
alone are written whole by the first process.
"""

from collections.abc import Callable, Iterator
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
from ablate.interface.splits import Part
from ablate.model.base import Model
from ablate.model.layers.block import Block
from ablate.model.layers.split import Layout, split
from ablate.run_files.sealed import Piece, Place, index, read_state, write_shards

# Full tensors by name, as in a single process.
EVERYWHERE = StateDictOptions(full_state_dict=True)
PREFIX = "model."  # of the model's parameters in the task


class Sharing(ModelParallelStrategy):
    """Several processes train one model, each with a part of it.

    tensor: the processes that share out heads and hidden units. sharded: whether the groups of so
    many keep a shard of every parameter each, or all of them, as data parallel does. shards: how
    many groups share the shards, which the others have copies of (HSDP); None: all.
    """

    def __init__(self, *, tensor: int = 1, sharded: bool = True, shards: int | None = None) -> None:
        super().__init__(tensor_parallel_size=tensor, save_distributed_checkpoint=False)
        self.tensor, self.sharded, self.shards = tensor, sharded, shards
        self.full_model: Model | None = None
        self.layout = Layout()
        self.part = Part(0, 1)

    def setup_environment(self) -> None:
        processes = self.num_nodes * self.num_processes
        if processes % self.tensor:
            raise UserError(
                f"trainer.tensor_parallel={self.tensor} does not divide the {processes} processes"
                " (trainer.devices times trainer.num_nodes)"
            )
        self._data_parallel_size = groups = processes // self.tensor
        if groups % (self.shards or 1):
            raise UserError(
                f"trainer.shards={self.shards} does not divide the {groups} processes that share"
                " the data (trainer.devices times trainer.num_nodes, over trainer.tensor_parallel)"
            )
        super().setup_environment()
        self.shard_mesh = self.device_mesh["data_parallel"]
        if self.shards is not None:
            sizes = groups // self.shards, self.shards, self.tensor
            names = "copy", "shard", "tensor"
            mesh = init_device_mesh(self.root_device.type, sizes, mesh_dim_names=names)
            self.shard_mesh = mesh["copy", "shard"]

    @property
    def data_group(self) -> Any:
        """The processes that read other data and have the same part of the model."""
        return self.device_mesh["data_parallel"].get_group()

    @property
    def shard_group(self) -> Any:
        """The processes that have the shards of a parameter, or of this process's part of it."""
        return self.shard_mesh["shard"].get_group() if self.shards else self.data_group

    def require(self, model: Model) -> None:
        """Raise UserError for a model that cannot be shared out by `tensor` processes."""
        if self.tensor > 1:
            split(model, Part(0, self.tensor), dry=True)

    def split(self, model: Model) -> None:
        """Split for training; keep a whole CPU copy for `joined()`."""
        # The copy shares the kernels, which record for result.json what they ran.
        kernels = [part.kernel for part in model.modules() if hasattr(part, "kernel")]
        self.full_model = deepcopy(model, {id(kernel): kernel for kernel in kernels})
        if self.tensor > 1:
            mesh = self.device_mesh["tensor_parallel"]
            self.part = Part(mesh.get_local_rank(), mesh.size(), mesh.get_group())
            self.layout = split(model, self.part)
        if self.sharded:
            shard(model, self.shard_mesh)

    def joined(self, model: Model) -> Model:
        """Return the whole model with the trained weights, in every process."""
        assert self.full_model is not None
        state: dict[str, Any] = get_model_state_dict(model, options=EVERYWHERE)
        whole = {name: self._whole(name, tensor) for name, tensor in state.items()}
        if (precise := next(model.parameters()).dtype) is torch.float64:
            self.full_model.to(precise)
        self.full_model.load_state_dict(whole)
        return self.full_model

    def _whole(self, name: str, tensor: Tensor) -> Tensor:
        """A tensor of the model by its name there, joined over the group of its parts."""
        axis = self.layout.axes.get(name)
        return tensor if axis is None else self.part.joined(tensor, axis)

    def _mine(self, name: str, tensor: Tensor) -> Tensor:
        axis = self.layout.axes.get(name)
        return tensor if axis is None else self.part.cut(tensor, axis)

    # gradients

    def optimizer_step(
        self, optimizer: Any, closure: Callable[[], Any], model: Any = None, **kwargs: Any
    ) -> Any:
        def reduced() -> Any:
            loss = closure()
            self.reduce_gradients()
            return loss

        return super().optimizer_step(optimizer, reduced, model, **kwargs)

    @torch.no_grad()
    def reduce_gradients(self) -> None:
        """Average the gradients over the groups, where shards do not, and sum those of parameters
        that some of the heads read; once for each step of the optimizer."""
        gradients = [*self._gradients()]
        groups = self._data_parallel_size
        assert isinstance(groups, int)
        if not self.sharded and groups > 1:
            every = [gradient for _, gradient in gradients]
            _sum(every, self.data_group)
            for gradient in every:
                gradient /= groups
        _sum([x for name, x in gradients if name in self.layout.shared], self.part.group)

    @torch.no_grad()
    def clip_gradients(self, largest: float) -> None:
        """Scale the gradients so that their norm, of all parts together, is at most `largest`."""
        gradients = [*self._gradients()]
        # In the order of the parameters and by their norms, as torch does it.
        squares = torch.stack([torch.linalg.vector_norm(x).square() for _, x in gradients])
        if self.sharded:
            dist.all_reduce(squares, group=self.shard_group)
        cut = squares.new_tensor([float(name in self.layout.axes) for name, _ in gradients])
        parts = squares * cut
        if self.tensor > 1:
            dist.all_reduce(parts, group=self.part.group)
        norm = (squares * (1 - cut) + parts).sum().sqrt()
        factor = (largest / (norm + 1e-6)).clamp(max=1.0)
        for _, gradient in gradients:
            gradient.mul_(factor)

    def _gradients(self) -> Iterator[tuple[str, Tensor]]:
        """Of the model's parameters by name, what this process has of each."""
        assert self.model is not None
        for name, parameter in self.model.named_parameters():
            if (gradient := parameter.grad) is not None:
                local = gradient.to_local() if isinstance(gradient, DTensor) else gradient
                yield name.removeprefix(PREFIX), local

    # checkpoints

    def lightning_module_state_dict(self) -> dict[str, Any]:
        """What this process has of each tensor, which `save_checkpoint` takes."""
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
                for full in [self._whole(name.removeprefix(PREFIX), _gathered(tensor))]
                if self.is_global_zero
            }
            checkpoint = {**checkpoint, "state_dict": whole}
        super().save_checkpoint(checkpoint, filepath, storage_options)

    def _with_shards_apart(self, checkpoint: dict[str, Any], folder: Path) -> dict[str, Any]:
        """Write what this process has of a state, and return the rest with the names of the files
        of all processes; OSError in all of them where one could not write."""
        tensors: dict[Place, Tensor] = {}
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
        shapes = {place: self._shape(place, tensor) for place, tensor in tensors.items()}
        return {**rest, "shards": index((file for file, _ in ended if file), shapes)}

    def _without(self, node: Any, place: Place, tensors: dict[Place, Tensor]) -> Any:
        """The same with None for every tensor of which processes have shards or parts, which
        `tensors` gets by its place; the others, as a norm in the state of an optimizer, stay."""
        if isinstance(node, dict):
            return {k: self._without(value, (*place, k), tensors) for k, value in node.items()}
        if isinstance(node, list):
            return [self._without(value, (*place, n), tensors) for n, value in enumerate(node)]
        if not isinstance(node, Tensor):
            return node
        sharded = isinstance(node, DTensor) and node.placements[-1].is_shard()
        if not sharded and self._axis(place, node) is None:
            return _gathered(node).cpu()
        tensors[place] = node
        return None

    def _pieces(self, tensors: dict[Place, Tensor]) -> dict[Place, Piece]:
        """What this process writes: nothing that another one has too and writes."""
        if not self._is_first_copy():
            return {}
        return {
            place: self._piece(place, tensor)
            for place, tensor in tensors.items()
            if self.part.rank == 0 or self._axis(place, tensor) is not None
        }

    def _is_first_copy(self) -> bool:
        """Of the processes that have the same shards or the same part of the model."""
        if self.shards:
            return self.shard_mesh["copy"].get_local_rank() == 0
        return self.sharded or self.device_mesh["data_parallel"].get_local_rank() == 0

    def _piece(self, place: Place, tensor: Tensor) -> Piece:
        """What this process has of a tensor, on the CPU in memory of its own, and its offsets."""
        offsets = [0] * tensor.dim()
        local = tensor
        if isinstance(tensor, DTensor):
            (chunk,) = tensor.__create_chunk_list__()
            offsets, local = list(chunk.offsets), tensor.to_local()
        if (axis := self._axis(place, tensor)) is not None:
            offsets[axis] += self.part.rank * tensor.shape[axis]
        return tuple(offsets), local.detach().to("cpu", copy=True)

    def _shape(self, place: Place, tensor: Tensor) -> list[int]:
        """Of the whole tensor."""
        shape = [*tensor.shape]
        if (axis := self._axis(place, tensor)) is not None:
            shape[axis] *= self.part.size
        return shape

    def _axis(self, place: Place, tensor: Tensor) -> int | None:
        """Along which a parameter, or what an optimizer has of its shape, is cut into parts."""
        names = (str(key).removeprefix(PREFIX) for key in place)
        axes = (self.layout.axes[name] for name in names if name in self.layout.axes)
        return next(axes, None) if tensor.dim() else None

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
        weights: dict[str, Any] = {
            name: self._mine(name.removeprefix(PREFIX), x)
            for name, x in checkpoint["state_dict"].items()
        }
        set_model_state_dict(self.model, weights, options=EVERYWHERE)
        for optimizer, state in zip(self.optimizers, checkpoint["optimizer_states"], strict=True):
            state = self._by_name(state, optimizer)
            for name, values in state["state"].items():
                for key, x in values.items():
                    if isinstance(x, Tensor) and x.dim():
                        values[key] = self._mine(name.removeprefix(PREFIX), x)
            set_optimizer_state_dict(self.model, optimizer, state, options=EVERYWHERE)
        return checkpoint


def _gathered(tensor: Tensor) -> Tensor:
    """Of all shards."""
    return tensor.full_tensor() if isinstance(tensor, DTensor) else tensor


def _sum(tensors: list[Tensor], group: Any) -> None:
    """Sum each over a group of processes, in place, in one message for each type."""
    for dtype in dict.fromkeys(tensor.dtype for tensor in tensors):
        alike = [tensor for tensor in tensors if tensor.dtype == dtype]
        together = torch.cat([tensor.flatten() for tensor in alike])
        dist.all_reduce(together, group=group)
        for tensor, summed in zip(alike, together.split([t.numel() for t in alike]), strict=True):
            tensor.copy_(summed.view_as(tensor))


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
