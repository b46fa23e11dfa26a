"""Sequence to sequence: predict the next token of the target, given the source."""

from __future__ import annotations

from collections.abc import Callable, Container, Iterable, Mapping, Sequence
from contextlib import nullcontext
from pathlib import Path
from typing import TYPE_CHECKING, Any, ClassVar

import torch
import torch.nn.functional as F
from torch import Tensor
from torchmetrics.aggregation import MeanMetric

from ablate.config.conflicts import Conflict
from ablate.config.rules import Count, NotNegative
from ablate.data import IGNORED, Batch
from ablate.data.pairs import PAD
from ablate.errors import UserError
from ablate.figures.maps import Map
from ablate.figures.pairs import pair_drawer
from ablate.model.layers.multi_head import recording
from ablate.task.attention import alignments
from ablate.task.decoding import Decoding
from ablate.task.text_metrics import Written, right_links
from ablate.task.translate import write_targets

if TYPE_CHECKING:
    from matplotlib.figure import Figure


SHOWN = 6  # validation examples in the sample
Links = Sequence[tuple[Iterable[int], Container[int]]]


class SequenceToSequence(Decoding):
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
    metric: ClassVar[str] = "val/loss"
    mode: ClassVar[str] = "min"
    unit = "tokens"
    search_keys: ClassVar[tuple[str, ...]] = ("beam", "length_penalty", "max_length")
    family: ClassVar[str] = "sequence-to-sequence"
    options: ClassVar[tuple[str, ...]] = (
        "source", "beam", "length_penalty", "n_best", "show", "input", "output",
    )  # fmt: skip
    example_options: ClassVar[str] = '--source "..."'
    drawn_examples: ClassVar[int] = 4
    takes_source: ClassVar[bool] = True
    generates = True

    def __init__(
        self,
        *args: Any,
        beam: Count,
        length_penalty: NotNegative,
        max_length: Count | None,
        **kwargs: Any,
    ):
        super().__init__(*args, **kwargs)
        longest = self.data.sizes["target_length"]
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
        self.token_accuracy = MeanMetric()
        lower = self.data.target_tokenizer.lower
        self.written = Written(item=self.data.item, lower=lower)
        aligned = self.model.cross and self.links("val", 0) is not None
        self.wrong_links = MeanMetric() if aligned else None

    def inputs(self, batch: Batch) -> tuple[Tensor, ...]:
        return batch["source"], batch["target_in"]

    def units(self, batch: Batch) -> Tensor:
        return (batch["targets"] != IGNORED).sum()

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

    def notes(self) -> dict[str, Any]:
        return super().notes() | {"signatures": self.written.signatures()}

    def generate(self, arguments: Mapping[str, Any], folder: Path) -> Iterable[str]:
        return write_targets(self, arguments, folder)

    def drawer(
        self, examples: Sequence[dict[str, Any]], maps: Sequence[Map], caption: str
    ) -> Callable[[Map, Sequence[int]], Figure]:
        single = alignments(self, examples, maps)
        return pair_drawer(self._pairs, examples, single, caption)

    def sample(self) -> str:
        """Validation examples: the source, the reference and the output."""
        examples = self._pairs.texts["val"][:SHOWN]
        outputs = self.translate([pair.source for pair in examples])
        return "\n\n".join(
            f"source     {pair.source}\nreference  {pair.target}\noutput     {output}"
            for pair, output in zip(examples, outputs, strict=True)
        )
