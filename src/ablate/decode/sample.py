"""Sampling from a language model: temperature, top-k, top-p, with a KV cache or recurrent state.

Top-k: Fan et al. 2018, https://arxiv.org/abs/1805.04833; top-p (nucleus): Holtzman et al. 2019,
https://arxiv.org/abs/1904.09751.
"""

import math
from collections.abc import Iterator

import torch
from jaxtyping import Float, Int
from torch import Tensor

from ablate.model.base import LanguageModel


def choose(
    logits: Float[Tensor, "b vocab"],
    *,
    temperature: float,
    top_k: int | None,
    top_p: float | None,
    rng: torch.Generator,
) -> Int[Tensor, " b"]:
    """A token sampled from `truncated` probabilities; temperature 0 takes the most likely one."""
    if temperature == 0:
        return logits.argmax(-1)
    ranked, order = truncated(logits, temperature=temperature, top_k=top_k, top_p=top_p)
    drawn = torch.multinomial(ranked, 1, generator=rng)
    return order.gather(-1, drawn).squeeze(-1)


def truncated(
    logits: Float[Tensor, "b vocab"], *, temperature: float, top_k: int | None, top_p: float | None
) -> tuple[Float[Tensor, "b vocab"], Int[Tensor, "b vocab"]]:
    """Probabilities from the highest to the lowest, and the token of each.

    In this order, as in transformers: the softmax of logits / temperature; top_k keeps that many
    tokens, whose probabilities then sum to 1; top_p keeps the fewest that sum to at least top_p.
    """
    logits, order = logits.sort(-1, descending=True)
    # Below the largest, for a temperature so low that a quotient would overflow.
    least = torch.finfo(logits.dtype).tiny
    scores = (logits - logits[:, :1]) / max(temperature, least)
    if top_k is not None:
        scores[:, top_k:] = -torch.inf
    if top_p is not None:
        # Summed from the lowest up, to keep the precision of small numbers; the highest stays.
        from_here = scores.softmax(-1).flip(-1).cumsum(-1).flip(-1)
        scores[:, 1:][from_here[:, 1:] <= 1 - top_p] = -torch.inf
    return scores.softmax(-1), order


@torch.no_grad()
def sample(
    model: LanguageModel,
    prompt: Int[Tensor, "b i"],
    *,
    tokens: int,
    temperature: float = 1.0,
    top_k: int | None = None,
    top_p: float | None = None,
    rng: torch.Generator | None = None,
    use_cache: bool = True,
) -> Iterator[Int[Tensor, " b"]]:
    """Yield the next `tokens` tokens after the prompt, one by one.

    If the model's length is limited, it reads the last tokens that fit: beyond that length the
    oldest token is dropped, and the rest is read again at every step, without the cache.
    """
    rng = rng or torch.Generator(prompt.device)
    cache = model.new_cache() if use_cache else None
    longest = math.inf if model.length is None else model.length
    read = new = _latest(prompt, model.length)
    for _ in range(tokens):
        if cache is not None and cache.length() + new.shape[1] <= longest:
            logits = model(new, cache=cache)
        else:
            logits = model(read)
        token = choose(logits[:, -1], temperature=temperature, top_k=top_k, top_p=top_p, rng=rng)
        yield token
        new = token[:, None]
        read = _latest(torch.cat([read, new], dim=1), model.length)


def _latest(tokens: Int[Tensor, "b i"], length: int | None) -> Int[Tensor, "b last"]:
    """The last tokens that can be read at once."""
    return tokens if length is None else tokens[:, -length:]
