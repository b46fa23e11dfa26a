"""A GPU computes what a CPU does: runs of every model, its kernels, compiled.

Skipped where there is none. What CUDA's kernels may differ by is rounding, in float32; dropout is
off, since its numbers are drawn on the device.
"""

import math
from pathlib import Path
from typing import Any

import make_files
import pytest
import torch
from make_axes import MODELS
from tiny import overrides

import ablate
from ablate.config.composition import Composition

pytestmark = pytest.mark.skipif(not torch.cuda.is_available(), reason="torch sees no GPU here")
EXACT = ("trainer=gpu", "trainer.precision=32-true")
STEPS = ("trainer.max_steps=4", "schedule.warmup=2")


def measured(folder: Path, typed: list[str], *more: str) -> dict[str, Any]:
    """A whole run's result."""
    typed = [*typed, *STEPS, *more, f"output_dir={folder}"]
    if "dropout" in ablate.compose(*typed).model:
        typed.append("model.dropout=0")
    cfg = ablate.compose(*typed)
    return ablate.run(cfg, Composition(cfg).folder)


def require_near(one: dict[str, Any], other: dict[str, Any]) -> None:
    losses = [result["metrics"]["val/loss"] for result in (one, other)]
    assert all(map(math.isfinite, losses))
    assert losses[0] == pytest.approx(losses[1], rel=2e-4)


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


@pytest.mark.parametrize(
    ("parts", "kernel"),
    [
        (("model.attention=scaled_dot", "pos_enc=alibi"), "flex"),
        (("model.attention=cosine", "pos_enc=t5"), "flex"),
        (("model.attention=general", "pos_enc=rotary"), "sdpa"),
        (("model.attention=dot", "pos_enc=relative"), "chunked"),
        (("model.attention=additive", "pos_enc=t5"), "triton"),
        (("model.attention=gatv2", "pos_enc=alibi", "model.mask=window"), "triton"),
        (("model.attention=additive",), "auto"),
    ],
)
def test_a_kernel_trains_as_the_reference(
    tmp_path: Path, parts: tuple[str, ...], kernel: str
) -> None:
    typed = overrides(tmp_path, *parts, *EXACT, "model.dim=32")
    reference = measured(tmp_path / "reference", typed, "kernel=reference")
    for compile_ in ("false", "true"):
        more = (f"kernel={kernel}", f"compile={compile_}")
        require_near(reference, measured(tmp_path / compile_, typed, *more))
