"""A GPU computes what a CPU does, up to rounding: runs of every model, its kernels, compiled.

And every part computes where its input is, for which tests/fake_gpu.py needs no GPU.
"""

import math
from dataclasses import replace
from pathlib import Path
from typing import Any

import make_files
import pytest
import torch
from make_axes import MODELS
from make_model import options
from test_kernel import MASKS, PADDING, make, results
from tiny import in_a_process, overrides

import ablate
from ablate.config.composition import Composition
from ablate.kernel.flex import Flex
from ablate.kernel.reference import Reference
from ablate.training.float8 import CAPABILITY

on_a_gpu = pytest.mark.skipif(not torch.cuda.is_available(), reason="torch sees no GPU here")
EXACT = ("trainer=gpu", "trainer.precision=32-true")
STEPS = ("trainer.max_steps=4", "schedule.warmup=2")


def measured(folder: Path, typed: list[str], *more: str) -> dict[str, Any]:
    """A whole run's result."""
    typed = [*typed, *STEPS, *more, f"output_dir={folder}"]
    if "dropout" in ablate.compose(*typed).model:
        typed.append("model.dropout=0")  # whose numbers are drawn on the device
    cfg = ablate.compose(*typed)
    return ablate.run(cfg, Composition(cfg).folder)


def require_near(one: dict[str, Any], other: dict[str, Any]) -> None:
    losses = [result["metrics"]["val/loss"] for result in (one, other)]
    assert all(map(math.isfinite, losses))
    assert losses[0] == pytest.approx(losses[1], rel=2e-4)


@on_a_gpu
def test_float8_trains_as_it_is_emulated(tmp_path: Path) -> None:
    if torch.cuda.get_device_capability() < CAPABILITY:
        pytest.skip("this GPU has no float8")
    typed = overrides(tmp_path, "trainer.precision=fp8-mixed", "data.val_fraction=0.2")
    emulated, real = measured(tmp_path / "cpu", typed), measured(tmp_path, typed, "trainer=gpu")
    assert real["metrics"]["val/loss"] == pytest.approx(emulated["metrics"]["val/loss"], rel=0.02)


@on_a_gpu
@pytest.mark.parametrize("model", MODELS)
def test_every_model_trains_as_on_a_cpu(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, model: str
) -> None:
    make_files.write(tmp_path, monkeypatch)
    typed = [f"model={model}", *MODELS[model].overrides, "logger=none"]
    cpu, gpu = measured(tmp_path / "cpu", typed), measured(tmp_path / "gpu", typed, *EXACT)
    require_near(cpu, gpu)
    require_near(gpu, measured(tmp_path / "compiled", typed, *EXACT, "compile=true"))
    mixed = measured(tmp_path / "mixed", typed, "trainer=gpu")
    assert mixed["metrics"]["val/loss"] == pytest.approx(gpu["metrics"]["val/loss"], rel=0.05)


@on_a_gpu
@pytest.mark.parametrize(
    ("parts", "kernel"),
    [
        (("model.attention=scaled_dot", "pos_enc=alibi"), "flex"),
        (("model.attention=cosine", "pos_enc=t5"), "flex"),
        (("model.attention=general", "pos_enc=rotary"), "sdpa"),
        (("model.attention=dot", "pos_enc=relative"), "chunked"),
        (("model.attention=additive", "pos_enc=t5"), "triton"),
        (
            ("model.attention=gatv2", "pos_enc=alibi", "model.mask=window", "model.mask.size=4"),
            "triton",
        ),
        (("model.attention=additive",), "auto"),
    ],
)
def test_a_kernel_trains_as_the_reference(
    tmp_path: Path, parts: tuple[str, ...], kernel: str
) -> None:
    typed = overrides(tmp_path, *parts, *EXACT, "model.dim=32", "model.dropout=0")
    reference = measured(tmp_path / "reference", typed, "kernel=reference")
    for compile_ in ("false", "true"):
        more = (f"kernel={kernel}", f"compile={compile_}")
        require_near(reference, measured(tmp_path / compile_, typed, *more))


@on_a_gpu
@pytest.mark.parametrize("padding", PADDING)
@pytest.mark.parametrize("mask", MASKS)
@pytest.mark.parametrize("bias", ["none", "alibi", "t5", "relative, keys"])
def test_the_gradients_of_flex_are_those_of_the_reference(
    bias: str, mask: str, padding: str
) -> None:
    attend = make("scaled_dot", bias, mask, padding=padding)
    q, k, v = (x.detach().cuda().float().requires_grad_() for x in (attend.q, attend.k, attend.v))
    attend.score.cuda().float()
    attend.pos.cuda().float()
    keep = None if attend.keep is None else attend.keep.cuda()
    there = replace(attend, q=q, k=k, v=v, keep=keep)
    for mine, expected in zip(results(Flex(), there), results(Reference(), there), strict=True):
        torch.testing.assert_close(mine, expected, atol=1e-3, rtol=1e-3)


GROUPS = (
    "kernel",
    "model",
    "model.attention",
    "model.embedding",
    "model.gate",
    "model.mask",
    "model.mixer",
    "model.normalizer",
    "model.window",
    "pos_enc",
)
SELF_COMPILED = {"kernel=flex"}  # which fake tensors cannot be
# Which wait for the GPU in every step: torch packs sentences by lengths that the CPU must know.
WAIT = {"model=rnn_seq2seq", "model.attention=none"}
WAIT |= {f"model.window={name}" for name in options("model.window")}


@pytest.mark.slow
def test_no_part_makes_a_tensor_on_another_device_or_waits_for_one() -> None:
    every = {f"{group}={name}" for group in GROUPS for name in options(group)} - SELF_COMPILED
    script = Path(__file__).with_name("fake_gpu.py")
    settings = {"TRITON_INTERPRET": "0", "CUDA_VISIBLE_DEVICES": ""}  # and where there is a GPU too
    done = in_a_process(script, *sorted(every), **settings)
    assert done.returncode == 0, done.stderr[-2000:]
    found = dict(line.split(": ", 1) for line in done.stdout.splitlines())
    waiting = "DynamicOutputShapeException: aten._pack_padded_sequence.default"
    assert found == dict.fromkeys(WAIT, waiting)
