"""Token shards of several sources, mixed by weights that may change with the phases of training.

An example is of one source, and ablate.data.mixing has their order.
"""

import re
from collections.abc import Mapping, Sequence
from typing import Annotated, Any, ClassVar

import numpy as np
import torch
from torch.utils.data import Dataset

from ablate.config.rules import Keys, Real
from ablate.data import Batch, Loader, Request, digest
from ablate.data.mixing import Mixed
from ablate.data.shards import Shards
from ablate.data.tokenizer import note
from ablate.data.tokens import Tokens
from ablate.errors import UserError, suggest

WEIGHT = Real(0)


class Steps:
    """A node whose keys are steps; strings in the file of a planned run, which is JSON."""

    def allows(self, value: object) -> bool:
        return isinstance(value, Mapping) and all(
            str(key).isdecimal() and int(key) > 0 and isinstance(weights, Mapping)
            for key, weights in value.items()
        )

    def __str__(self) -> str:
        return "{STEP: {NAME: WEIGHT, ...}, ...} with steps of at least 1"


class Joined(Dataset[Batch]):
    """The examples of several data sets, numbered one after another; `source`, b: the data set of
    each."""

    def __init__(self, sets: Sequence[Dataset[Batch]]) -> None:
        self.sets = sets
        self.ends = np.cumsum([len(each) for each in sets])  # type: ignore[arg-type]  # ours have

    def __len__(self) -> int:
        return int(self.ends[-1])

    def __getitem__(self, request: Request) -> Batch:
        owners = self.ends.searchsorted(request.indices.numpy(), side="right")
        parts, places = [], []
        for owner in np.unique(owners):
            here = torch.from_numpy(np.flatnonzero(owners == owner))
            first = int(self.ends[owner - 1]) if owner else 0
            parts.append(self.sets[owner][Request(request.epoch, request.indices[here] - first)])
            places.append(here)
        order = torch.cat(places).argsort()
        batch = {name: torch.cat([part[name] for part in parts])[order] for name in parts[0]}
        return batch | {"source": torch.from_numpy(owners)}


class Mixture(Tokens):
    """A source without a weight is only measured. An epoch has as many windows as fit into all
    training tokens; a source whose weight is above its share of them repeats.
    """

    for_training: ClassVar[tuple[str, ...]] = (*Tokens.for_training, "weights", "phases")

    def __init__(
        self,
        *,
        root: Annotated[Mapping[str, str], Keys()],
        weights: Annotated[Mapping[str, float], Keys()],
        phases: Annotated[Mapping[int, Mapping[str, float]], Steps()] | None,
        **options: Any,
    ) -> None:
        super().__init__(root=", ".join(map(str, root.values())), **options)
        if not root:
            raise UserError("data.root={}: must name at least one source, such as {web: DIR}")
        later = {int(step): dict(of) for step, of in (phases or {}).items()}
        self.phases = {0: dict(weights)} | dict(sorted(later.items()))
        for step, of in self.phases.items():
            self._require_weights(f"data.phases.{step}" if step else "data.weights", of, root)
        for name in root:
            if not re.fullmatch(r"\w+", name):
                raise UserError(f"data.root.{name}: a name may have letters, digits and _")
        self.parts = {name: Tokens(root=path, **options) for name, path in root.items()}

    @staticmethod
    def _require_weights(key: str, weights: Mapping[str, Any], root: Mapping[str, str]) -> None:
        for name, weight in weights.items():
            if name not in root:
                raise UserError(
                    f"{key}: {name} is not a source of data.root ({', '.join(root)})"
                    f"{suggest(name, root)}"
                )
            if not WEIGHT.allows(weight):
                raise UserError(f"{key}.{name}={weight}: must be {WEIGHT}")
        if not any(weights.values()):
            raise UserError(f"{key}: needs a weight above 0, such as {{{next(iter(root))}: 1}}")

    def _divide(self) -> None:
        """Let data.val_fraction divide the sources without a validation split, if there are any."""
        given = [part for part in self.parts.values() if "val" in part.stored.splits]
        if len(given) < len(self.parts):
            for part in given:
                part.val_fraction = None

    def fingerprint(self) -> str:
        self._divide()
        return digest("mixture", [[name, part.fingerprint()] for name, part in self.parts.items()])

    def load(self) -> None:
        self._divide()
        for part in self.parts.values():
            part.task_settings, part.measured_as = self.task_settings, self.measured_as
            part.whole = self.whole
            part.setup()
        (one, first), *others = self.parts.items()
        for name, part in others:
            if part.tokenizer.state() != first.tokenizer.state():
                raise UserError(
                    f"data.root: the tokens of {name} are of another tokenizer than those of"
                    f" {one}; prepare both with one, such as --tokenizer tiktoken:gpt2"
                )
        self.tokenizer, self.sizes = first.tokenizer, first.sizes
        self.counts = {}  # `parts` have them
        self.tokens, splits = {}, {}
        for split in first.splits:
            if any(split not in part.splits for part in self.parts.values()):
                continue
            tokens = [part.tokens[split] for part in self.parts.values()]
            files = [file for of in tokens if isinstance(of, Shards) for file in of.files]
            self.tokens[split] = Shards(files, self.vocab_size)
            splits[split] = Joined([part.splits[split] for part in self.parts.values()])
        self.splits = dict(splits)

    def train_order(self) -> Mixed:
        return Mixed(
            {name: part.length("train") for name, part in self.parts.items()},
            {step * self.accumulated: weights for step, weights in self.phases.items()},
            self.batch_size,
            batches=len(super().train_order()),
            seed=self.seed,
        )

    @property
    def accumulated(self) -> int:
        """Batches of an optimizer step."""
        return int(self.trainer.accumulate_grad_batches) if self.trainer else 1

    def amount(self) -> str:
        epochs = self.epochs(self.train_batches or 0)
        said = (f"{name} {n:.2f}{' (repeats)' * (n > 1)}" for name, n in epochs.items())
        return f"{super().amount()}, epochs: {', '.join(said)}"

    def train_dataloader(self) -> Loader:
        steps = (self.train_batches or 0) // self.accumulated
        if late := [step for step in self.phases if step and step >= steps]:
            note(f"data.phases.{late[0]}: begins after the {steps} steps of the training")
        return super().train_dataloader()

    def epochs(self, batches: int) -> dict[str, float]:
        drawn = self.train_order().drawn(batches * self.batch_size)
        size = self.cut.tokens(self.seq_len)
        return {
            name: int(count) * size / (len(part.tokens["train"]) - 1)
            for (name, part), count in zip(self.parts.items(), drawn, strict=True)
        }
