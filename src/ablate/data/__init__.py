"""Data sets: a LightningDataModule with fixed splits and a fingerprint."""

import hashlib
import json
from abc import abstractmethod
from collections.abc import Iterable, Sequence
from pathlib import Path
from typing import Any, ClassVar, Self

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor
from torch.utils.data import Dataset

from ablate.config.keys import FILES
from ablate.config.parts import require_allowed
from ablate.config.rules import Count
from ablate.data.batches import Batches, Workers
from ablate.data.interface import Sizes, TaskSettings
from ablate.data.loader import Batch, Loader, Request, Share
from ablate.errors import UserError

__all__ = ["IGNORED", "Batch", "Data", "Loader", "Request", "Share", "digest"]

FIRST, DRAWN = 3, 4  # validation examples that a run keeps, for exports and figures
IGNORED = -100  # a target that the loss ignores: the ignore_index of torch's cross_entropy


def digest(*parts: Any) -> str:
    """A hash of 16 hex digits over any JSON value."""
    text = json.dumps(parts, sort_keys=True, separators=(",", ":"))
    return hashlib.sha256(text.encode()).hexdigest()[:16]


class Data(Batches):
    """Base of every data set.

    A subclass implements `load`, which fills `splits` (data sets that answer a `Request` with a
    batch; "train" and "val", mostly "test") and `sizes`, and `fingerprint`.

    kind: the content of a batch, such as "text"; a model and a task have it among their `kinds`.
    read_as: the kind that a model must have, if it is another.
    unit: the noun for examples, in the plural.
    sizes: arguments of the model, such as the vocabulary size; set by `setup`.
    for_training: keys that do not change the data that a finished run is evaluated on.
    dividing: keys that move the boundary between training, validation and test.
    whole: whether a file without splits is used for validation as a whole, since training has read
    another one.
    """

    kind: ClassVar[str]
    read_as: ClassVar[str]
    length_key: ClassVar[str] = "seq_len"  # the key with the number of positions of an example
    sizes: Sizes
    sizes_class: ClassVar[type[Sizes]] = Sizes
    class_names: Sequence[str] = ()
    for_training: ClassVar[tuple[str, ...]] = ("train_examples",)
    dividing: ClassVar[tuple[str, ...]] = ("val_fraction", "test_fraction")

    def __new__(cls, *_: Any, **parameters: Any) -> Self:
        """Raise UserError for a value that the annotation of its parameter does not allow."""
        require_allowed(cls, parameters, "data")
        return super().__new__(cls)

    def __init__(self, *, batch_size: Count, seed: int, workers: Workers | None = 0) -> None:
        super().__init__(batch_size=batch_size, seed=seed, workers=workers)
        self.measured_as: Data | None = None
        self.whole = False
        self.kept: dict[str, Any] = {}  # of a finished run: see `restore_run`
        self.trained_on: str | None = None  # the fingerprint of its data
        self.task_settings: TaskSettings | None = None  # of `Task.configure_data`
        self._ready = False

    @abstractmethod
    def load(self) -> None:
        """Read everything; raise UserError for a user's mistake."""

    @abstractmethod
    def fingerprint(self) -> str:
        """16 hex digits over the content and the split, independent of the data's location."""

    def setup(self, stage: str | None = None) -> None:
        """Load once; calling it again changes nothing."""
        if not self._ready:
            self._ready = True
            try:
                self.require_unchanged()
                self.load()
            except BaseException:
                self._ready = False
                raise

    def require_unchanged(self) -> None:
        """Raise UserError for data that a finished run was not trained on."""
        if self.trained_on is not None and self.fingerprint() != self.trained_on:
            raise UserError(
                f"{self.where}: its content is not that which the run was trained on"
                " (data_fingerprint in provenance.json); put it back, or measure another:"
                " python -m ablate.evaluate RUN_DIR data.path=OTHER"
            )

    @property
    def where(self) -> str:
        """The keys of the files with their values, for messages."""
        files = {key: getattr(self, key, None) for key in FILES}
        given = (f"data.{k}={v}" for k, v in files.items() if isinstance(v, str | list | dict))
        return " ".join(given) or "data"

    def __getattr__(self, name: str) -> Any:
        """The result of `load`, for a finished run whose data were not read yet."""
        mine = self.__dict__
        if name.startswith("__") or mine.get("_ready", True) or not mine.get("kept"):
            raise AttributeError(f"{type(self).__name__!r} object has no attribute {name!r}")
        self.setup()
        return getattr(self, name)

    @property
    def splits(self) -> dict[str, Dataset[Any]]:
        """The data sets, which are read now if they were not."""
        self.setup()
        return self._splits

    @splits.setter
    def splits(self, splits: dict[str, Dataset[Any]]) -> None:
        self._splits = splits

    def measure_as(self, other: "Data") -> None:
        """Use the tokenizer and normalization of `other`, from its training split; before `setup`.

        A finished model can then be measured on this data.
        """
        self.measured_as = other

    @property
    def known_classes(self) -> Sequence[str]:
        """The class names of the data that a finished model was trained on; else none."""
        return () if self.measured_as is None else self.measured_as.class_names

    def fitted(self) -> dict[str, Any] | None:
        """The state of the data that a model needs, such as the tokenizer: plain values and
        tensors, which a run keeps in its folder. None: a finished run reads its data again."""
        return None

    def use_fitted(self, fitted: dict[str, Any]) -> None:
        """Take over the state that `fitted` returned."""
        raise NotImplementedError

    def save_as_hf(self, folder: Path) -> None:
        """Write the files that let transformers prepare such data for an exported model."""

    def run_state(self) -> dict[str, Any] | None:
        """`fitted`, with sizes and the examples that figures show, for `restore_run`."""
        if (fitted := self.fitted()) is None:
            return None
        val, count = self.splits["val"], self.length("val")
        drawn = self.drawn(DRAWN)
        return {
            "fitted": fitted,
            "sizes": self.sizes.arguments(),
            "count": count,
            "drawn": drawn,
            "examples": {n: val[Request(0, torch.tensor([n]))] for n in {0, *drawn}},
            "first": val[Request(0, torch.arange(min(count, FIRST)))],
        }

    def restore_run(self, state: dict[str, Any]) -> None:
        """Restore `run_state`. The data are read only when `splits` is."""
        self.use_fitted(state["fitted"])
        self.sizes = self.sizes_class(**state["sizes"])
        self.kept, self.measured_as = state, self

    def epochs(self, batches: int) -> dict[str, float]:
        """How often training reads each of several sources in so many batches, by name."""
        return {}

    def example(self, index: int = 0) -> dict[str, Any]:
        """A validation example, as a batch of size 1."""
        if index in (kept := self.kept.get("examples", {})):
            return dict(kept[index])
        return dict(self.splits["val"][Request(0, torch.tensor([index]))])

    def first_examples(self, count: int) -> Batch:
        """The first validation examples, at most `FIRST`."""
        assert count <= FIRST
        if (first := self.kept.get("first")) is not None:
            all_of_them = count == min(FIRST, self.length("val"))
            return first if all_of_them else {name: each[:count] for name, each in first.items()}
        batch: Batch = self.splits["val"][Request(0, torch.arange(count))]
        return batch

    def drawn(self, count: int) -> list[int]:
        """The numbers of the validation examples that figures show, at most `count`."""
        if self.kept and count <= DRAWN:
            return list(self.kept["drawn"][:count])
        return self.choose(count)

    def choose(self, count: int) -> list[int]:
        """`drawn`, of the data: of more examples first those of fewer."""
        return list(range(min(count, self.length("val"))))

    def sequences(self, name: str) -> Iterable[NDArray[np.int32]]:
        """The sequences of the training split for the batch entry `name`, each token once."""
        everything = Request(0, torch.arange(self.length("train")))
        batch: Batch = self.splits["train"][everything]
        return iter(batch[name].int().numpy())

    def typical_batch(self) -> Batch:
        """The batch for which the cost of a step is counted: the first example, repeated."""
        first: Batch = self.splits["train"][Request(0, torch.zeros(self.batch_size).long())]
        return first

    def amount(self) -> str:
        """The size of the training split with its unit; after `setup`."""
        amount = f"{self.length('train'):,} training {self.unit}"
        names, targets = self.class_names, getattr(self.splits["train"], "targets", None)
        if not names or targets is None:
            return amount
        counts = targets.bincount(minlength=len(names))
        few, many = int(counts.argmin()), int(counts.argmax())
        if counts[many] < 2 * counts[few]:
            return amount
        return (
            f"{amount}, {counts[few]:,} of class {names[few]} to {counts[many]:,} of {names[many]}"
        )

    def measured_amount(self, split: str) -> str:
        """The size of a split with its unit."""
        return f"{self.length(split):,} {self.unit}"

    def length(self, split: str) -> int:
        """The number of examples in a split."""
        if split == "val" and self.kept:
            return int(self.kept["count"])
        return super().length(split)


def padded(flat: Tensor, starts: Tensor, lengths: Tensor, fill: int) -> Tensor:
    """Sequences of a concatenation, b i: each from a start on, and `fill` behind it."""
    column, lengths = torch.arange(int(lengths.max())), lengths[:, None]
    positions = starts[:, None] + column.minimum(lengths - 1)
    return flat[positions].long().where(column < lengths, fill)
