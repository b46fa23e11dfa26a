"""Size of the decoding cache in bytes, without computing it."""

from collections.abc import Iterable, Iterator
from typing import Any, NamedTuple

import torch
from torch import Tensor, nn

from ablate.model.base import LanguageModel, Seq2Seq
from ablate.model.layers.layer import Cache
from ablate.model.rnn_lm import HiddenState

FEW = 8  # tokens


class CacheBytes(NamedTuple):
    """Of one sequence, in the dtype of the parameters. per_token: tensors that grow, such as keys
    and values; state: tensors of fixed size, such as the state of a recurrence."""

    per_token: int
    state: int


def cache_bytes(model: nn.Module, *inputs: Tensor) -> CacheBytes | None:
    """Decode a few tokens on the meta device; None for a model that keeps nothing.

    model: on that device. inputs: of `forward`; a model with a source reads the source.
    """
    with torch.device("meta"), torch.no_grad():
        sizes = _before_and_after_one_token(model.eval(), *(x[:1].to("meta") for x in inputs))
    model.train()
    if not sizes:
        return None
    before, after = sizes
    grown = [name for name in after if before.get(name) != after[name]]
    growth = sum(after[name] - before.get(name, 0) for name in grown)
    return CacheBytes(growth, sum(size for name, size in after.items() if name not in grown))


def _before_and_after_one_token(model: nn.Module, *inputs: Tensor) -> list[dict[Any, int]]:
    """The bytes of each tensor kept, after a few tokens and after one more."""
    token = torch.zeros(1, 1, dtype=torch.long, device="meta")
    sizes: list[dict[Any, int]] = []
    if isinstance(model, LanguageModel):
        if getattr(model, "classes", None) is not None or (cache := model.new_cache()) is None:
            return []
        for count in (min(FEW, model.length or FEW) - 1, 1):
            if count:  # 0 of a model that reads one token
                model(token.expand(1, count), cache=cache)
            sizes.append(dict(_tensors(cache)))
    elif isinstance(model, Seq2Seq):
        state = model.encode(inputs[0])
        if not isinstance(cache := getattr(state, "cache", None), Cache):
            return []
        for _ in range(FEW // 2):
            model.step(token[0], state)
            sizes.append(dict(_tensors(cache)))
    return sizes[-2:]


def _tensors(cache: Cache | HiddenState) -> Iterator[tuple[Any, int]]:
    states: Iterable[tuple[Any, Any]]
    states = cache.states.items() if isinstance(cache, Cache) else enumerate(cache.hidden or [])
    for name, state in states:
        parts = (state,) if isinstance(state, Tensor) else state
        for number, part in enumerate(parts):
            yield (name, number), part.nbytes
