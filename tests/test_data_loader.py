"""The order of batches depends only on (seed, epoch, batch number)."""

from itertools import chain, pairwise
from multiprocessing import active_children

import pytest
import torch
from refusals import refused
from torch.utils.data import Dataset

from ablate.config.composition import compose
from ablate.data.loader import POOL, Bucketed, InOrder, Loader, Share, Shuffled, Stream, Windows
from ablate.errors import UserError
from ablate.training.build import build_data

# Of the examples of "buckets": four pools of batches and a part of one.
LENGTHS = torch.randint(1, 60, (4 * 103 * 8 + 5,), generator=torch.Generator().manual_seed(0))
RANDOM = ["shuffled", "windows", "buckets"]
KINDS = [*RANDOM, "in order"]
kinds = pytest.mark.parametrize("kind", KINDS)
random_kinds = pytest.mark.parametrize("kind", RANDOM)


class Numbers(Dataset):
    """Answers a request with what it was asked for."""

    def __getitem__(self, request):
        return {"epoch": torch.tensor(request.epoch), "numbers": request.indices}


class Broken(Numbers):
    def __getitem__(self, request):
        raise UserError("data.root: cannot decode x.png")


def order(kind, seed=7, world=1):
    if kind == "in order":
        return InOrder(torch.arange(103), 8, world=world)
    if kind == "windows":
        return Windows(103, 8, batches=12, seed=seed)
    if kind == "shuffled":
        return Shuffled(103, 8, seed=seed)
    return Bucketed(Shuffled(len(LENGTHS), 8, seed=seed), LENGTHS, seed=seed)


def batches(order, epoch=0):
    indices = order.of_epoch(epoch)
    return [indices(number).tolist() for number in range(len(order))]


def numbers(loader):
    return [batch["numbers"].tolist() for batch in loader]


def flat(lists):
    return list(chain.from_iterable(lists))


@random_kinds
def test_every_seed_and_epoch_has_its_own_order(kind):
    seen = [str(batches(order(kind, seed), epoch)) for seed in (0, 1) for epoch in (0, 1, 2)]
    assert len(set(seen)) == len(seen)


@pytest.mark.parametrize(("kind", "count"), [("shuffled", 103), ("buckets", len(LENGTHS))])
def test_an_epoch_takes_every_example_once_but_for_an_incomplete_batch(kind, count):
    seen = flat(batches(order(kind)))
    assert len(seen) == len(set(seen)) == count // 8 * 8
    assert set(seen) <= set(range(count))


def test_the_lengths_in_a_batch_are_close_and_batches_in_no_order_of_length():
    def spread(order):
        ranges = [int(LENGTHS[b].max() - LENGTHS[b].min()) for b in batches(order)]
        return sum(ranges) / len(ranges)

    plain = Shuffled(len(LENGTHS), 8, seed=7)
    assert spread(order("buckets")) < 59 / POOL + 1 < spread(plain) / 10
    longest = [int(LENGTHS[batch].max()) for batch in batches(order("buckets"))]
    rising = sum(a <= b for a, b in pairwise(longest)) / len(longest)
    assert 0.4 < rising < 0.6


def shares(kind, world):
    """The batches of each of `world` processes."""
    made = order(kind, world=world)
    return [
        [request.indices.tolist() for request in Stream(made, share=Share(rank, world))]
        for rank in range(world)
    ]


@kinds
def test_processes_share_out_every_global_batch(kind):
    parts = shares(kind, 4)
    together = [flat(of_batch) for of_batch in zip(*parts, strict=True)]
    assert together == batches(order(kind, world=4))
    if kind in RANDOM:
        assert all(len(batch) == 8 // 4 for share in parts for batch in share)


def test_in_order_every_example_is_taken_and_no_process_left_without():
    assert flat(batches(order("in order"))) == list(range(103))
    for count in range(4, 40):
        made = InOrder(torch.arange(count), 8, world=4)
        assert flat(batches(made)) == list(range(count))
        assert all(len(batch) >= 4 for batch in batches(made))


@pytest.mark.ci
@pytest.mark.parametrize("typed", ["data=copy model=rnn_seq2seq", "data=digits model=vit"])
@pytest.mark.parametrize("world", [1, 3])
def test_processes_share_out_the_same_part_of_the_validation_examples(typed, world, monkeypatch):
    """In any order, whole and once."""
    cfg = compose(*typed.split(), "data.batch_size=6")
    data = build_data(cfg)
    data.val_examples = 20

    def chosen(rank, world):
        monkeypatch.setattr(data, "share", lambda: Share(rank, world))
        return flat(request.indices.tolist() for request in data.val_dataloader().sampler)

    alone = chosen(0, 1)
    assert len(set(alone)) == len(alone) == 20
    assert sorted(flat(chosen(rank, world) for rank in range(world))) == sorted(alone)
    with refused("trainer.val_examples=20: must be 21 at least"):
        chosen(0, 21)
    data.seed = 1
    assert sorted(chosen(0, 1)) != sorted(alone)


@kinds
@pytest.mark.parametrize("workers", [0, pytest.param(2, marks=pytest.mark.ci)])
def test_a_stream_goes_through_the_epochs_and_resumes_anywhere(kind, workers):
    """Whatever was iterated before, and without a draw from torch's generator."""
    before, length = torch.get_rng_state(), len(order(kind))
    whole = flat(batches(order(kind), epoch) for epoch in range(3))[:-2]
    loader = Loader(Numbers(), Stream(order(kind), 3 * length - 2), workers=workers)
    assert len(loader) == 3 * length - 2
    for start in (0, 1, length - 1, length, length + 1, 3 * length - 3):
        # Lightning makes the iterator first, and prefetching workers must not run ahead of it.
        rest = iter(loader)
        loader.load_state_dict({"batch": start})
        assert numbers(rest) == whole[start:]
    epochs = [int(batch["epoch"]) for batch in loader]
    assert epochs == [0] * length + [1] * length + [2] * (length - 2)
    assert torch.equal(before, torch.get_rng_state())


@pytest.mark.parametrize("workers", [0, 1])
def test_a_mistake_found_by_a_worker_is_still_one_line_and_ends_it(workers):
    loader = Loader(Broken(), Stream(order("in order")), workers=workers)
    with pytest.raises(UserError, match=r"^data\.root: cannot decode x\.png$"):
        list(loader)
    assert not active_children()
