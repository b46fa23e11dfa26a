"""Base of tasks whose model writes a target for a source."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import torch
from torch import Tensor
from torch.nn.utils.rnn import pad_sequence

from ablate.data.pairs import BOS, EOS, PAD, Pairs
from ablate.data.targets import Targets
from ablate.decode.search import Hypothesis, beam_search, greedy
from ablate.model.base import Seq2Seq
from ablate.task.causal_lm import CausalLM


class Decoding(CausalLM):
    """Writes with a beam of `beam` hypotheses (1: greedy), ranked with `length_penalty`, of at most
    `max_length` tokens, EOS counted."""

    data: Targets
    model: Seq2Seq
    beam: int
    length_penalty: float
    max_length: int

    @property
    def _pairs(self) -> Pairs:
        assert isinstance(self.data, Pairs)
        return self.data

    def search(self, source: Tensor, *, n_best: int = 1) -> list[list[Hypothesis]]:
        """The hypotheses for each row of source, the best first."""
        if self.beam == 1:
            return [
                [hypothesis]
                for hypothesis in greedy(self.model, source, max_length=self.max_length)
            ]
        return beam_search(
            self.model,
            source,
            size=self.beam,
            max_length=self.max_length,
            length_penalty=self.length_penalty,
            n_best=n_best,
        )

    def read(self, sources: Sequence[str]) -> Tensor:
        """Texts as token ids for the model: b j."""
        encode = self._pairs.source_tokenizer.encode
        rows = [torch.tensor([*encode(text), EOS]) for text in sources]
        return pad_sequence(rows, batch_first=True, padding_value=PAD).to(self.device)

    def example(self, source: Any, tokens: list[int]) -> dict[str, Any]:
        """A source and the tokens written for it, as a batch of size 1 like data.example's."""
        target = torch.tensor([[BOS, *tokens, EOS]], device=self.device)
        read = self.read([source])
        return {
            "source": read,
            "target_in": target[:, :-1],
            "targets": target[:, 1:],
            "source_labels": self._pairs.source_tokenizer.labels(read[0].tolist()),
            "target_labels": self.data.target_tokenizer.labels(target[0, 1:].tolist()),
        }

    def answered(self, source: str) -> dict[str, Any]:
        (best, *_), *_ = self.search(self.read([source]))
        return self.example(source, best.tokens)

    def outputs(self, source: Tensor) -> list[str]:
        """The best hypothesis for each row of source, as text."""
        decode = self.data.target_tokenizer.decode
        return [decode(hypotheses[0].tokens) for hypotheses in self.search(source)]

    def translate(self, sources: Sequence[str]) -> list[str]:
        """The outputs of the model for source texts."""
        return self.outputs(self.read(sources))
