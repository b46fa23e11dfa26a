"""Whether two compositions have the same model, as computing both shows."""

import json
from collections.abc import Callable, Iterable, Iterator
from copy import deepcopy
from functools import cached_property
from hashlib import sha256
from typing import Any

import torch
from omegaconf import DictConfig, OmegaConf, open_dict, read_write
from torch import Tensor, nn

from ablate.config.keys import FILES, flatten, to_dict
from ablate.config.make import make_data
from ablate.config.run_id import EXCLUDED
from ablate.data import Batch, Data, Request
from ablate.kernel.reference import Reference
from ablate.model.base import Model, outputs
from ablate.random.seeding import derive, seed_torch
from ablate.task import Task
from ablate.task.accumulation import added_losses
from ablate.training.build import build_checked, build_data, initialized, make_task, model_on_meta
from ablate.training.record import count_parameters

LARGEST = 200_000_000  # parameters of a model that is built for real
CPU = torch.device("cpu")  # the device on which models are compared
ROWS = 2  # of a batch that both read
# Nodes that make up the model. A kernel changes how it is computed, not the result.
MODEL_SIDE = {"model", "pos_enc", "kernel"}
# A run's id covers the content of files instead of their paths.
NO_CHANGE = {*EXCLUDED} - {f"data.{key}" for key in FILES}


class DataSets:
    """Read the data of compositions, each data set once."""

    def __init__(self) -> None:
        self._read: dict[str, Data] = {}

    def __call__(self, cfg: DictConfig) -> Data:
        content = OmegaConf.to_container(cfg.data, resolve=True)
        key = json.dumps([content, cfg.seed, repr(make_data(cfg).task_settings)], sort_keys=True)
        if key not in self._read:
            self._read[key] = build_data(cfg)
        return self._read[key]


def parameters(model: nn.Module) -> int:
    """Return the total number of parameters."""
    return count_parameters(model)["total"]


def on_meta(cfg: DictConfig, data: Data) -> Task:
    """Build the task with a model on the meta device, for counting."""
    return make_task(cfg, data, model_on_meta(cfg, data))


class SameModel:
    """Test whether a composition has the model of `first`, and nothing else changed.

    The same model has the same parameters with the same initial values, and is the same function
    of them, in training (with the same random numbers, so that dropout counts) and in evaluation,
    with the same gradients and losses of its layers. It is compared away from the initial values,
    which may hide a part that starts at zero. Both use the reference kernel, as kernels differ by
    rounding.
    """

    def __init__(
        self,
        first: DictConfig,
        sets: Callable[[DictConfig], Data],
        *,
        largest: int = LARGEST,
        built: Model | None = None,
    ) -> None:
        """sets: reads the data of a composition. largest: parameters of a model that is built for
        real, which only models with parameters of the same names and shapes are. built: the model
        of `first` on the meta device, if it exists."""
        self.first, self.sets, self.largest, self._built = first, sets, largest, built

    def __call__(self, second: DictConfig, built: nn.Module) -> bool | None:
        """built: the model of `second`, on any device. None if they are too large to compare."""
        if self._differs_outside(second) or _shapes(built) != _shapes(self._task.model):
            return False
        if parameters(built) > self.largest:
            return None
        values = self._values  # of a model as large as the second, which thus fits into memory
        model = initialized(_with_reference(second), self._data)
        if not all(torch.equal(p, values[name]) for name, p in model.named_parameters()):
            return False
        return list(_answers(model, self._inputs)) == self._answers

    def _differs_outside(self, second: DictConfig) -> bool:
        """Whether a config differs outside the model, such as in the optimizer or in a file."""
        a, b = self._leaves, flatten(to_dict(second))
        changed = (path for path in {*a, *b} if a.get(path, ...) != b.get(path, ...))
        return any(not {path, path.split(".")[0]} & (NO_CHANGE | MODEL_SIDE) for path in changed)

    @cached_property
    def _leaves(self) -> dict[str, Any]:
        return flatten(to_dict(self.first))

    @cached_property
    def _data(self) -> Data:
        return self.sets(self.first)

    @cached_property
    def _task(self) -> Task:
        model = self._built or model_on_meta(self.first, self._data)
        return make_task(self.first, self._data, model)

    @cached_property
    def _inputs(self) -> list[tuple[Tensor, ...]]:
        return _inputs(self._task, self._data)

    @cached_property
    def _model(self) -> Model:
        build = build_checked if self._built is None else initialized  # else it fits into memory
        return build(_with_reference(self.first), self._data)

    @cached_property
    def _values(self) -> dict[str, Tensor]:
        return {name: parameter.detach() for name, parameter in self._model.named_parameters()}

    @cached_property
    def _answers(self) -> list[object]:
        return list(_answers(deepcopy(self._model), self._inputs))


def try_out(cfg: DictConfig, task: Task) -> None:
    """Build the model of a composition with its initial values, and compute its outputs and
    gradients for the inputs of the task. Raises any error of its components.

    task: that of the composition, with a model on any device. Models of more than `LARGEST`
    parameters are not built.
    """
    if parameters(task.model) <= LARGEST:
        model = build_checked(_with_reference(cfg), task.data)
        list(_answers(model, _inputs(task, task.data)))


def same_function(task: Task, data: Data, models: Iterable[Model]) -> bool:
    """Whether models of the same kind as the task's, with its parameters, compute the same from its
    inputs. They are changed."""
    inputs, answers = _inputs(task, data), []
    for model in models:
        model.load_state_dict(task.model.state_dict())
        answers.append(list(_answers(model, inputs)))
    return all(each == answers[0] for each in answers)


def _inputs(task: Task, data: Data) -> list[tuple[Tensor, ...]]:
    batches = (task.inputs(task.prepared(batch)) for batch in _batches(data))
    # A batch of one example, such as a graph, need not have an axis of examples.
    rows = slice(None if data.batch_size == 1 else ROWS)
    return [tuple(tensor[rows] for tensor in inputs) for inputs in batches]


def _with_reference(cfg: DictConfig) -> DictConfig:
    """The composition with the reference kernel."""
    cfg = cfg.copy()
    with read_write(cfg), open_dict(cfg):
        cfg.kernel = {"_target_": f"{Reference.__module__}.{Reference.__qualname__}"}
    return cfg


def _shapes(model: nn.Module) -> dict[str, tuple[torch.Size, bool]]:
    """Return the shape of every parameter, and whether it is trained."""
    return {name: (p.shape, p.requires_grad) for name, p in model.named_parameters()}


def _batches(data: Data) -> Iterator[Batch]:
    """Yield the first training batch, and the longest examples of each split if lengths differ:
    a window or a table of distances may act only in these."""
    yield next(iter(data.train_dataloader()))
    for split in data.splits.values():
        if hasattr(split, "longest"):
            yield split[Request(0, split.longest)]


def _answers(model: Model, inputs: list[tuple[Tensor, ...]]) -> Iterator[object]:
    """Yield the results of the model after adding noise to every parameter: outputs in training and
    evaluation, and in training the losses of its layers, and the gradients."""
    with torch.random.fork_rng(devices=[]):
        for name, parameter in model.named_parameters():
            seed_torch(derive(0, "noise", name), parameter.device)
            with torch.no_grad():
                parameter.add_(torch.randn_like(parameter), alpha=0.1)
        for training in (True, False):
            model.train(training)
            for tensors in inputs:
                seed_torch(0, CPU)
                with torch.set_grad_enabled(training):
                    computed = [*outputs(model(*tensors)), *added_losses(model).values()]
                yield from map(_value, computed)
                if training:
                    yield from map(_value, _gradients(model, computed))


def _gradients(model: Model, computed: list[Tensor]) -> list[Tensor]:
    """Of a random weighted sum of a model's results."""
    parameters = [parameter for parameter in model.parameters() if parameter.requires_grad]
    learned = [tensor for tensor in computed if tensor.requires_grad]
    if not learned or not parameters:
        return []
    seed_torch(0, CPU)
    weights = [torch.randn_like(tensor) for tensor in learned]
    gradients = torch.autograd.grad(learned, parameters, weights, allow_unused=True)
    return [gradient for gradient in gradients if gradient is not None]


def _value(tensor: Tensor) -> object:
    """The value of a tensor, in few bytes; NaN equals nothing."""
    if tensor.isnan().any():
        return object()
    content = (tensor.detach() + 0).contiguous()  # -0 is 0
    return content.shape, sha256(content.view(-1).view(torch.uint8).numpy().tobytes()).digest()
