"""Shuffling and loading: the content of a batch depends only on (seed, epoch, batch number).

An `Order` has the batches of every epoch, and a `Stream` of it is a sampler that yields a `Request`
for each; a data set answers a request with a whole batch by array indexing. No random generator is
shared, so the batches are the same with any number of workers or processes (each takes its slice of
every global batch), and after a stop in the middle of an epoch.
"""

import time
from abc import ABC, abstractmethod
from collections.abc import Callable, Iterable, Iterator
from typing import Any, NamedTuple

import torch
from torch import Tensor
from torch.utils.data import DataLoader, Dataset, Sampler

from ablate.errors import LOST_WORKER, RunFailed, UserError
from ablate.random.seeding import derive


class Share(NamedTuple):
    """The slice of every global batch that this process takes."""

    rank: int = 0
    world: int = 1


ALONE = Share()  # one process


class Request(NamedTuple):
    """The examples of a batch; the epoch selects the random augmentation."""

    epoch: int
    indices: Tensor


Batch = dict[str, Tensor]


class Order(ABC):
    """The global batches of every epoch."""

    def __init__(self, batches: int) -> None:
        self.batches = batches

    def __len__(self) -> int:
        """The batches of an epoch."""
        return self.batches

    @abstractmethod
    def of_epoch(self, epoch: int) -> Callable[[int], Tensor]:
        """Maps a batch number to the indices of that global batch."""


class Shuffled(Order):
    """Every example at most once in an epoch; the last incomplete batch is dropped."""

    def __init__(self, count: int, batch_size: int, *, seed: int) -> None:
        super().__init__(count // batch_size)
        self.count, self.batch_size, self.seed = count, batch_size, seed

    def of_epoch(self, epoch: int) -> Callable[[int], Tensor]:
        generator = torch.Generator().manual_seed(derive(self.seed, "order", epoch))
        order = torch.randperm(self.count, generator=generator)
        return lambda n: order[n * self.batch_size : (n + 1) * self.batch_size]


class Repeated(Order):
    """The batches of another order, with several copies of each example; copy c of an example of
    `count` has its index plus c times `count`."""

    def __init__(self, order: Order, copies: int, count: int) -> None:
        super().__init__(len(order))
        self.order, self.offsets = order, count * torch.arange(copies)

    def of_epoch(self, epoch: int) -> Callable[[int], Tensor]:
        indices = self.order.of_epoch(epoch)
        return lambda number: (indices(number)[:, None] + self.offsets).flatten()


POOL = 100  # batches whose examples are sorted together


class Bucketed(Order):
    """The examples of an epoch of another order, in batches of similar lengths.

    The examples of `POOL` batches at a time are sorted by length and cut into batches, and the
    batches of the whole epoch are shuffled. lengths: of every example, in any unit.
    """

    def __init__(self, order: Order, lengths: Tensor, *, seed: int) -> None:
        super().__init__(len(order))
        self.order, self.lengths, self.seed = order, lengths, seed

    def of_epoch(self, epoch: int) -> Callable[[int], Tensor]:
        indices = self.order.of_epoch(epoch)
        batches: list[Tensor] = []
        for first in range(0, self.batches, POOL):
            drawn = [indices(number) for number in range(first, min(first + POOL, self.batches))]
            pool = torch.cat(drawn)
            pool = pool[self.lengths[pool].argsort(stable=True)]
            batches += pool.split([len(batch) for batch in drawn])
        generator = torch.Generator().manual_seed(derive(self.seed, "buckets", epoch))
        order = torch.randperm(self.batches, generator=generator).tolist()
        return lambda number: batches[order[number]]


class Windows(Order):
    """Window starts 0 .. count-1 sampled with replacement, as nanoGPT does."""

    def __init__(self, count: int, batch_size: int, *, batches: int, seed: int) -> None:
        super().__init__(batches)
        self.count, self.batch_size, self.seed = count, batch_size, seed

    def of_epoch(self, epoch: int) -> Callable[[int], Tensor]:
        def starts(number: int) -> Tensor:
            seed = derive(self.seed, "order", epoch, number)
            generator = torch.Generator().manual_seed(seed)
            return torch.randint(self.count, (self.batch_size,), generator=generator)

        return starts


class FirstBatch(Order):
    """The first batch of another order, `batches` times: debug=overfit."""

    def __init__(self, order: Order, batches: int) -> None:
        super().__init__(batches)
        self.first = order.of_epoch(0)(0)

    def of_epoch(self, epoch: int) -> Callable[[int], Tensor]:
        return lambda number: self.first


class InOrder(Order):
    """These examples once, in this order.

    A last batch with fewer examples than the `world` processes is merged into the one before it, so
    that all processes get the same number of batches and none is empty.
    """

    def __init__(self, examples: Tensor, batch_size: int, *, world: int = 1) -> None:
        count = len(examples)
        assert count >= world, "a process would have nothing to evaluate"
        batches = -(-count // batch_size)
        if count - (batches - 1) * batch_size < world:
            batches -= 1
        super().__init__(batches)
        self.examples, self.batch_size = examples, batch_size

    def of_epoch(self, epoch: int) -> Callable[[int], Tensor]:
        def indices(number: int) -> Tensor:
            last = number == self.batches - 1
            end = None if last else (number + 1) * self.batch_size
            return self.examples[number * self.batch_size : end]

        return indices


class Stream(Sampler[Request]):
    """This process's share of the first `batches` batches of an order, which begins again with
    every epoch; by default those of one epoch.

    With a single Lightning epoch a run counts only steps, and there is one way to resume it.
    `start`: the first batch of the next iteration only. It is read when that batch is requested,
    because Lightning creates the iterator before it restores the state.
    """

    def __init__(self, order: Order, batches: int | None = None, *, share: Share = ALONE) -> None:
        self.order, self.share = order, share
        self.batches = len(order) if batches is None else batches
        self.start = 0

    def __len__(self) -> int:
        return self.batches

    def __iter__(self) -> Iterator[Request]:
        first, self.start = self.start, 0
        epoch = -1
        for step in range(first, self.batches):
            now, number = divmod(step, len(self.order))
            if now != epoch:
                epoch, indices = now, self.order.of_epoch(now)
            mine = indices(number).tensor_split(self.share.world)[self.share.rank]
            yield Request(epoch, mine)


class Loader(DataLoader[Any]):
    """Loads whole batches from `dataset[request]`, and can resume within an epoch.

    `waited`: seconds spent waiting for batches. `done` returns how many batches of the current
    epoch were trained on; Lightning saves it with `state_dict` and restores it with
    `load_state_dict`. Prefetched batches do not count.
    """

    def __init__(
        self,
        dataset: Dataset[Any],
        sampler: Iterable[Any],
        *,
        workers: int = 0,
        pin_memory: bool = False,
        done: Callable[[], int] | None = None,
    ) -> None:
        # Without its own generator every iteration would advance torch's global one, and
        # dropout would depend on how often validation ran.
        super().__init__(
            dataset,
            sampler=sampler,
            batch_size=None,
            num_workers=workers,
            pin_memory=pin_memory,
            generator=torch.Generator(),
        )
        self.done, self.waited = done, 0.0

    def __iter__(self) -> Iterator[Batch]:  # type: ignore[override]  # a generator starts lazily
        try:
            batches = super().__iter__()
            while True:
                began = time.perf_counter()
                batch = next(batches, None)
                self.waited += time.perf_counter() - began
                if batch is None:
                    return
                yield batch
        except UserError as error:
            # A worker process passes its traceback as the message: the last line is ours.
            line = str(error).strip().splitlines()[-1]
            prefix = f"{UserError.__module__}.{UserError.__qualname__}: "
            error.with_traceback(None)  # which keeps the workers: collected later, they take 5 s
            raise UserError(line.removeprefix(prefix)) from None
        except (EOFError, ConnectionError) as error:  # its process ended while it sent a batch
            if not self.num_workers:
                raise
            raise RunFailed(LOST_WORKER) from error

    def state_dict(self) -> dict[str, int]:
        return {"batch": self.done() if self.done else 0}

    def load_state_dict(self, state: dict[str, int]) -> None:
        assert isinstance(self.sampler, Stream)
        assert 0 <= state["batch"] < len(self.sampler), "a resumed epoch has batches left"
        self.sampler.start = state["batch"]
