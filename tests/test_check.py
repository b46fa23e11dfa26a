"""A composition is checked as a whole, and against this machine and its folders."""

from contextlib import nullcontext
from pathlib import Path
from types import SimpleNamespace

import pytest
import torch
from omegaconf import OmegaConf
from refusals import refused

from ablate.config.check import check
from ablate.config.composition import Composition, compose
from ablate.errors import UserError
from ablate.training.preflight import check_devices, check_output


def test_all_conflicts_are_said_at_once() -> None:
    mistakes = (
        "model=vit model.mask=causal pos_enc=rotary model.attention=uniform model.dropout=2"
        " +model.hedas=3 model.norm=none model.norm_type=rms"
    )
    parts = ("model.pool=mean", "does not compare", "model.dropout=2", "model.hedas", "rms")
    with refused(*parts):
        compose(*mistakes.split())


@pytest.mark.parametrize(
    ("key", "value", "line"),
    [
        ("model.dim", "${model.width}", r"model\.width"),
        ("study", 3, r"study=3: is no value; set study\.arm, "),
    ],
)
def test_what_no_command_line_can_set_is_one_line_too(key: str, value: object, line: str) -> None:
    cfg = compose()
    OmegaConf.update(cfg, key, value, merge=False)
    with pytest.raises(UserError, match=line):
        check(cfg)


# CUDA's GPUs, and whether there is Apple's.
CPU, TWO_GPUS, APPLE, BOTH = (0, False), (2, False), (0, True), (2, True)


@pytest.mark.parametrize(
    ("here", "overrides", "line"),
    [
        *((CPU, f"trainer.devices={devices}", "") for devices in ("8", "auto")),
        (CPU, "trainer=ddp", ""),
        (CPU, "trainer=fsdp trainer.accelerator=cpu trainer.devices=2", ""),
        (CPU, "trainer.accelerator=auto", ""),
        (CPU, "trainer=gpu", "trainer.accelerator=gpu: .*trainer=cpu"),
        (CPU, "trainer.accelerator=mps", "trainer.accelerator=mps: .*trainer=cpu"),
        (CPU, "trainer.devices=[0]", r"trainer.devices=\[0\]: .*write .*trainer.devices=1$"),
        (CPU, "trainer=ddp trainer.devices=[0,1]", "trainer.devices=2$"),
        (CPU, "trainer.accelerator=auto trainer.precision=16-mixed", "needs a GPU"),
        (TWO_GPUS, "trainer.devices=8", ""),
        (TWO_GPUS, "trainer=ddp trainer.devices=2", ""),
        (TWO_GPUS, "trainer=gpu trainer.devices=[0,1]", ""),
        (TWO_GPUS, "trainer=fsdp", ""),
        (TWO_GPUS, "trainer.accelerator=auto trainer.precision=16-mixed", ""),
        (TWO_GPUS, "trainer=ddp trainer.devices=3", "trainer.devices=3: this machine has 2 GPU"),
        (TWO_GPUS, "trainer=gpu trainer.devices=[2]", r"=\[2\]: this machine has 2 GPU"),
        (TWO_GPUS, "trainer=gpu trainer.devices=[1,1]", "a number twice"),
        (APPLE, "trainer=gpu", ""),
        (APPLE, "trainer.accelerator=mps", ""),
        (APPLE, "trainer=gpu trainer.devices=2", "this machine has 1 GPU"),
        (APPLE, "trainer=ddp", "trainer.strategy=ddp cannot run on Apple's GPU"),
        (BOTH, "trainer.accelerator=cuda trainer.devices=2", ""),
        (BOTH, "trainer.accelerator=mps trainer.devices=2", "this machine has 1 GPU"),
    ],
)
def test_devices_are_those_of_the_machine(here, overrides, line, monkeypatch):
    cuda, mps = here
    monkeypatch.setattr(torch.cuda, "device_count", lambda: cuda)
    monkeypatch.setattr(torch.backends, "mps", SimpleNamespace(is_available=lambda: mps))
    with pytest.raises(UserError, match=line) if line else nullcontext():
        check_devices(Composition(compose(*overrides.split())))


def test_output(tmp_path: Path) -> None:
    check_output(tmp_path / "a" / "b")
    assert list((tmp_path / "a" / "b").iterdir()) == []
    (tmp_path / "file").write_text("")
    with pytest.raises(UserError, match=r"output_dir: cannot write to .*Not a directory"):
        check_output(tmp_path / "file" / "run")
