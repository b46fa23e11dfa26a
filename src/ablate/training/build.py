"""Instantiate the data, model and task of a composed config."""

import json
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import torch
from omegaconf import DictConfig, OmegaConf

from ablate.config.check import check
from ablate.config.composition import require_composed
from ablate.config.keys import flatten, to_dict
from ablate.config.layers import of_layers
from ablate.config.make import make, make_data, unwrap_partial
from ablate.config.parts import locate
from ablate.config.saved import names_file
from ablate.data import Data
from ablate.errors import UserError
from ablate.kernel import Kernel
from ablate.kernel.reference import Reference
from ablate.machine import memory
from ablate.model.base import Model
from ablate.random.seeding import derive
from ablate.run_files import DATA, read_mapping
from ablate.run_files.checkpoint_io import read_plain
from ablate.task import Task
from ablate.training import pretrained
from ablate.training.cache import CacheBytes, cache_bytes
from ablate.training.flops import flops_per_step
from ablate.training.transfer import WITH_TOKENS, StartingRun, start_from

# Of data.pt: see `Data.run_state`.
STATE = {
    "fitted": dict, "sizes": {str: object}, "count": int, "drawn": [int], "examples": dict,
    "first": {str: torch.Tensor},
}  # fmt: skip


def build_data(cfg: DictConfig, data: Data | None = None) -> Data:
    """Read and split the data; with init_from, use the tokens of that run.

    data: as `make_data` makes it, if it is there already.
    """
    data = make_data(cfg) if data is None else data
    if cfg.init_from is not None:
        source = StartingRun.of(cfg)
        source.require_same_parts(cfg)
        if getattr(data, "read_as", data.kind) in WITH_TOKENS:
            data.measure_as(data_of_run(source.folder, source.config))
            with naming(f"init_from={source.init_from}: its tokens are used"):
                data.setup()
    data.setup()
    return data


def data_of_run(run_dir: Path, config: DictConfig) -> Data:
    """The data that a run was trained on. Their state that its model needs is read from its folder;
    the data themselves are read when they are used, if they are still the same."""
    with names_file(run_dir / "config.yaml"):
        data = make_data(config)
    provenance = read_mapping(run_dir / "provenance.json")
    data.trained_on = provenance.get("data_fingerprint")
    if (path := run_dir / DATA).exists():
        with names_file(path):
            data.restore_run(read_plain(path, STATE))
    else:
        data.setup()
    return data


@contextmanager
def naming(what: str) -> Iterator[None]:
    """Begin a UserError with its subject."""
    try:
        yield
    except UserError as error:
        raise UserError(f"{what}; {error}") from error


def build(cfg: DictConfig, data: Data | None = None) -> Model:
    """Build the model of a composed config, with initial values or the weights to start from.

    Its sizes come from the data, which is read if not given. Parts that are fitted beforehand, such
    as word2vec, learn from the same data. Raises UserError, also for a value that was changed since
    `compose`.
    """
    require_composed(cfg, "build")
    check(cfg)
    return build_checked(cfg, data or build_data(cfg))


def build_checked(cfg: DictConfig, data: Data) -> Model:
    """`build` of a configuration that was checked."""
    require_memory(cfg, model_on_meta(cfg, data))
    return initialized(cfg, data)


def model_on_meta(cfg: DictConfig, data: Data) -> Model:
    """Build the model on the meta device, without memory, for counting."""
    with torch.device("meta"), torch.random.fork_rng(devices=[]):
        return make_model(cfg, data, Reference())


def initialized(cfg: DictConfig, data: Data) -> Model:
    """`build` of a model that is known to fit into memory."""
    # External models draw their initial values in the constructor.
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(derive(cfg.seed, "init"))
        model = make_model(cfg, data, make(cfg.kernel))
    model.initialize(cfg.seed)
    if cfg.init_from is not None:
        start_from(model, cfg)
    elif model.pretrained is not None:
        pretrained.start_from(model, cfg)
    else:
        for name, part in model.named_modules():
            if hasattr(part, "learn_from"):
                part.learn_from(data, seed=derive(cfg.seed, "learn", name))
    return model


def require_memory(cfg: DictConfig, model: Model) -> None:
    """Raise UserError if the model does not fit this machine. model: on the meta device."""
    sizes = {name: p.numel() * p.element_size() for name, p in model.named_parameters()}
    most = max(sizes, key=sizes.__getitem__)
    shape = " x ".join(map(str, model.get_parameter(most).shape))
    count = sum(p.numel() for p in model.parameters())
    # `Model.initialize` stores every value twice.
    memory.require(
        2 * sum(sizes.values()),
        f"{_largest(cfg)}: a model of {count:,} parameters, {shape} of them in {most},",
    )


def _largest(cfg: DictConfig) -> str:
    """The largest integer among the sizes of a model, with its key; a model of timm has none
    apart from its name."""
    sizes = {
        path: value
        for node in ("model", "pos_enc")
        for path, value in flatten(to_dict(cfg[node]), node).items()
        if type(value) is int
    }
    path = max(sizes, key=sizes.__getitem__, default="model.name")
    return f"{path}={sizes.get(path) or cfg.model.name}"


def make_model(cfg: DictConfig, data: Data, kernel: Kernel) -> Model:
    """Instantiate the model: with a kernel if it has attention, and with a positional encoding if
    it is made of Stacks, which have a mask, or adds one to its input."""
    slots: dict[str, Any] = {}
    if "attention" in cfg.model:
        slots["kernel"] = kernel
    if "mask" in cfg.model or getattr(locate(cfg.model._target_), "positions", None) == "input":
        slots["pos_enc"] = make(cfg.pos_enc)
    values: Any = OmegaConf.to_container(cfg.model, resolve=True)
    if "layers" in values:
        slots["layers"] = make_layers({"model": values})
        del values["layers"]
    model: Model = make(values, **data.sizes.arguments(), **slots, _convert_="all")
    return model


def make_layers(values: Mapping[str, Any]) -> list[dict[str, Any]]:
    """For each layer the keys that differ between layers, with their parts. Equal nodes are one
    part, so that layers can share its results."""
    parts: dict[str, Any] = {}

    def value_of(key: str, value: Any) -> Any:
        if not isinstance(value, Mapping):
            return value
        name = json.dumps([key, value], sort_keys=True)
        if name not in parts:
            parts[name] = unwrap_partial(make(value, _convert_="all"))
        return parts[name]

    return [
        {key: value_of(key, value) for key, value in layer.items()} for layer in of_layers(values)
    ]


def make_task(cfg: DictConfig, data: Data, model: Model) -> Task:
    """Make the LightningModule that trains and measures the model."""
    task: Task = make(
        cfg.task,
        model,
        data=data,
        optimizer=make(cfg.optimizer, _convert_="all"),
        schedule=unwrap_partial(make(cfg.schedule)),
        seed=cfg.seed,
    )
    return task


def count_cache(task: Task, model: Model) -> CacheBytes | None:
    """Count the bytes that decoding one sequence keeps; None for a model without a cache. model:
    the task's, on the meta device."""
    return cache_bytes(model, *task.inputs(task.prepared(task.data.typical_batch())))


def count_flops(cfg: DictConfig, task: Task, model: Model) -> int:
    """Count the FLOPs of one optimizer step, forward and backward, over all processes.

    Counted on `Data.typical_batch`, so that the count is the same for every seed. model: the
    task's, on the meta device; it is not usable afterwards.
    """
    inputs = task.inputs(task.prepared(task.data.typical_batch()))
    try:
        flops = flops_per_step(model, *inputs)
    except RuntimeError as error:  # of torch's fake tensors
        if "not on the expected device meta" not in str(error):
            raise
        raise UserError(
            "model: a component creates a tensor on the CPU although its input is on another"
            f" device; pass device=x.device ({str(error).splitlines()[0]})"
        ) from error
    return flops * int(cfg.trainer.accumulate_grad_batches)
