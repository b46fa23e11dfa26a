"""How long threads spin is set before torch is imported, and never over a person's own setting."""

import os
import subprocess
import sys

import pytest

from ablate.threads import SPIN

NAMES = ("GOMP_SPINCOUNT", "OMP_WAIT_POLICY")
SHOW = "import os; print([os.environ.get(name) for name in ('GOMP_SPINCOUNT', 'OMP_WAIT_POLICY')])"


def python(code: str, **environment: str) -> subprocess.CompletedProcess[str]:
    clean = {key: value for key, value in os.environ.items() if key not in NAMES}
    command = [sys.executable, "-c", code]
    return subprocess.run(
        command, check=True, capture_output=True, text=True, env=clean | environment
    )


def test_it_is_set_when_ablate_is_imported() -> None:
    assert python(f"import ablate; {SHOW}").stdout == f"{[SPIN, None]}\n"


@pytest.mark.parametrize("own", [{"GOMP_SPINCOUNT": "7"}, {"OMP_WAIT_POLICY": "ACTIVE"}])
def test_a_persons_own_setting_stays(own: dict[str, str]) -> None:
    expected = [own.get(name) for name in NAMES]
    assert python(f"import ablate; {SHOW}", **own).stdout == f"{expected}\n"


@pytest.mark.slow
def test_nothing_is_set_after_torch() -> None:
    assert python(f"import torch, ablate; {SHOW}").stdout == f"{[None, None]}\n"


@pytest.mark.skipif(sys.platform != "linux", reason="GNU's OpenMP comes with torch's Linux wheels")
def test_torch_reads_it() -> None:
    told = python("import ablate, torch", OMP_DISPLAY_ENV="VERBOSE").stderr
    assert f"GOMP_SPINCOUNT = '{SPIN}'" in told
