"""Count the floating-point operations of a training step without computing it."""

from collections.abc import Callable

import torch
from torch import Tensor, nn
from torch.utils.flop_counter import FlopCounterMode

from ablate.model.base import outputs
from ablate.model.layers.stack import Stack


def flops_per_step(make_model: Callable[[], nn.Module], *inputs: Tensor) -> int:
    """Count the matrix products of one forward and backward pass, on torch's meta device.

    `make_model` builds the model with the reference kernel, so that arms are compared by what they
    compute, not by how. A multiply-add counts as two, as in torch.utils.flop_counter; tanh, softmax
    and other pointwise operations count as zero, and so does the recomputation of activation
    checkpointing.
    """
    with torch.device("meta"):
        model = make_model()
    for part in model.modules():
        if isinstance(part, Stack):
            part.activation_checkpointing = False
    with FlopCounterMode(display=False) as counter:
        computed = outputs(model(*(tensor.to("meta") for tensor in inputs)))
        torch.stack([tensor.sum() for tensor in computed]).sum().backward()
    return counter.get_total_flops()
