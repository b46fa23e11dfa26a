"""A composition is checked as a whole, and against this machine and its folders."""

from collections.abc import Callable
from pathlib import Path
from types import SimpleNamespace

import pytest

from ablate.config.check import check
from ablate.config.composition import Composition, compose
from ablate.errors import UserError
from ablate.training.preflight import check_devices, check_output


def test_all_conflicts_are_said_at_once() -> None:
    mistakes = (
        "model=vit model.mask=causal pos_enc=rotary model.attention=uniform model.dropout=2"
        " +model.hedas=3 model.norm=none model.norm_type=rms"
    )
    with pytest.raises(UserError) as caught:
        compose(*mistakes.split())
    line = str(caught.value)
    assert "\n" not in line
    for part in ("model.pool=mean", "does not compare", "model.dropout=2", "model.hedas", "rms"):
        assert part in line


def test_an_unknown_interpolation_is_one_line() -> None:
    cfg = compose()
    cfg.model.dim = "${model.width}"
    with pytest.raises(UserError, match=r"model\.width"):
        check(cfg)


Machine = Callable[[int, bool], None]


@pytest.fixture
def machine(monkeypatch: pytest.MonkeyPatch) -> Machine:
    """Makes this a machine with so many CUDA GPUs, and with or without Apple's."""
    import torch

    def make(cuda: int, mps: bool) -> None:
        monkeypatch.setattr(torch.cuda, "device_count", lambda: cuda)
        monkeypatch.setattr(torch.backends, "mps", SimpleNamespace(is_available=lambda: mps))

    return make


CPU, TWO_GPUS, APPLE, BOTH = (0, False), (2, False), (0, True), (2, True)


@pytest.mark.parametrize(
    ("here", "overrides"),
    [
        (CPU, "trainer.devices=8"),
        (CPU, "trainer.devices=auto"),
        (CPU, "trainer=ddp"),
        (CPU, "trainer=fsdp trainer.accelerator=cpu trainer.devices=2"),
        (CPU, "trainer.accelerator=auto"),
        (TWO_GPUS, "trainer.devices=8"),
        (TWO_GPUS, "trainer=ddp trainer.devices=2"),
        (TWO_GPUS, "trainer=gpu trainer.devices=[0,1]"),
        (TWO_GPUS, "trainer=fsdp"),
        (TWO_GPUS, "trainer.accelerator=auto trainer.precision=16-mixed"),
        (APPLE, "trainer=gpu"),
        (APPLE, "trainer.accelerator=mps"),
        (BOTH, "trainer.accelerator=cuda trainer.devices=2"),
    ],
)
def test_devices_that_are_there(machine: Machine, here: tuple[int, bool], overrides: str) -> None:
    machine(*here)
    check_devices(Composition(compose(*overrides.split())))


@pytest.mark.parametrize(
    ("here", "overrides", "line"),
    [
        (CPU, "trainer=gpu", "trainer.accelerator=gpu: .*trainer=cpu"),
        (CPU, "trainer.accelerator=mps", "trainer.accelerator=mps: .*trainer=cpu"),
        (CPU, "trainer.devices=[0]", r"trainer.devices=\[0\]: .*write .*trainer.devices=1$"),
        (CPU, "trainer=ddp trainer.devices=[0,1]", "trainer.devices=2$"),
        (CPU, "trainer.accelerator=auto trainer.precision=16-mixed", "needs a GPU"),
        (TWO_GPUS, "trainer=ddp trainer.devices=3", "trainer.devices=3: this machine has 2 GPU"),
        (TWO_GPUS, "trainer=gpu trainer.devices=[2]", r"=\[2\]: this machine has 2 GPU"),
        (TWO_GPUS, "trainer=gpu trainer.devices=[1,1]", "a number twice"),
        (APPLE, "trainer=gpu trainer.devices=2", "this machine has 1 GPU"),
        (APPLE, "trainer=ddp", "trainer.strategy=ddp cannot run on Apple's GPU"),
        (BOTH, "trainer.accelerator=mps trainer.devices=2", "this machine has 1 GPU"),
    ],
)
def test_devices_that_are_not(
    machine: Machine, here: tuple[int, bool], overrides: str, line: str
) -> None:
    machine(*here)
    with pytest.raises(UserError, match=line):
        check_devices(Composition(compose(*overrides.split())))


def test_output(tmp_path: Path) -> None:
    check_output(tmp_path / "a" / "b")
    assert list((tmp_path / "a" / "b").iterdir()) == []
    (tmp_path / "file").write_text("")
    with pytest.raises(UserError, match=r"output_dir: cannot write to .*Not a directory"):
        check_output(tmp_path / "file" / "run")


def test_a_node_that_is_a_value() -> None:
    cfg = compose()
    cfg.study = 3
    with pytest.raises(UserError, match=r"study=3: is no value; set study\.arm, "):
        check(cfg)
