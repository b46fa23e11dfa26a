"""The batches of a data set for training, validation and test."""

from typing import Annotated, Any, ClassVar

import torch
from lightning.pytorch import LightningDataModule
from torch.utils.data import Dataset

from ablate.config.rules import PROCESSES, Count, Int
from ablate.data.loader import ALONE, FirstBatch, InOrder, Loader, Order, Share, Shuffled, Stream
from ablate.errors import UserError
from ablate.random.seeding import derive

Workers = Annotated[int, Int(0, PROCESSES)]

MOST_WORKERS = 8  # of a process that trains, if data.workers is null


class Batches(LightningDataModule):
    """The loaders of `splits`. A subclass may override `train_order` and `measured_order`.

    unit: the noun for examples, in the plural.
    batch_size: examples in a global batch, summed over all processes.
    train_batches: the length of training, over as many epochs as needed; None: one epoch.
    val_examples: how many `val_dataloader` has, chosen by the seed; None: all.
    one_batch: training uses only the first batch.
    """

    unit: ClassVar[str] = "examples"
    splits: dict[str, Dataset[Any]]

    def __init__(self, *, batch_size: Count, seed: int, workers: Workers | None = 0) -> None:
        super().__init__()
        self.batch_size, self.workers, self.seed = batch_size, workers, seed
        self.train_batches: int | None = None
        self.val_examples: int | None = None
        self.one_batch = False

    def train_order(self) -> Order:
        """The training batches: a new permutation of the examples in every epoch."""
        count = self.length("train")
        if count < self.batch_size:
            raise UserError(
                f"data.batch_size={self.batch_size}: must be at most {count}, the number of"
                " training examples"
            )
        return Shuffled(count, self.batch_size, seed=self.seed)

    def measured_order(self, split: str, examples: torch.Tensor) -> torch.Tensor:
        """These examples in the order of validation or test: as they are stored."""
        return examples

    def length(self, split: str) -> int:
        """The number of examples in a split."""
        return len(self.splits[split])  # type: ignore[arg-type]  # each of our data sets has one

    @property
    def has_test(self) -> bool:
        return "test" in self.splits and self.length("test") > 0

    def batches_per_epoch(self) -> int:
        """The number of global batches in one pass over the training split."""
        return len(self.train_order())

    def train_dataloader(self) -> Loader:
        order, share = self.train_order(), self.share()
        batches = self.train_batches or len(order)
        if self.one_batch:
            order = FirstBatch(order, batches)
        return self._loader("train", Stream(order, batches, share=share))

    def val_dataloader(self) -> Loader:
        return self._full_pass("val", self.val_examples)

    def test_dataloader(self) -> Loader | None:
        """None if the data has no test split."""
        return self._full_pass("test") if self.has_test else None

    def _full_pass(self, split: str, some: int | None = None) -> Loader:
        share, count = self.share(), self.length(split)
        if not count:
            raise UserError(f"data: the {split} split has no {self.unit}; at least one is required")
        if count < share.world:
            raise UserError(
                f"trainer.devices: {share.world} processes are more than the {count} example(s) "
                f"of the {split} split"
            )
        examples = torch.arange(count)
        if some is not None and some < count:
            if some < share.world:
                raise UserError(
                    f"trainer.val_examples={some}: must be {share.world} at least, as many as there"
                    " are processes"
                )
            generator = torch.Generator().manual_seed(derive(self.seed, "val_examples"))
            examples = torch.randperm(count, generator=generator)[:some].sort().values
        examples = self.measured_order(split, examples)
        order = InOrder(examples, self.batch_size, world=share.world)
        return self._loader(split, Stream(order, share=share))

    def _loader(self, split: str, requests: Stream) -> Loader:
        trainer = self.trainer
        cuda = trainer is not None and trainer.strategy.root_device.type == "cuda"
        done = self._batches_done if split == "train" and trainer is not None else None
        # Threads are this process's share of the CPUs; training needs one itself.
        workers = min(torch.get_num_threads() - 1, MOST_WORKERS)
        if self.workers is not None:
            workers = self.workers
        return Loader(self.splits[split], requests, workers=workers, pin_memory=cuda, done=done)

    def share(self) -> Share:
        """The slice of a batch that this process reads. Raises UserError unless all are equal."""
        if self.trainer is None:
            return ALONE
        share = Share(self.trainer.global_rank, self.trainer.world_size)
        if self.batch_size % share.world:
            raise UserError(
                f"data.batch_size={self.batch_size}: must be a multiple of the {share.world}"
                " processes that share it (trainer.devices times trainer.num_nodes)"
            )
        return share

    def _batches_done(self) -> int:
        """Batches of the current epoch already trained on, 0 after the last.

        `processed` and not `ready`: an exception in the middle of a batch leaves `ready` one ahead,
        and Lightning repeats that batch after a resume.
        """
        assert self.trainer is not None
        progress = self.trainer.fit_loop.epoch_loop.batch_progress
        done = int(progress.state_dict()["current"]["processed"])
        return 0 if done >= self.trainer.num_training_batches else done
