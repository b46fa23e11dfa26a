"""One training over two nodes of a real Slurm, which is private to these tests."""

import csv
import os

import make_slurm
import pytest
import torch
from make_launch import environment, printed, run_here, runs
from make_slurm import submitted

from ablate.run_files.checkpoint_io import read_state
from ablate.study.launch import state as state_module

pytestmark = pytest.mark.slow

# Nodes are one machine here, whose processes find each other by its loopback.
NEAR = {"GLOO_SOCKET_IFNAME": "lo"}
WAYS = {
    "data": ["trainer=ddp", "trainer.precision=64-true"],
    "shards": ["trainer=fsdp", "trainer.precision=32-true"],
}


@pytest.fixture(scope="module")
def nodes(tmp_path_factory):
    if reason := make_slurm.missing() or make_slurm.no_namespaces():
        pytest.skip(reason)
    with make_slurm.slurm(tmp_path_factory.mktemp("slurm"), nodes=2) as conf:
        yield conf


@pytest.fixture
def slurm(nodes, monkeypatch):
    """This process belongs to it."""
    for name, value in {**environment(), **NEAR, "SLURM_CONF": str(nodes)}.items():
        if os.environ.get(name) != value:
            monkeypatch.setenv(name, value)
    state_module._slurm_jobs.cache_clear()


def weights(folder):
    return read_state(folder / "checkpoints" / "last.ckpt")["state_dict"]


def curves(folder):
    with (folder / "metrics.csv").open() as file:
        return [{key: float(x) for key, x in row.items() if x} for row in csv.DictReader(file)]


@pytest.mark.parametrize("way", WAYS)
def test_two_nodes_train_as_one_launch_of_two_processes(slurm, tmp_path, way):
    """To the last bit: a sum of two numbers is the same in either order."""
    place = ["trainer.accelerator=cpu", "trainer.devices=1", "trainer.num_nodes=2"]
    (run,) = wanted = runs(tmp_path, [0], *WAYS[way], *place)
    (found,) = submitted(wanted, tmp_path)
    assert found.name == "finished", (found, printed(run.folder))
    here = ["trainer.accelerator=cpu", "trainer.devices=2"]
    run_here(run, tmp_path / "here", *here, without=place)
    assert curves(run.folder) == curves(tmp_path / "here")
    ours, theirs = weights(run.folder), weights(tmp_path / "here")
    assert all(torch.equal(ours[name], theirs[name]) for name in theirs)
