"""Our models as networks of transformers: the way of `translate` back.

A family defines the config of its network (`empty`). The position of each of our numbers in it is
found by reading a network whose numbers are their positions, so that no table of names is written
twice.
"""

from importlib import import_module
from typing import Any

import torch
from omegaconf import DictConfig

from ablate.data import Data
from ablate.errors import UserError, few
from ablate.machine.version import install
from ablate.model.base import Model
from ablate.training.pretrained import COMMON, require_parts

FAMILIES = {"gpt": "gpt2", "vit": "vit"}
WHAT = "the network of transformers"


def network_of(model: Model, cfg: DictConfig, data: Data) -> Any:
    """The network with the weights of a model; UserError if it has no equal there."""
    try:
        import transformers
    except ImportError:
        raise UserError(f"ablate.export needs the library transformers: {install('hf')}") from None
    transformers.logging.set_verbosity_error()
    transformers.logging.disable_progress_bar()
    if (name := cfg.choices.model) not in FAMILIES:
        raise UserError(f"ablate.export: model={name}; {' and '.join(FAMILIES)} can be written")
    family: Any = import_module(f"{__package__}.{FAMILIES[name]}")
    network = family.empty(cfg, data.sizes.arguments()).double().eval()
    require_parts(cfg, COMMON | family.parts(network, WHAT), WHAT)
    ours = model.state_dict()
    parameters = list(network.parameters())
    count = sum(parameter.numel() for parameter in parameters)
    with torch.no_grad():
        _fill(parameters, torch.arange(count, dtype=torch.float64))
        places = family.translate(network, ours, WHAT)
        if wrong := sorted(places.keys() ^ ours.keys()):
            raise UserError(f"{WHAT} has other parameters than this model: {few(wrong, ', ')}")
        numbers = torch.full((count,), torch.nan, dtype=torch.float64)
        for key, value in ours.items():
            numbers[places[key].long()] = value.double()
        assert not numbers.isnan().any()
        _fill(parameters, numbers)
    return network.float()


def _fill(parameters: list[torch.nn.Parameter], numbers: torch.Tensor) -> None:
    sizes = [parameter.numel() for parameter in parameters]
    for parameter, part in zip(parameters, numbers.split(sizes), strict=True):
        parameter.copy_(part.view_as(parameter))
