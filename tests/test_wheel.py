"""The built wheel works by itself, from any folder: conf/ and sweeps/ are inside."""

import os
import subprocess
import sys
from pathlib import Path

import pytest
from tiny import overrides

ROOT = Path(__file__).parents[1]


@pytest.fixture(scope="module")
def site(tmp_path_factory):
    """A folder with nothing but the unpacked wheel; the packages it needs come from here."""
    if not (ROOT / "pyproject.toml").exists():
        pytest.skip("the sources are not here, so no wheel can be built")
    folder = tmp_path_factory.mktemp("wheel")
    pip = [sys.executable, "-m", "pip", "-q", "--disable-pip-version-check"]
    wheels = ["--no-deps", "--no-build-isolation", "-w", str(folder), str(ROOT)]
    subprocess.run([*pip, "wheel", *wheels], check=True, cwd=folder)
    (wheel,) = folder.glob("*.whl")
    target = folder / "site"
    install = ["--no-deps", "--target", str(target), str(wheel)]
    subprocess.run([*pip, "install", *install], check=True, cwd=folder)
    return target


def ablate(site, folder, *arguments):
    """`python -m ablate` of the wheel, not of the checkout."""
    environment = os.environ | {"PYTHONPATH": str(site)}
    line = [sys.executable, "-m", "ablate", *arguments]
    done = subprocess.run(line, cwd=folder, env=environment, capture_output=True, text=True)
    assert done.returncode == 0, done.stderr
    return done.stdout


def test_the_wheel_holds_every_option(site):
    for top, inside in (("conf", "conf"), ("sweeps", "conf/sweep")):
        for path in (ROOT / top).rglob("*.yaml"):
            assert (site / "ablate" / inside / path.relative_to(ROOT / top)).exists(), path


def test_the_wheel_runs_from_any_folder(site, tmp_path):
    where = "import ablate; print(ablate.__file__)"
    environment = os.environ | {"PYTHONPATH": str(site)}
    found = subprocess.check_output([sys.executable, "-c", where], env=environment, text=True)
    assert found.startswith(str(site))
    assert "attention_scores" in ablate(site, tmp_path, "--help")
    out = ablate(site, tmp_path, *overrides(tmp_path))
    assert "val/loss" in out
    assert list((tmp_path / "outputs" / "runs").glob("*/result.json"))


def test_a_persons_own_folder_adds_options(site, tmp_path):
    """The README's example: a score function of one's own, in two files."""
    package = tmp_path / "my"
    (package / "conf" / "model.attention").mkdir(parents=True)
    (package / "__init__.py").write_text("")
    (package / "l2.py").write_text(
        "import torch\n"
        "from ablate.model.attention import Score\n\n\n"
        "class NegativeDistance(Score):\n"
        "    def forward(self, q, k):\n"
        "        return -torch.cdist(q, k)\n"
    )
    (package / "conf" / "model.attention" / "l2.yaml").write_text(
        "_target_: my.l2.NegativeDistance\n_partial_: true\n"
    )
    own = ["--config-dir", str(package / "conf")]
    ablate(site, tmp_path, *own, *overrides(tmp_path, "model.attention=l2"))
    (result,) = (tmp_path / "outputs" / "runs").glob("*/result.json")
    text = result.read_text()
    assert '"model.attention": "l2"' in text
    assert "chunked" in text
