"""Sizes and numbers that cannot be are refused in one line, and so is memory that runs out."""

import os
import resource
import signal
import time
from contextlib import suppress

import numpy as np
import pytest
import torch
from make_data import ready
from refusals import refused
from tiny import overrides
from torch.utils.data import Dataset

import ablate
from ablate.data.augment import Augment
from ablate.data.loader import InOrder, Loader, Stream
from ablate.errors import RunFailed, unwrap
from ablate.machine import memory

WITH_COUNTS = True  # tests/conftest.py

DIGITS = "9" * 31  # more than fit any index
IMAGES = "model=vit data=image_folder data.root=x"


@pytest.mark.parametrize(
    ("typed", "line"),
    [
        ("model.depth=1000000", "model.depth=1000000: must be an integer"),
        (f"trainer.max_steps={DIGITS}", "trainer.max_steps=999"),
        (f"{IMAGES} data.workers=1000000000", "data.workers=1000000000"),
        # what acts as another value in single precision
        ("optimizer.lr=inf", "optimizer.lr=inf: must be a finite number more than 0"),
        ("optimizer.lr=1e-320", "more than 0, and this is 0 in single precision"),
        ("model.dropout=0.9999999999999999", "less than 1, and this is 1 in single precision"),
    ],
)
def test_an_impossible_number_is_refused(typed, line):
    with refused(line):
        ablate.compose(*typed.split())


@pytest.mark.parametrize(
    ("typed", "key"),
    [
        ("", "model.dim=4096"),
        ("pos_enc=relative", "pos_enc.max_distance=1000000000"),
        ("model.attention=location", "model.attention.max_length=1000000"),
    ],
)
def test_a_model_is_counted_before_it_is_built(tmp_path, monkeypatch, typed, key):
    monkeypatch.setattr(memory, "total", lambda: 5_000_000)
    cfg = ablate.compose(*overrides(tmp_path), *typed.split(), key)
    with refused(f"{key}: a model of ", "this machine has 5 MB"):
        ablate.build(cfg)


@pytest.mark.parametrize(
    ("name", "changes", "key"),
    [
        ("reverse", {"train_examples": 10**9}, "data.train_examples=1000000000"),
        ("recall", {"vocab_size": 10**6}, "data.vocab_size=1000000"),
        ("recall", {"seq_len": 10**8}, "data.train_examples=20000: of 100000000 tokens each"),
        ("pydoc", {"batch_size": 10**9}, "data.batch_size=1000000000: a batch"),
    ],
)
def test_data_is_counted_before_it_is_made(name, changes, key, monkeypatch):
    monkeypatch.setattr(memory, "total", lambda: 10**9)
    with refused(key, "takes at least"):
        ready(name, **changes).train_order()


def test_the_memory_is_that_of_the_machine_or_less(monkeypatch):
    assert 2**28 < memory.total() < 2**50
    monkeypatch.setattr(resource, "getrlimit", lambda kind: (2**20, 2**20))
    assert memory.total() == 2**20


def test_values_that_would_be_reduced_in_silence_are_refused():
    for policy, line in {
        "rand-m99999": "timm reduces the magnitude m99999 to 10; add -mmax99999",
        "rand-m15-mmax12": "timm reduces the magnitude m15 to 12",
        "rand-m9-p1.5": "the probability p1.5 is at most 1",
    }.items():
        with refused(line):
            Augment(seed=0, flip=True, randaugment=policy, erasing=0, mean=[128], width=32)
    cfg = ablate.compose("model=bert", "task.mask_rate=1e-9", "data.seq_len=32")
    with refused("task.mask_rate=1e-09: of the 29 tokens ", "masks none"):
        ablate.build(cfg)


# Memory that runs out


def require_failure(error, *parts):
    line = unwrap(error)
    assert isinstance(line, RunFailed)
    assert [part for part in parts if part not in str(line)] == []


def test_memory_that_is_refused_is_one_line():
    refusals = (RuntimeError, MemoryError, ValueError)
    for make in (torch.empty, np.empty):
        for size in ((2**55,), (2**40, 2**40)):  # refused, and an overflow
            with pytest.raises(refusals) as caught:
                make(size)
            require_failure(caught.value, "out of memory", "data.batch_size")
    require_failure(OSError(12, "Cannot allocate memory"), "out of memory")
    require_failure(RuntimeError("CUDA out of memory. Tried to allocate 20.0 GiB"), "out of memory")
    require_failure(RuntimeError("std::bad_alloc"), "out of memory")


class Deadly(Dataset):
    """Its process is killed at the second batch."""

    def __len__(self):
        return 8

    def __getitem__(self, request):
        if 2 in request.indices:
            os.kill(os.getpid(), signal.SIGKILL)
        return {"x": request.indices}


def test_a_killed_process_of_the_loader_is_one_line():
    loader = Loader(Deadly(), Stream(InOrder(torch.arange(8), 2)), workers=1)
    with pytest.raises((RuntimeError, RunFailed)) as caught:  # as it was sending, or not
        list(loader)
    with suppress(RuntimeError):  # torch may say it twice: when the signal of the death arrives
        time.sleep(0.5)
    require_failure(caught.value, "a data-loading worker was killed")
