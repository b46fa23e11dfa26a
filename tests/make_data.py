"""Data sets as the command line makes them: from their YAML, with some values changed."""

from typing import Any

from hydra.utils import instantiate
from omegaconf import OmegaConf

from ablate.config.keys import option_content
from ablate.config.tree import config_file
from ablate.data import Data


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
