"""Sequence to sequence: predict the next token of the target, given the source."""

from __future__ import annotations

from collections.abc import Container, Iterable, Sequence
from contextlib import nullcontext
from typing import Any, ClassVar

import torch
import torch.nn.functional as F
from torch import Tensor
from torch.nn.utils.rnn import pad_sequence
from torchmetrics.aggregation import MeanMetric

from ablate.config.conflicts import Conflict
from ablate.config.rules import Count, NotNegative, Positive, Share
from ablate.data import IGNORED, Batch
from ablate.data.pairs import BOS, EOS, PAD, Pairs, Targets
from ablate.decode.search import Hypothesis, beam_search, greedy
from ablate.errors import UserError
from ablate.model.base import Seq2Seq
from ablate.model.layers.multi_head import recording
from ablate.task import Task
from ablate.task.cross_entropy import TokenLoss
from ablate.task.presenter import Presenter
from ablate.task.text_metrics import Written, right_links
from ablate.task.translate import PairPresenter

Links = Sequence[tuple[Iterable[int], Container[int]]]


class SequenceToSequence(Task):
    """Cross-entropy in nats per target token, with teacher forcing: the prefix is the reference.

    Validation and test after training also decode: with a beam of `beam` hypotheses (1: greedy),
    ranked with `length_penalty`, of at most `max_length` tokens, EOS counted (null: as many as the
    longest target has). `ablate.task.text_metrics.Written` measures the texts.

    aer: alignment error rate, Och and Ney 2003 (https://aclanthology.org/J03-1002), section 6,
    1 - (|A & S| + |A & P|) / (|A| + |S|). S = P links every target token of a field to the field of
    the source that it comes from; A links it to the field of the source token with the largest
    attention weight, in the last cross-attention, averaged over heads, with the reference as
    prefix. Both have one link per token, so that aer is the share of wrong ones.
    """

    kinds = ("pairs",)
    output = "target tokens"
    conflicts: ClassVar[tuple[Conflict, ...]] = (
        Conflict(
            lambda c: c("task.beam") == 1 and c("task.length_penalty") > 0,
            "task.length_penalty={task.length_penalty} ranks the hypotheses of a beam and has no"
            " effect with task.beam=1",
        ),
    )
    metric, mode, unit = "val/loss", "min", "tokens"
    presenter: ClassVar[type[Presenter]] = PairPresenter
    data: Targets
    model: Seq2Seq

    def __init__(
        self,
        *args: Any,
        label_smoothing: Share,
        z_loss: Positive | None = None,
        beam: Count,
        length_penalty: NotNegative,
        max_length: Count | None,
        **kwargs: Any,
    ):
        super().__init__(*args, **kwargs)
        self.criterion = TokenLoss(label_smoothing, z_loss)
        longest = self.data.sizes.target_length
        assert longest is not None
        if max_length is not None and max_length > longest:
            raise UserError(
                f"task.max_length={max_length}: no target of this data has more than {longest} "
                f"tokens, including its end; set at most that, or null"
            )
        if beam == 1 and length_penalty > 0:
            raise UserError(
                f"task.length_penalty={length_penalty} ranks the hypotheses of a beam and has no"
                f" effect with task.beam=1"
            )
        self.beam, self.length_penalty = beam, length_penalty
        self.max_length = longest if max_length is None else max_length
        self.mean_loss, self.token_accuracy = MeanMetric(), MeanMetric()
        lower = self.data.target_tokenizer.lower
        self.written = Written(item=self.data.item, lower=lower)
        aligned = self.model.cross and self.links("val", 0) is not None
        self.wrong_links = MeanMetric() if aligned else None

    def inputs(self, batch: Batch) -> tuple[Tensor, ...]:
        return batch["source"], batch["target_in"]

    def units(self, batch: Batch) -> Tensor:
        return (batch["targets"] != IGNORED).sum()

    def losses(self, batch: Batch) -> dict[str, Tensor]:
        logits, targets = self.model(*self.inputs(batch)), batch["targets"]
        self.share = self.step_so_far.share(targets != IGNORED, self.trainer.world_size)
        return self.criterion.terms(logits, targets, self.share)

    def evaluate(self, batch: Batch) -> None:
        follow = self.wrong_links is not None and not self.fitting
        with recording(self.model) if follow else nullcontext():
            logits = self.model(*self.inputs(batch)).float()
            if follow:
                self._follow_links(batch)
        targets = batch["targets"]
        counted = targets != IGNORED
        loss = F.cross_entropy(logits[counted], targets[counted])
        self.mean_loss.update(loss, counted.sum())
        right = logits.argmax(-1)[counted] == targets[counted]
        self.token_accuracy.update(right.float().mean(), counted.sum())
        if not self.fitting:
            self.compare(self.outputs(self.inputs(batch)[0]), batch)

    def _follow_links(self, batch: Batch) -> None:
        """Update the AER from the attention weights that are being recorded."""
        assert self.wrong_links is not None
        seen: Any = self.model.cross[-1].recorded
        sources = self.inputs(batch)[0].shape[1]
        recorded = torch.cat([self.model.to_source(w, sources) for w in seen], dim=2)
        # A layer that is applied several times has recorded as many: the last comes last.
        weights = recorded[:, :, -batch["targets"].shape[1] :].float().mean(1)
        for w, index in zip(weights, batch["index"].tolist(), strict=True):
            right, count = right_links(w, self.links(self._split, index) or [])
            self.wrong_links.update(1 - right / max(count, 1), count)

    def compare(self, outputs: list[str], batch: Batch) -> None:
        """Update the measures of the model's outputs for a batch."""
        self.written.update(
            outputs,
            [self.data.reference(self._split, index) for index in batch["index"].tolist()],
            self.lengths(batch),
        )

    def links(self, split: str, index: int) -> Links | None:
        """Target tokens of an example and their source positions; None if unknown."""
        return self._pairs.alignment(split, index)

    def lengths(self, batch: Batch) -> Tensor:
        """Tokens of each source, b; the accuracy is grouped by them."""
        return (batch["source"] != PAD).sum(1) - 1

    @property
    def _split(self) -> str:
        return "test" if self.trainer.testing else "val"

    def measures(self, split: str) -> dict[str, Tensor]:
        loss = self.mean_loss.compute()
        values = {
            "loss": loss,
            "perplexity": loss.exp(),
            "token_accuracy": self.token_accuracy.compute(),
        }
        if self.fitting:
            return values
        if self.wrong_links is not None:
            values["aer"] = self.wrong_links.compute()
        return values | self.compared()

    def compared(self) -> dict[str, Tensor]:
        """The measures that `compare` updates."""
        return self.written.compute()

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

    def outputs(self, source: Tensor) -> list[str]:
        """The best hypothesis for each row of source, as text."""
        decode = self.data.target_tokenizer.decode
        return [decode(hypotheses[0].tokens) for hypotheses in self.search(source)]

    def translate(self, sources: Sequence[str]) -> list[str]:
        """The outputs of the model for source texts."""
        return self.outputs(self.read(sources))
