"""Sampling from a language model: temperature, top-k, top-p, with a KV cache or recurrent state.

Top-k: Fan et al. 2018, https://arxiv.org/abs/1805.04833; top-p (nucleus): Holtzman et al. 2019,
https://arxiv.org/abs/1904.09751.
"""

from collections.abc import Iterator

import torch
from torch import Tensor

from ablate.model.base import LanguageModel


def choose(
    logits: Tensor,
    *,
    temperature: float,
    top_k: int | None,
    top_p: float | None,
    rng: torch.Generator,
) -> Tensor:
    """b vocab -> b: a token sampled from the softmax of logits / temperature, after truncation.

    Temperature 0 takes the most likely token. top_k keeps that many; top_p keeps the fewest whose
    probabilities sum to at least top_p.
    """
    if temperature == 0:
        return logits.argmax(-1)
    probabilities = (logits / temperature).softmax(-1)
    ranked, order = probabilities.sort(-1, descending=True)
    if top_k is not None:
        ranked[:, top_k:] = 0
    if top_p is not None:
        before = ranked.cumsum(-1) - ranked
        ranked[:, 1:][before[:, 1:] >= top_p] = 0  # the likeliest stays, however small top_p is
    drawn = torch.multinomial(ranked, 1, generator=rng)
    return order.gather(-1, drawn).squeeze(-1)


@torch.no_grad()
def sample(
    model: LanguageModel,
    prompt: Tensor,
    *,
    tokens: int,
    temperature: float = 1.0,
    top_k: int | None = None,
    top_p: float | None = None,
    rng: torch.Generator | None = None,
    use_cache: bool = True,
) -> Iterator[Tensor]:
    """Yield the next `tokens` tokens (each of shape b) after the prompt (b i), one by one.

    If the model's length is limited, it reads the last tokens that fit: beyond that length the
    oldest token is dropped, and the rest is read again at every step, without the cache.
    """
    rng = rng or torch.Generator(prompt.device)
    cache = model.new_cache() if use_cache else None
    read = new = _latest(prompt, model.length)
    for _ in range(tokens):
        if cache is not None and _fits(cache.length() + new.shape[1], model.length):
            logits = model(new, cache=cache)
        else:
            logits = model(read)
        token = choose(logits[:, -1], temperature=temperature, top_k=top_k, top_p=top_p, rng=rng)
        yield token
        new = token[:, None]
        read = _latest(torch.cat([read, new], dim=1), model.length)


def _latest(tokens: Tensor, length: int | None) -> Tensor:
    """The last tokens of b i that can be read at once."""
    return tokens if length is None else tokens[:, -length:]


def _fits(tokens: int, length: int | None) -> bool:
    return length is None or tokens <= length
