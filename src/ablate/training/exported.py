"""A trained model as one of transformers, compared with the model after it was written."""

from pathlib import Path

import torch

from ablate.errors import UserError
from ablate.training.load import Run
from ablate.training.pretrained.hugging_face.export import network_of

COMPARED = 3  # examples of validation
CLOSE = 1e-4  # the largest difference of an output, in units of the largest output


def write(run: Run, folder: Path) -> float:
    """Write a folder of transformers; return the largest difference from the model's outputs.

    Raises UserError if the model has other parts than theirs, or other outputs.
    """
    network = network_of(run.model, run.config, run.data)
    network.save_pretrained(folder)
    run.data.save_as_hf(folder)
    read = type(network).from_pretrained(folder).eval()
    inputs = run.task.inputs(run.data.first_examples(COMPARED))
    with torch.no_grad():
        expected, found = run.model(*inputs), read(inputs[0]).logits
    largest, scale = float((found - expected).abs().max()), float(expected.abs().max())
    if not largest <= CLOSE * scale:
        raise UserError(
            "the exported model disagrees with the original: maximum absolute"
            f" difference {largest:.2g} (output scale {scale:.2g})"
        )
    return largest
