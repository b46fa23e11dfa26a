"""Label leakage: does a model see the tokens that it has to predict?"""

from copy import deepcopy

import torch

from ablate.model.base import outputs
from ablate.model.layers.stack import Stack
from ablate.task import Task

# Outputs that are predicted from left to right, each for a position of the model's last input.
LEFT_TO_RIGHT = ("next tokens", "target tokens", "captions")
# The loss does not show this: it looks like the best result of all.
PEEKS = (
    "label leakage: the mask of a layer lets positions attend to the tokens they have to predict, "
    "so the loss does not measure prediction"
)
LEAKS = (
    "label leakage: outputs depend on tokens that come after them, which they have to predict, so"
    " the loss does not measure prediction"
)


def caution(task: Task, *, computed: bool) -> str | None:
    """Why the measures of this model would mislead. computed: also by its outputs, for models with
    custom parts."""
    if getattr(task, "output", None) not in LEFT_TO_RIGHT:
        return None
    stacks = [part for part in task.model.modules() if isinstance(part, Stack)]
    if any(stack.causal and stack.leaks_targets for stack in stacks):
        return PEEKS
    return LEAKS if computed and leaks(task) else None


@torch.no_grad()
def leaks(task: Task) -> bool:
    """Whether a change of the later half of a sequence changes an output of the earlier half. The
    weights are random: initial ones may hide it."""
    *others, tokens = [x[:1] for x in task.inputs(task.prepared(task.data.example()))]
    model = deepcopy(task.model).eval()
    half, computed = tokens.shape[1] // 2, []
    if not half:
        return False
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(0)
        for parameter in model.parameters():
            parameter.add_(torch.randn_like(parameter), alpha=0.1)
        for later in (tokens[:, half:], tokens[:, :1].expand(-1, tokens.shape[1] - half)):
            torch.manual_seed(0)  # of a part that draws
            changed = torch.cat([tokens[:, :half], later], dim=1)
            computed.append(outputs(model(*others, changed))[0][:, :half])
    one, other = computed
    # False for NaN, which is possible with random weights.
    return bool(((one - other).abs() > 1e-4 * one.abs().max()).any())
