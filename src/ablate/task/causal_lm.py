"""Causal language modeling: predict the next token."""

import math
from argparse import ArgumentTypeError
from collections.abc import Callable, Iterable, Iterator, Mapping
from pathlib import Path
from typing import Any

import torch
import torch.nn.functional as F
from jaxtyping import Float, Int
from torch import Tensor
from torch.utils.checkpoint import checkpoint
from torchmetrics.aggregation import MeanMetric

from ablate.config.conflicts import Conflict
from ablate.config.rules import Count, Positive, Real, Share
from ablate.data import IGNORED, Batch, Data
from ablate.data.text import TokenData
from ablate.data.tokenizer import Tokenizer
from ablate.decode.sample import sample
from ablate.model.base import LanguageModel
from ablate.task import Task
from ablate.task.cross_entropy import TokenLoss
from ablate.task.presenter import COUNT, SEED, Presenter, checked, filled, write_sample

COLDEST = 1e-6  # logits divided by less overflow


def temperature(text: str) -> float:
    value = float(text)
    if not (value == 0 or value >= COLDEST):
        raise ArgumentTypeError(f"{text} must be 0, or at least {COLDEST}")
    return value


class LanguagePresenter(Presenter):
    """Continues prompts."""

    family = "language"
    options = {
        "prompt": {
            "type": filled,
            "help": "prompt to continue (default: 'The ', or the start of the validation text if"
            " the tokenizer lacks it)",
        },
        "tokens": {"type": COUNT, "help": "number of tokens to generate (default: 500)"},
        "temperature": {
            "type": temperature,
            "help": "sampling temperature; 0: greedy (default: 0.8)",
        },
        "top_k": {"type": COUNT, "help": "sample from the k most likely tokens"},
        "top_p": {
            "type": checked(float, Real(0, 1, above=True)),
            "help": "sample from the most likely tokens whose probabilities sum to p",
        },
        "seed": SEED,
    }
    example_options = "--prompt {prompt}"

    def notes(self) -> dict[str, Any]:
        return {"prompt": opening(self.data)} if self.generates else {}

    def artifacts(self, folder: Path) -> list[Path]:
        return [write_sample(folder, self.sample())] if self.generates else []

    @property
    def generates(self) -> bool:
        return isinstance(self.model, LanguageModel) and hasattr(self.data, "tokenizer")

    def generate(self, arguments: Mapping[str, Any], folder: Path) -> Iterable[str]:
        options = {"tokens": 500, "temperature": 0.8, "seed": 0, **arguments}
        options.setdefault("prompt", opening(self.data))
        rng = torch.Generator().manual_seed(options.pop("seed"))
        yield from self.continuation(options.pop("prompt"), rng=rng, **options)

    def sample(self) -> str:
        """Generated text."""
        rng = torch.Generator().manual_seed(0)
        (text,) = self.continuation(opening(self.data), tokens=400, temperature=0.8, rng=rng)
        return text

    def continuation(self, prompt: str, *, rng: torch.Generator, **options: Any) -> Iterator[str]:
        """The prompt and its continuation by the model, at Ctrl-C as far as it was written;
        options: as for `sample.sample`."""
        tokenizer: Tokenizer = self.data.tokenizer
        ids = tokenizer.encode(prompt)
        try:
            for token in sample(self.model, torch.tensor([ids]), rng=rng, **options):
                ids.append(int(token))
        except KeyboardInterrupt:
            yield tokenizer.decode(ids)
            raise
        yield tokenizer.decode(ids)


class CausalPresenter(LanguagePresenter):
    def predictions(self, batch: Batch) -> dict[str, Tensor]:
        """The mean loss of the targets of each example, and the share of them that is right."""
        logits = self.model(*self.task.inputs(batch), **self.task.documents(batch))
        return by_example(logits, batch["targets"])


class CausalLM(Task):
    """Cross-entropy in nats per token; perplexity is exp(loss); bits per byte and per character
    spread it over the text of the tokens, so that tokenizers can be compared.

    label_smoothing, z_loss: of `TokenLoss`, in training. loss_chunk: tokens whose logits are in
    memory at once, and are computed again for the gradient; None: those of the whole batch.
    """

    kinds = ("text",)
    conflicts = (
        Conflict(
            lambda c: c("task.loss_chunk") is not None and not c.trait("model", "returns_states"),
            "task.loss_chunk={task.loss_chunk}: model={model} computes its logits for the whole"
            " batch; set task.loss_chunk=null",
        ),
    )
    output = "next tokens"
    metric, mode, unit = "val/loss", "min", "tokens"
    presenter = CausalPresenter

    def __init__(
        self,
        *args: Any,
        label_smoothing: Share = 0.0,
        z_loss: Positive | None = None,
        loss_chunk: Count | None = None,
        **kwargs: Any,
    ):
        super().__init__(*args, **kwargs)
        self.criterion, self.loss_chunk = TokenLoss(label_smoothing, z_loss), loss_chunk
        self.mean_loss = MeanMetric()

    def inputs(self, batch: Batch) -> tuple[Tensor, ...]:
        return (batch["tokens"],)

    def documents(self, batch: Batch) -> dict[str, Tensor]:
        return {name: batch[name] for name in ("documents", "positions") if name in batch}

    def units(self, batch: Batch) -> int | Tensor:
        return batch["tokens"].numel()

    def losses(self, batch: Batch) -> dict[str, Tensor]:
        share = self.step_so_far.share(batch["targets"] != IGNORED, self.trainer.world_size)
        return self._terms(batch, lambda logits, t: self.criterion.terms(logits, t, share))

    def evaluate(self, batch: Batch) -> None:
        counted = (batch["targets"] != IGNORED).sum()
        exact = TokenLoss(label_smoothing=0.0, z_loss=None)
        found = self._terms(batch, lambda logits, t: exact.terms(logits.float(), t, counted))
        self.mean_loss.update(found["loss"], counted)

    def _terms(
        self, batch: Batch, terms: Callable[[Tensor, Tensor], dict[str, Tensor]]
    ) -> dict[str, Tensor]:
        """The terms of the logits and targets of a batch, summed over its chunks."""
        model: Any = self.model
        inputs, within, targets = self.inputs(batch), self.documents(batch), batch["targets"]
        if self.loss_chunk is None:
            return terms(model(*inputs, **within), targets)

        def of_chunk(states: Tensor, targets: Tensor) -> dict[str, Tensor]:
            return terms(model.logits(states[None]), targets[None])

        states = model(*inputs, **within, read=False).flatten(0, 1).split(self.loss_chunk)
        chunks = zip(states, targets.flatten().split(self.loss_chunk), strict=True)
        found = [checkpoint(of_chunk, *chunk, use_reentrant=False) for chunk in chunks]
        return {name: torch.stack([one[name] for one in found]).sum(0) for name in found[0]}

    def measures(self, split: str) -> dict[str, Tensor]:
        assert isinstance(self.data, TokenData)
        loss = self.mean_loss.compute()
        found = {"loss": loss, "perplexity": loss.exp()}
        for unit, count in self.data.per_token(split).items():
            found[f"bits_per_{unit}"] = loss / math.log(2) / count
        return found


def opening(data: Data) -> str:
    """A prompt that the data's tokenizer knows: English, or the first tokens of validation."""
    tokenizer: Tokenizer = data.tokenizer
    if tokenizer.knows("The "):
        return "The "
    return tokenizer.decode(data.example()["tokens"][0, :4].tolist())


def by_example(
    logits: Float[Tensor, "b n v"], targets: Int[Tensor, "b n"]
) -> dict[str, Float[Tensor, " b"]]:
    """Means over the targets of each example: the loss in nats, and the share that is right."""
    losses = F.cross_entropy(
        logits.float().transpose(1, 2), targets, ignore_index=IGNORED, reduction="none"
    )
    counted = targets != IGNORED
    count = counted.sum(1)
    right = (logits.argmax(-1) == targets) & counted
    return {"loss": losses.sum(1) / count, "right": right.sum(1) / count}
