"""Every part computes where its input is: no tensor made on the CPU meets one on a GPU.

Which is not needed for it: see tests/fake_gpu.py. What a GPU computes is tested in test_gpu.py.
"""

import os
import subprocess
import sys
from pathlib import Path

import pytest
from make_model import options

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
    every = [f"{group}={name}" for group in GROUPS for name in options(group)]
    chosen = [one for one in every if one not in SELF_COMPILED]
    script = Path(__file__).with_name("fake_gpu.py")
    done = subprocess.run(
        [sys.executable, str(script), *chosen],
        capture_output=True,
        text=True,
        env={**os.environ, "TRITON_INTERPRET": "0"},
    )
    assert done.returncode == 0, done.stderr[-2000:]
    found = dict(line.split(": ", 1) for line in done.stdout.splitlines())
    waiting = "DynamicOutputShapeException: aten._pack_padded_sequence.default"
    assert found == dict.fromkeys(WAIT, waiting)
