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
from torchmetrics import Metric

from ablate.config.conflicts import Conflict
from ablate.config.rules import Count, Positive, Real, Share
from ablate.data import IGNORED, Batch, Data
from ablate.data.document_rows import documents
from ablate.data.mixture import Mixture
from ablate.data.tokenizer import Tokenizer
from ablate.decode.sample import sample
from ablate.errors import UserError
from ablate.model.base import LanguageModel
from ablate.task import Task
from ablate.task.cross_entropy import TokenLoss
from ablate.task.presenter import COUNT, SEED, Presenter, checked, filled, write_sample

HIGH = 32  # bits of a target below its source
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
        drawn = {"top_k": "--top-k", "top_p": "--top-p", "seed": "--seed"}
        if options["temperature"] == 0 and (given := [drawn[k] for k in drawn if k in arguments]):
            raise UserError(f"{', '.join(given)}: --temperature 0 draws nothing; leave one out")
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
        logits = self.model(*self.task.inputs(batch), **documents(batch))
        return by_example(logits, batch["targets"])


class MeanLosses(Metric):
    """The mean loss of each of several sources, and the number of its targets."""

    sums: Tensor
    counts: Tensor

    def __init__(self, sources: int) -> None:
        super().__init__()
        for name in ("sums", "counts"):
            self.add_state(name, torch.zeros(sources), dist_reduce_fx="sum")

    def update(self, source: int, loss: Tensor, count: Tensor) -> None:
        self.sums[source] += loss * count
        self.counts[source] += count

    def compute(self) -> Float[Tensor, "2 sources"]:
        return torch.stack([self.sums / self.counts, self.counts])


class CausalLM(Task):
    """Cross-entropy in nats per token; perplexity is exp(loss); bits per byte and per character
    spread it over the text of the tokens, so that tokenizers can be compared. Of a mixture of
    sources these are means over the sources, with those of each as loss/NAME.

    label_smoothing, z_loss: of `TokenLoss`, in training. multi_token: tokens that the logits of a
    position predict in training, each with half the weight of the one before (multi-token
    prediction without further heads, of modded-nanogpt, record 53; Gloeckle et al. 2024,
    https://arxiv.org/abs/2404.19737, have a head for each): train/multi_token is the loss of those
    after the first, in sum over the number of first ones. loss_chunk: tokens whose logits are in
    memory at once, and are computed again for the gradient; None: those of the whole batch.
    """

    kinds = ("text",)
    conflicts = (
        Conflict(
            lambda c: c("task.loss_chunk") is not None and not c.trait("model", "returns_states"),
            "task.loss_chunk={task.loss_chunk}: model={model} computes its logits for the whole"
            " batch; set task.loss_chunk=null",
        ),
        Conflict(
            lambda c: (c("task.multi_token") or 1) > (c("data.seq_len") or math.inf),
            "task.multi_token={task.multi_token} is more than the tokens of a row,"
            " data.seq_len={data.seq_len}; set task.multi_token=1",
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
        multi_token: Count = 1,
        loss_chunk: Count | None = None,
        **kwargs: Any,
    ):
        super().__init__(*args, **kwargs)
        self.criterion, self.loss_chunk = TokenLoss(label_smoothing, z_loss), loss_chunk
        self.multi_token = multi_token
        self.mean_losses = MeanLosses(len(self._sources))

    def inputs(self, batch: Batch) -> tuple[Tensor, ...]:
        return (batch["tokens"],)

    def units(self, batch: Batch) -> int | Tensor:
        return batch["tokens"].numel()

    def losses(self, batch: Batch) -> dict[str, Tensor]:
        share = self.step_so_far.share(batch["targets"] != IGNORED, self.trainer.world_size)

        def terms(logits: Tensor, targets: Tensor) -> dict[str, Tensor]:
            first, *later = targets.unbind(-1)
            found = self.criterion.terms(logits, first, share)
            weighted = [
                0.5**n * self.criterion.loss(logits, target, share)
                for n, target in enumerate(later, 1)
            ]
            return found | ({"multi_token": torch.stack(weighted).sum()} if later else {})

        targets = ahead(batch["targets"], self.multi_token, batch.get("documents"))
        return self._terms(batch | {"targets": targets}, terms)

    def evaluate(self, batch: Batch) -> None:
        targets, exact = batch["targets"], TokenLoss(label_smoothing=0.0, z_loss=None)
        # The source of an example is in the high bits of its targets, since chunks have no rows.
        high = batch["source"][:, None] << HIGH if "source" in batch else 0
        marked = targets.where(targets == IGNORED, targets + high)
        counts = [(marked >> HIGH == n).sum() for n in range(len(self._sources))]
        present = [n for n, count in enumerate(counts) if count]

        def terms(logits: Tensor, marked: Tensor) -> dict[str, Tensor]:
            logits, source = logits.float(), marked >> HIGH
            own = {n: (marked - (n << HIGH)).where(source == n, IGNORED) for n in present}
            return {str(n): exact.terms(logits, own[n], counts[n])["loss"] for n in present}

        found = self._terms(batch | {"targets": marked}, terms)
        for n in present:
            self.mean_losses.update(n, found[str(n)], counts[n])

    def _terms(
        self, batch: Batch, terms: Callable[[Tensor, Tensor], dict[str, Tensor]]
    ) -> dict[str, Tensor]:
        """The terms of the logits and targets of a batch, summed over its chunks."""
        model: Any = self.model
        inputs, within, targets = self.inputs(batch), documents(batch), batch["targets"]
        if self.loss_chunk is None:
            return terms(model(*inputs, **within), targets)

        def of_chunk(states: Tensor, targets: Tensor) -> dict[str, Tensor]:
            return terms(model.logits(states[None]), targets[None])

        states = model(*inputs, **within, read=False).flatten(0, 1).split(self.loss_chunk)
        chunks = zip(states, targets.flatten(0, 1).split(self.loss_chunk), strict=True)
        found = [checkpoint(of_chunk, *chunk, use_reentrant=False) for chunk in chunks]
        return {name: torch.stack([one[name] for one in found]).sum(0) for name in found[0]}

    @property
    def _sources(self) -> dict[str, Any]:
        """The data whose losses are measured one by one."""
        return {**self.data.parts} if isinstance(self.data, Mixture) else {"": self.data}

    def measures(self, split: str) -> dict[str, Tensor]:
        losses, counts = self.mean_losses.compute()
        every: dict[str, dict[str, Tensor]] = {}
        for (name, data), loss, count in zip(self._sources.items(), losses, counts, strict=True):
            if count or not counts.any():  # a part of the validation may lack a source
                per_token = data.per_token(split).items()
                bits = {f"bits_per_{unit}": loss / math.log(2) / of for unit, of in per_token}
                every[name] = {"loss": loss, **bits}
        shared = [
            key for key in next(iter(every.values())) if all(key in of for of in every.values())
        ]
        means = {key: torch.stack([of[key] for of in every.values()]).mean() for key in shared}
        found = {"loss": means["loss"], "perplexity": means["loss"].exp(), **means}
        if isinstance(self.data, Mixture):
            found |= {f"{key}/{name}": of[key] for name, of in every.items() for key in of}
        return found


def ahead(
    targets: Int[Tensor, "b i"], count: int, documents: Int[Tensor, "b i"] | None = None
) -> Int[Tensor, "b i {count}"]:
    """The next `count` tokens of each position, as far as the row and the document go. documents:
    the number of the document of each position."""
    known = targets != IGNORED
    if documents is not None:  # one that ends in a target may be followed by another
        known[:, :-1] &= documents[:, 1:] == documents[:, :-1]
    found = [targets]
    for _ in range(count - 1):
        later = F.pad(found[-1][:, 1:], (0, 1), value=IGNORED)
        found.append(later.where(known, IGNORED))
    return torch.stack(found, dim=-1)


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
