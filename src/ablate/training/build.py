"""A composed config made into what it names: data, model, task."""

from functools import partial
from typing import Any

import torch
from hydra.errors import InstantiationException
from hydra.utils import instantiate
from omegaconf import DictConfig

from ablate.config.keys import locate, targets
from ablate.data import Data
from ablate.errors import unwrap
from ablate.kernel import Kernel
from ablate.model.base import Model
from ablate.model.pretrained import hugging_face
from ablate.seeding import derive
from ablate.task import Task
from ablate.training.transfer import WITH_TOKENS, Source, start_from


def make(node: Any, *arguments: Any, **more: Any) -> Any:
    """Hydra's instantiate, with our own errors as they were raised, and one for a part that cannot
    be imported here."""
    try:
        return instantiate(node, *arguments, **more)
    except InstantiationException as error:
        if ours := unwrap(error):
            raise ours from error
        for target in targets(node):
            locate(target)
        raise


def plain(made: Any) -> Any:
    """A partial of Hydra's as one of Python's: theirs looks its policy up at every call, which
    takes a millisecond."""
    if isinstance(made, partial):
        return partial(made.func, *made.args, **made.keywords)
    return made


def make_data(cfg: DictConfig) -> Data:
    """The data, not read yet, told by task and model what its batches have to hold."""
    data: Data = make(cfg.data, seed=cfg.seed)
    task = make(cfg.task, _partial_=True)
    task.func.ask(data, **task.keywords)
    model = locate(cfg.model._target_)
    if hasattr(model, "ask"):  # not where somebody's function makes the model
        model.ask(data)
    return data


def build_data(cfg: DictConfig) -> Data:
    """The data, read and split; with the tokens of the run that this one starts from."""
    if cfg.init_from is None:
        return read_data(cfg)
    source = Source(cfg.init_from)
    source.require_same_parts(cfg)
    return read_data(cfg, tokens=source.tokens())


def read_data(cfg: DictConfig, tokens: DictConfig | None = None) -> Data:
    """The data, read and split. tokens: what `Source.tokens` says of those it uses."""
    data = make_data(cfg)
    if tokens is not None and data.kind in WITH_TOKENS:
        data.measure_as(read_data(tokens))
    data.setup()
    return data


def build(cfg: DictConfig, data: Data | None = None) -> Model:
    """The model of a composed config, a torch module. It has its initial values, or the weights to
    start from.

    Its sizes come from the data, which is read if it is not given; so does what a part learns by
    itself, as word2vec does.
    """
    data = data or build_data(cfg)
    # Models from outside draw their values while they are made.
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(derive(cfg.seed, "init"))
        model = make_model(cfg, data, make(cfg.kernel))
    model.initialise(cfg.seed)
    if cfg.init_from is not None:
        start_from(model, cfg)
    elif hugging_face.asked(cfg.model.get("pretrained")):
        hugging_face.start_from(model, cfg)
    else:
        for name, part in model.named_modules():
            if hasattr(part, "learn_from"):
                part.learn_from(data, seed=derive(cfg.seed, "learn", name))
    return model


def make_model(cfg: DictConfig, data: Data, kernel: Kernel) -> Model:
    """The model's parts put together: with a kernel if it attends, with positions if it says that
    it takes them, or is made of Stacks, which have a mask."""
    slots: dict[str, Any] = {}
    if "attention" in cfg.model:
        slots["kernel"] = kernel
    if "mask" in cfg.model or getattr(locate(cfg.model._target_), "places", False):
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
        schedule=plain(make(cfg.schedule)),
        seed=cfg.seed,
    )
    return task
