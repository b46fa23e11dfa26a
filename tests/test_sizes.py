"""Sizes and numbers that no machine holds or that mean nothing: one line, before anything is built;
and what is left when the memory runs out after all."""

import os
import signal
import time
from contextlib import suppress
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from make_data import ready
from tiny import overrides
from torch.utils.data import Dataset

import ablate
from ablate import memory
from ablate.data.augment import check as check_policy
from ablate.data.loader import InOrder, Loader, Request, Share
from ablate.errors import RunFailed, UserError, unwrap

DIGITS = "9" * 31  # more than fit any index

# A command line, and what its refusal says.
IMPOSSIBLE = [
    ("model.depth=1000000", "model.depth=1000000: must be a whole number"),
    (f"trainer.max_steps={DIGITS}", "trainer.max_steps=999"),
    (f"seed={DIGITS}", "seed=999"),
    ("model=vit data=image_folder data.root=x data.workers=1000000000", "data.workers=1000000000"),
    # what acts as another value in single precision
    ("optimizer.lr=1e-320", "more than 0, and this is 0 in single precision"),
    ("model.dropout=0.9999999999999999", "less than 1, and this is 1 in single precision"),
    ("optimizer.weight_decay=1e300", "and this is inf in single precision"),
]  # fmt: skip


@pytest.mark.parametrize(("typed", "line"), IMPOSSIBLE)
def test_an_impossible_number_is_refused(typed: str, line: str) -> None:
    with pytest.raises(UserError) as caught:
        ablate.compose(*typed.split())
    assert line in str(caught.value)
    assert "\n" not in str(caught.value)


# Sizes that this machine cannot hold


@pytest.fixture
def small(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(memory, "total", lambda: 5_000_000)


@pytest.mark.parametrize(
    ("typed", "line"),
    [
        (["model.dim=4096"], "model.dim=4096: a model of "),
        (["model.depth=250"], "model.depth=250: a model of "),
        (
            ["pos_enc=relative", "pos_enc.max_distance=1000000000"],
            "pos_enc.max_distance=1000000000: a model of ",
        ),
        (
            ["model.attention=location", "model.attention.max_length=1000000"],
            "model.attention.max_length=1000000: a model of ",
        ),
    ],
)
@pytest.mark.usefixtures("small")
def test_a_model_is_counted_before_it_is_built(tmp_path: Path, typed: list[str], line: str) -> None:
    cfg = ablate.compose(*overrides(tmp_path), *typed)
    with pytest.raises(UserError) as caught:
        ablate.build(cfg)
    assert str(caught.value).startswith(line)
    assert "this machine has 0.01 GB" in str(caught.value)


@pytest.mark.parametrize(
    ("name", "changes", "key"),
    [
        ("reverse", {"train_examples": 10**9}, "data.train_examples=1000000000"),
        ("recall", {"val_examples": 10**9}, "data.val_examples=1000000000"),
        ("recall", {"vocab_size": 10**6}, "data.vocab_size=1000000"),
        ("recall", {"seq_len": 10**8}, "data.train_examples=20000: of 100000000 tokens each"),
        ("pydoc", {"batch_size": 10**9}, "data.batch_size=1000000000: a batch"),
    ],
)
def test_data_is_counted_before_it_is_made(
    name: str, changes: dict[str, Any], key: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(memory, "total", lambda: 10**9)
    with pytest.raises(UserError) as caught:
        ready(name, **changes).train_order(Share())
    assert str(caught.value).startswith(key)
    assert "takes at least" in str(caught.value)


def test_the_memory_is_that_of_the_machine_or_less(monkeypatch: pytest.MonkeyPatch) -> None:
    import resource

    there = memory.total()
    assert 2**28 < there < 2**50
    monkeypatch.setattr(resource, "getrlimit", lambda kind: (2**20, 2**20))
    assert memory.total() == 2**20


# Values that would be reduced in silence


@pytest.mark.parametrize(
    ("policy", "line"),
    [
        ("rand-m99999", "timm reduces the magnitude m99999 to 10; write -mmax99999 beside it"),
        ("rand-m15-mmax12", "timm reduces the magnitude m15 to 12"),
        ("rand-m9-p1.5", "the probability p1.5 is at most 1"),
    ],
)
def test_a_policy_that_timm_reduces_is_refused(policy: str, line: str) -> None:
    with pytest.raises(UserError) as caught:
        check_policy(policy, 32)
    assert line in str(caught.value)


def test_a_mask_rate_that_masks_nothing_is_refused() -> None:
    cfg = ablate.compose("model=bert", "task.mask_rate=1e-9", "data.seq_len=32")
    with pytest.raises(UserError, match=r"task\.mask_rate=1e-09: of the 29 tokens .* masks none"):
        ablate.build(cfg)


# Memory that runs out


def torch_refuses() -> None:
    torch.empty(2**55)


def torch_overflows() -> None:
    torch.empty(2**40, 2**40)


def numpy_refuses() -> None:
    np.empty(2**55)


def numpy_overflows() -> None:
    np.empty((2**40, 2**40))


@pytest.mark.parametrize("act", [torch_refuses, torch_overflows, numpy_refuses, numpy_overflows])
def test_memory_that_is_refused_is_one_line(act: Any) -> None:
    with pytest.raises((RuntimeError, MemoryError, ValueError)) as caught:
        act()
    line = unwrap(caught.value)
    assert isinstance(line, RunFailed)
    assert str(line).startswith("out of memory")
    assert "data.batch_size" in str(line)


@pytest.mark.parametrize(
    "error",
    [
        OSError(12, "Cannot allocate memory"),
        RuntimeError("CUDA out of memory. Tried to allocate 20.00 GiB. GPU 0 has ..."),
        RuntimeError("std::bad_alloc"),
        MemoryError(),
    ],
)
def test_other_ways_to_say_so(error: Exception) -> None:
    assert str(unwrap(error)).startswith("out of memory")


def test_a_library_that_does_not_fit_into_memory() -> None:
    error = ImportError("libtorch_cpu.so: failed to map segment from shared object")
    assert str(unwrap(error)).startswith("torch cannot be loaded here")


class Deadly(Dataset[Any]):
    """Its process is killed at the second batch."""

    def __len__(self) -> int:
        return 8

    def __getitem__(self, request: Request) -> Any:
        if 2 in request.indices:
            os.kill(os.getpid(), signal.SIGKILL)
        return {"x": request.indices}


def test_a_killed_process_of_the_loader_is_one_line() -> None:
    loader = Loader(Deadly(), InOrder(8, 2, share=Share()), workers=1)
    with pytest.raises((RuntimeError, RunFailed)) as caught:  # as it was sending, or not
        list(loader)
    with suppress(RuntimeError):  # torch may say it twice: when the signal of the death arrives
        time.sleep(0.5)
    line = unwrap(caught.value)
    assert isinstance(line, RunFailed)
    assert "a process that prepares batches was killed" in str(line)
