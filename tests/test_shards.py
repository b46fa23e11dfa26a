"""A state whose tensors several processes have written, a shard each; test_ddp.py has processes."""

import os
from errno import ENOSPC
from types import SimpleNamespace

import pytest
import torch
import torch.distributed as dist
from torch.distributed.device_mesh import init_device_mesh
from torch.distributed.tensor import Replicate, Shard, distribute_tensor

from ablate.run_files import CorruptFile
from ablate.run_files.checkpoint_io import (
    index,
    read_state,
    remove_unused_shards,
    write_shards,
    write_state,
)
from ablate.training.checkpoint import Checkpoints
from ablate.training.parallel import Sharing

WEIGHT, MOMENT = ("state_dict", "w"), ("optimizer_states", 0, "state", "w", "exp_avg")
ROWS = 5  # of which the first process has three
BARE = {
    "pytorch-lightning_version": "2.6", "global_step": 7, "lr_schedulers": [],
    "callbacks": {
        "Curves": {"rows": [], "units": 0, "train_seconds": 0.0},
        "Checkpoints": {"best": None, "best_step": 0, "validated": 0, "kernels": {}},
    },
    "loops": {"fit_loop": {"state_dict": {}, "epoch_loop.state_dict": {}}},
}  # fmt: skip


def tensors():
    return {WEIGHT: torch.randn(ROWS, 2), MOMENT: torch.randn(ROWS, 2)}


def shards(folder, whole, cuts=((0, 3), (3, ROWS))):
    """The names of their files."""
    return [
        write_shards(folder, {at: ((a, 0), x[a:b].clone()) for at, x in whole.items()}, process)
        for process, (a, b) in enumerate(cuts)
    ]


def saved(path, files, whole):
    state = BARE | {
        "state_dict": {"w": None, "count": torch.tensor(3)},
        "optimizer_states": [{"state": {"w": {"exp_avg": None}}, "param_groups": []}],
        "shards": index(files, {at: x.shape for at, x in whole.items()}),
    }
    write_state(path, state, "0123")


def fails_for(path):
    """os.replace, as of a process that is killed before `path` is moved."""

    def replace(old, new):
        if path in (old, new):
            raise InterruptedError
        original(old, new)

    original = os.replace
    return replace


@pytest.fixture
def last(tmp_path):
    whole = tensors()
    saved(tmp_path / "last.ckpt", shards(tmp_path, whole), whole)
    return tmp_path / "last.ckpt"


def test_a_reader_gets_whole_tensors(tmp_path):
    whole, path = tensors(), tmp_path / "last.ckpt"
    files = shards(tmp_path, whole)
    saved(path, files, whole)
    assert {file.name for file in tmp_path.iterdir()} == {"checksums.json", "last.ckpt", *files}
    state = read_state(path, "0123")
    assert torch.equal(state["state_dict"]["w"], whole[WEIGHT])
    found = state["optimizer_states"][0]["state"]["w"]["exp_avg"]
    assert torch.equal(found, whole[MOMENT])
    assert (state["state_dict"]["count"], "shards" in state) == (3, False)


def cut_off(file):
    file.write_bytes(file.read_bytes()[:-1])


def changed(file):
    data = bytearray(file.read_bytes())
    data[len(data) // 2] ^= 1
    file.write_bytes(data)


def of_another_state(file):
    (name,) = shards(file.parent, tensors(), cuts=((0, 3),))
    (file.parent / name).replace(file)


@pytest.mark.parametrize("damage", [cut_off, changed, of_another_state, lambda file: file.unlink()])
def test_a_shard_that_is_not_as_it_was_written_damages_its_state(last, damage):
    damage(sorted(last.parent.glob("*.shard"))[0])
    with pytest.raises(CorruptFile, match=r"^\S+last\.ckpt cannot be read: .*\.shard"):
        read_state(last)


@pytest.mark.parametrize(
    ("files", "shapes"),
    [
        (lambda files: files[:1], None),
        (lambda files: [*files, files[0]], None),
        (lambda files: ["../" + files[0], files[1]], None),
        (None, {WEIGHT: torch.zeros(ROWS, 3), MOMENT: torch.zeros(ROWS, 2)}),
        (None, {WEIGHT: torch.zeros(ROWS, 2)}),
    ],
)
def test_an_index_that_does_not_fit_damages_its_state(tmp_path, files, shapes):
    whole, path = tensors(), tmp_path / "last.ckpt"
    names = shards(tmp_path, whole)
    saved(path, files(names) if files else names, shapes or whole)
    with pytest.raises(CorruptFile, match="its shards do not make it whole"):
        read_state(path)


def test_shards_that_no_state_names_are_removed(last):
    folder = last.parent
    kept = {path.name for path in folder.glob("*.shard")}
    shards(folder, tensors())
    remove_unused_shards(folder)
    assert {path.name for path in folder.glob("*.shard")} == kept
    last.unlink()
    remove_unused_shards(folder)
    assert not [*folder.glob("*.shard")]


def test_a_state_that_was_only_listed_takes_no_shards_of_the_one_before_it(last, monkeypatch):
    with monkeypatch.context() as patch:
        patch.setattr(os, "replace", fails_for(last))
        with pytest.raises(InterruptedError):
            saved(last, shards(last.parent, tensors()), tensors())
    whole = tensors()
    saved(last, shards(last.parent, whole), whole)
    read_state(last.with_name("previous.ckpt"))


def test_what_is_not_sharded_is_whole_in_the_state(tmp_path):
    """Such as a norm, or a mean over rows, that an optimizer keeps of a sharded gradient."""
    dist.init_process_group("gloo", store=dist.FileStore(f"{tmp_path}/store"), rank=0, world_size=1)
    try:
        mesh, taken = init_device_mesh("cpu", (1,)), {}
        x = torch.arange(6.0).view(3, 2)
        sharded = distribute_tensor(x, mesh, [Shard(0)])
        parts = [sharded, sharded.square().sum(), distribute_tensor(x, mesh, [Replicate()])]
        rest = Sharing()._without(parts, (), taken)
    finally:
        dist.destroy_process_group()
    assert (rest[0], [*taken]) == (None, [(0,)])
    assert [type(y) for y in rest[1:]] == [torch.Tensor] * 2
    assert torch.equal(rest[1], x.square().sum())
    assert torch.equal(rest[2], x)


def test_a_full_disk_of_another_process_is_an_error_of_all(tmp_path, monkeypatch):
    def gather(ended, mine):
        ended[:] = [mine, (None, (ENOSPC, "No space left on device", "shards-1.tmp"))]

    monkeypatch.setattr("torch.distributed.all_gather_object", gather)
    state = {"state_dict": {}, "optimizer_states": []}
    with pytest.raises(OSError, match="No space left") as full:
        Sharing()._with_shards_apart(state, tmp_path)
    assert (full.value.errno, full.value.filename) == (ENOSPC, "shards-1.tmp")


def test_shards_that_a_kill_left_are_removed_by_the_next_try(last):
    used = {*last.parent.glob("*.shard")}
    shards(last.parent, tensors())
    trainer = SimpleNamespace(strategy=SimpleNamespace(), is_global_zero=True)
    checkpoints = Checkpoints(last.parent, every=1, model=None)
    checkpoints.setup(trainer, None, "fit")
    checkpoints.teardown(trainer, None, "fit")
    assert {*last.parent.glob("*.shard")} == used
