"""Masked language modeling and next sentence prediction.

Devlin et al. 2019, section 3.1, https://arxiv.org/abs/1810.04805; for the masking, and the second
segment in a running text, see ablate.data.masked.
"""

from collections.abc import Iterable, Mapping
from pathlib import Path
from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor
from torchmetrics.aggregation import MeanMetric

from ablate.config.conflicts import Conflict
from ablate.config.rules import Fraction, Probability
from ablate.data import Batch, Data
from ablate.data.masked import Masked, WithSpecials
from ablate.data.text import TokenData
from ablate.errors import UserError
from ablate.model.bert import BERT
from ablate.task import Task
from ablate.task.causal_lm import by_example
from ablate.task.cross_entropy import CrossEntropy
from ablate.task.presenter import Presenter, filled, write_sample

EXAMPLE = "The [MASK]tatement"
SHOWN = 3  # validation examples in a sample


class MaskedPresenter(Presenter):
    """Fills in masked tokens."""

    family = "masked language"
    options = {
        "prompt": {"type": filled, "help": "text with [MASK] (default: validation examples)"}
    }
    example_options = "--prompt {prompt}"

    def predictions(self, batch: Batch) -> dict[str, Tensor]:
        return by_example(self.model(*self.task.inputs(batch))[0], batch["targets"])

    def notes(self) -> dict[str, Any]:
        known = self.data.tokenizer.knows(EXAMPLE)
        return {"prompt": EXAMPLE if known else "[MASK]" * 4}

    def artifacts(self, folder: Path) -> list[Path]:
        return [write_sample(folder, self.sample())]

    def generate(self, arguments: Mapping[str, Any], folder: Path) -> Iterable[str]:
        yield self.fill(arguments["prompt"]) if arguments else self.sample()

    def sample(self) -> str:
        """Validation examples: the input, and the model's output."""
        examples = map(self.data.example, range(min(SHOWN, self.data.length("val"))))
        pairs = [(example["tokens"][0], self.filled(example)) for example in examples]
        decode = self.data.tokenizer.decode
        return "\n\n".join(
            f"read:    {decode(read.tolist())!r}\nwritten: {decode(written.tolist())!r}"
            for read, written in pairs
        )

    def fill(self, prompt: str) -> str:
        """The prompt with every [MASK] filled in; UserError if there is none."""
        example = self.data.from_text(prompt)
        if not example["positions"].numel():
            raise UserError(f"--prompt {prompt}: has no [MASK] to fill in")
        return self.data.tokenizer.decode(self.filled(example)[1:-1].tolist())

    @torch.no_grad()
    def filled(self, example: dict[str, Any]) -> Tensor:
        """The tokens of a batch of size 1 with each [MASK] replaced, one at a time: the most
        certain first, which the model reads when it predicts the next."""
        tokenizer = self.data.tokenizer
        assert isinstance(tokenizer, WithSpecials)
        example = example | {"tokens": example["tokens"].clone()}
        tokens = example["tokens"][0]
        while len(masked := (tokens == tokenizer.mask).nonzero()):
            logits = self.model(*self.task.inputs(example | {"positions": masked.T})).tokens[0]
            likely, token = logits[:, : tokenizer.text_size].softmax(-1).max(-1)
            surest = likely.argmax()
            tokens[masked[surest]] = token[surest]
        return tokens


class MaskedLM(Task):
    """Trained on the sum of two mean cross-entropies: of the masked tokens, and of whether the
    second segment follows the first (the paper's section A.2).

    Loss, perplexity and accuracy are only those of the masked tokens, also in training, so that
    runs with and without pairs can be compared; `next_accuracy` is that of the pairs.
    """

    kinds = ("text",)
    output = "masked tokens"
    conflicts = (
        Conflict(
            lambda c: c("task.mask_share") + c("task.random_share") > 1 + 1e-9,
            "task.mask_share={task.mask_share} and task.random_share={task.random_share} are shares"
            " of the same tokens: together at most 1",
        ),
        Conflict(
            lambda c: c("data.seq_len") < (8 if c("task.next_sentence") else 4),
            "data.seq_len={data.seq_len} leaves too little text between [CLS] and [SEP]: at least"
            " 8, or 4 with task.next_sentence=false",
        ),
    )
    metric, mode, unit = "val/loss", "min", "tokens"
    presenter = MaskedPresenter
    data: TokenData
    model: BERT

    def __init__(
        self,
        *args: Any,
        next_sentence: bool,
        mask_rate: Fraction,
        mask_share: Probability,
        random_share: Probability,
        **more: Any,
    ):
        super().__init__(*args, **more)
        keys = Masked(next_sentence, mask_rate, mask_share, random_share)
        assert self.data.task_settings == keys, "the data was made for another task"
        self.mean_loss, self.accuracy = MeanMetric(), MeanMetric()
        self.next_accuracy = MeanMetric() if next_sentence else None
        self.criterion = CrossEntropy()

    @classmethod
    def configure_data(cls, data: Data, **keys: Any) -> None:
        if not isinstance(data, TokenData):
            raise UserError(
                f"task=masked_lm: {type(data).__name__} is not an"
                f" ablate.data.text.TokenData, whose windows it reads"
            )
        data.task_settings = Masked(**{name: keys[name] for name in Masked.__dataclass_fields__})

    def inputs(self, batch: Batch) -> tuple[Tensor, ...]:
        read = (batch["tokens"], batch["positions"])
        return (*read, batch["segments"]) if "segments" in batch else read

    def units(self, batch: Batch) -> int | Tensor:
        return batch["tokens"].numel()

    def losses(self, batch: Batch) -> dict[str, Tensor]:
        tokens, following = self.model(*self.inputs(batch))
        logits, targets = tokens.flatten(0, 1), batch["targets"].flatten()
        losses = {"loss": self.criterion(logits, targets)}
        if following is not None:
            losses["next_sentence"] = F.cross_entropy(following, batch["next"])
        return losses

    def evaluate(self, batch: Batch) -> None:
        tokens, following = self.model(*self.inputs(batch))
        logits, targets = tokens.flatten(0, 1).float(), batch["targets"].flatten()
        self.mean_loss.update(F.cross_entropy(logits, targets), len(targets))
        self.accuracy.update(logits.argmax(-1) == targets)
        if self.next_accuracy is not None:
            self.next_accuracy.update(following.argmax(-1) == batch["next"])

    def measures(self, split: str) -> dict[str, Tensor]:
        loss = self.mean_loss.compute()
        values = {"loss": loss, "perplexity": loss.exp(), "accuracy": self.accuracy.compute()}
        if self.next_accuracy is not None:
            values["next_accuracy"] = self.next_accuracy.compute()
        return values
