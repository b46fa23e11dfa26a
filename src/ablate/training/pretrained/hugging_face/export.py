"""Our models as networks of transformers: the way of `translate` back.

A family defines the config of its network (`empty`). The position of each of our numbers in it is
found by reading a network whose numbers are their positions, so that no table of names is written
twice.
"""

from importlib import import_module
from pathlib import Path
from typing import Any

import torch
from omegaconf import DictConfig

from ablate.data import Data
from ablate.errors import UserError, few
from ablate.machine.version import require
from ablate.model.base import Model
from ablate.training.load import Run
from ablate.training.pretrained import COMMON, require_parts

FAMILIES = {"gpt": "gpt2", "vit": "vit"}
WHAT = "the network of transformers"
COMPARED = 3  # examples of validation
CLOSE = 1e-4  # the largest difference of an output, in units of the largest output


def write(run: Run, folder: Path) -> float:
    """Write a folder of transformers; return the largest difference from the model's outputs.

    Raises UserError if the model has other parts than theirs, or other outputs.
    """
    network = network_of(run.model, run.config, run.data)
    first, *keep = inputs = run.task.inputs(run.data.first_examples(COMPARED))
    if keep:  # a network of classes reads the last token that is not padding, which is a new token
        pad = network.config.pad_token_id = network.config.vocab_size
        network.resize_token_embeddings(pad + 1, mean_resizing=False)
        first = first.where(keep[0], pad)
    if names := dict(enumerate(run.data.class_names)):
        network.config.id2label = names
        network.config.label2id = {name: number for number, name in names.items()}
    network.save_pretrained(folder)
    run.data.save_as_hf(folder)
    read = type(network).from_pretrained(folder).eval()
    with torch.no_grad():
        expected, found = run.model(*inputs), read(first).logits
    largest, scale = float((found - expected).abs().max()), float(expected.abs().max())
    if not largest <= CLOSE * scale:
        raise UserError(
            "the exported model disagrees with the original: maximum absolute"
            f" difference {largest:.2g} (output scale {scale:.2g})"
        )
    return largest


def network_of(model: Model, cfg: DictConfig, data: Data) -> Any:
    """The network with the weights of a model; UserError if it has no equal there."""
    transformers = require("transformers", "ablate.export", "hf")
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
