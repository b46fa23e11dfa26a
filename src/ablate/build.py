"""A composed config made into what it names: data, model, task."""

from typing import Any

import torch
from hydra.errors import InstantiationException
from hydra.utils import instantiate
from omegaconf import DictConfig

from ablate.data import Data
from ablate.errors import unwrap
from ablate.kernel import Kernel
from ablate.model.init import Model
from ablate.seeding import derive
from ablate.task import Task


def make(node: Any, *arguments: Any, **more: Any) -> Any:
    """Hydra's instantiate, with our own errors as they were raised."""
    try:
        return instantiate(node, *arguments, **more)
    except InstantiationException as error:
        if ours := unwrap(error):
            raise ours from error
        raise


def build_data(cfg: DictConfig) -> Data:
    """The data, read and split."""
    data: Data = make(cfg.data, seed=cfg.seed)
    data.setup()
    return data


def build(cfg: DictConfig, data: Data | None = None) -> Model:
    """The model of a composed config, with its initial values: a torch module.

    Its sizes come from the data, which is read if it is not given; so does what a part learns by
    itself, as word2vec does.
    """
    data = data or build_data(cfg)
    # Models from outside draw their values while they are made.
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(derive(cfg.seed, "init"))
        model = make_model(cfg, data, make(cfg.kernel))
    model.initialise(cfg.seed)
    for name, part in model.named_modules():
        if hasattr(part, "learn_from"):
            part.learn_from(data, seed=derive(cfg.seed, "learn", name))
    return model


def make_model(cfg: DictConfig, data: Data, kernel: Kernel) -> Model:
    """The model's parts put together: with a kernel if it attends, with positions if it is made of
    Stacks, which have a mask."""
    slots: dict[str, Any] = {}
    if "attention" in cfg.model:
        slots["kernel"] = kernel
    if "mask" in cfg.model:
        slots["pos_enc"] = make(cfg.pos_enc)
    model: Model = make(cfg.model, **data.sizes, **slots, _convert_="all")
    return model


def make_task(cfg: DictConfig, data: Data, model: Model) -> Task:
    """The LightningModule that trains and measures the model."""
    task: Task = make(
        cfg.task,
        model,
        data=data,
        optimizer=make(cfg.optimizer, _convert_="all"),
        schedule=make(cfg.schedule),
        seed=cfg.seed,
    )
    return task
