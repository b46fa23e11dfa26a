"""Checks of a model's outputs: label leakage, and decoding with a cache."""

from copy import deepcopy

import torch
from torch import Tensor

from ablate.data.pairs import PAD
from ablate.model.base import LanguageModel, Model, Seq2Seq, outputs
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

CACHE = (
    "decoding: with its cache the model has other outputs than in one pass, so samples and metrics"
    " of decoded texts are wrong; with a cache a custom component gets only the new tokens"
)
STEPS = 8  # tokens that are decoded for the comparison


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
    """Whether a change of the later half of a sequence changes an output of the earlier half."""
    *others, tokens = _example(task)
    half, computed = tokens.shape[1] // 2, []
    if not half:
        return False
    with torch.random.fork_rng(devices=[]):
        model = _with_random_weights(task)
        for later in (tokens[:, half:], tokens[:, :1].expand(-1, tokens.shape[1] - half)):
            torch.manual_seed(0)  # of a part that draws
            changed = torch.cat([tokens[:, :half], later], dim=1)
            computed.append(outputs(model(*others, changed))[0][:, :half])
    return _differ(*computed)


@torch.no_grad()
def decodes_otherwise(task: Task) -> bool:
    """Whether the outputs token by token, with a cache, differ from those of one pass; False if
    those of two passes differ."""
    *others, tokens = _example(task)
    with torch.random.fork_rng(devices=[]):
        model = _with_random_weights(task)
        if isinstance(model, Seq2Seq):
            tokens = tokens[:, : int((tokens != PAD).sum())][:, :STEPS]
            state = model.encode(*others)
            steps = [model.step(new, state) for new in tokens.unbind(1)]
        elif isinstance(model, LanguageModel) and (cache := model.new_cache()) is not None:
            tokens = tokens[:, :STEPS]
            steps = [model(new[:, None], cache=cache)[:, -1] for new in tokens.unbind(1)]
        else:
            return False
        whole, again = (outputs(model(*others, tokens))[0] for _ in range(2))
    return _differ(whole, torch.stack(steps, 1)) and not _differ(whole, again)


def _example(task: Task) -> list[Tensor]:
    """The inputs of the model, in its precision."""
    dtype = next(task.model.parameters()).dtype
    inputs = (x[:1] for x in task.inputs(task.prepared(task.data.example())))
    return [x.to(dtype) if x.is_floating_point() else x for x in inputs]


def _with_random_weights(task: Task) -> Model:
    """A copy of the model: initial weights may hide a dependence."""
    model = deepcopy(task.model).eval()
    torch.manual_seed(0)
    for parameter in model.parameters():
        parameter.add_(torch.randn_like(parameter), alpha=0.1)
    return model


def _differ(one: Tensor, other: Tensor) -> bool:
    """False for NaN, which is possible with random weights."""
    return bool(((one - other).abs() > 1e-4 * one.abs().max()).any())
