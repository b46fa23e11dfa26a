"""Rollouts: a language model's continuations of a batch of prompts, with their probabilities."""

from typing import NamedTuple

import torch
from jaxtyping import Bool, Float, Int
from torch import Tensor

from ablate.decode.sample import sample
from ablate.model.base import LanguageModel


class Rollout(NamedTuple):
    """tokens: prompt and response, padded with 0 at the end. written: True = response."""

    tokens: Int[Tensor, "b i"]
    written: Bool[Tensor, "b i"]


@torch.no_grad()
def rollout(
    model: LanguageModel,
    prompts: Int[Tensor, "b i"],
    lengths: Int[Tensor, " b"],
    *,
    tokens: int,
    rng: torch.Generator,
) -> Rollout:
    """Sample a response of `tokens` tokens to each prompt, with the cache, in evaluation mode.

    prompts: padded at the end; lengths: of the prompts. Those of equal length are one batch for the
    model, whose cache has no padding.
    """
    was_training = model.training
    model.eval()
    most = int(lengths.max()) + tokens
    written = prompts.new_zeros(len(prompts), most)
    for length in lengths.unique().tolist():
        rows = (lengths == length).nonzero().squeeze(1)
        read = prompts[rows, :length]
        drawn = torch.stack([*sample(model, read, tokens=tokens, rng=rng)], dim=1)
        written[rows, : length + tokens] = torch.cat([read, drawn], dim=1)
    model.train(was_training)
    positions = torch.arange(most, device=prompts.device)
    start = lengths[:, None]
    return Rollout(written, (positions >= start) & (positions < start + tokens))


def log_probabilities(
    model: LanguageModel, tokens: Int[Tensor, "b i"]
) -> Float[Tensor, "b i-1 vocab"]:
    """Of every token after the first, in float32 or wider."""
    logits = model(tokens[:, :-1])
    return logits.to(torch.promote_types(logits.dtype, torch.float32)).log_softmax(-1)


def of_response(
    log_probs: Float[Tensor, "b previous vocab"],
    tokens: Int[Tensor, "b i"],
    written: Bool[Tensor, "b i"],
) -> Float[Tensor, "b i-1"]:
    """The log-probability of each token of the responses; 0 elsewhere."""
    chosen = log_probs.gather(-1, tokens[:, 1:, None]).squeeze(-1)
    return torch.where(written[:, 1:], chosen, 0.0)
