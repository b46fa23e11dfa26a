"""Data sets as the command line makes them: from their YAML, with some values changed."""

from typing import Any

import torch
from hydra.utils import instantiate
from omegaconf import OmegaConf

from ablate.config.keys import option_content
from ablate.config.tree import config_file
from ablate.data import Batch, Data, Request


def make(name: str, /, *, seed: int = 0, **changes: Any) -> Data:
    """The data set of conf/data/<name>.yaml, not yet set up."""
    config = OmegaConf.merge(option_content(config_file(f"data/{name}.yaml"))[0], changes)
    data = instantiate(config, seed=seed)
    assert isinstance(data, Data)
    return data


def ready(name: str, /, *, seed: int = 0, **changes: Any) -> Data:
    """The same, set up."""
    data = make(name, seed=seed, **changes)
    data.setup()
    return data


def everything(data: Data, split: str) -> Batch:
    """The examples of a split as one batch."""
    batch: Batch = data.splits[split][Request(0, torch.arange(data.length(split)))]
    return batch
