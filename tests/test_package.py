"""What `import ablate` gives: its functions, whatever is imported, and nothing else in sight."""

import os
import pkgutil
import re
import subprocess
import sys
import tomllib
from importlib import import_module
from importlib.machinery import SourceFileLoader
from importlib.metadata import version
from itertools import chain
from pathlib import Path

import pytest
from packaging.requirements import Requirement
from packaging.utils import canonicalize_name
from packaging.version import Version
from tiny import in_a_process

import ablate
from ablate.machine import lazy_torchmetrics as _lazy_torchmetrics
from ablate.machine.lazy_torchmetrics import Finder
from ablate.machine.threads import SPIN
from ablate.machine.version import NAME, checkout, described

PACKAGE = Path(ablate.__file__).parent


def test_the_functions_stay_whatever_is_imported():
    """No public name is a submodule too, but judge, a module that can be called."""
    names = {module.name for module in pkgutil.iter_modules(ablate.__path__)}
    assert names
    assert names & {*ablate.__all__, "__version__"} == {"judge"}
    homes = ("config.composition", "training.build", "training.load", "training.train")
    for name in (*names - {"__main__"}, *homes):
        import_module(f"ablate.{name}")
    assert all(callable(getattr(ablate, name)) for name in ablate.__all__)
    with pytest.raises(ModuleNotFoundError):
        import_module("ablate.build")
    with pytest.raises(AttributeError, match="no attribute 'nothing'"):
        _ = ablate.nothing


def test_dir_lists_what_a_person_uses_and_importing_it_is_quick():
    assert dir(ablate) == sorted([*ablate.__all__, "__version__"])
    names = "RunFailed UserError build compose judge load load_study run"
    assert set(ablate.__all__) == set(names.split())
    assert ablate.__version__ == version(NAME)
    code = "import sys, ablate; ablate.__version__; print({'torch', 'hydra'} & set(sys.modules))"
    assert in_a_process("-c", code).stdout == "set()\n"


def test_the_version_names_the_commit_of_its_own_checkout_alone(tmp_path):
    known = checkout(PACKAGE)
    if known is None:
        pytest.skip("ablate does not run from a checkout here")
    assert re.search(rf"\(commit {known['commit'][:12]}(, with changes)?\)$", described())
    who = ["-c", "user.name=x", "-c", "user.email=x@y.z"]
    for words in (["init", "-q"], [*who, "commit", "-q", "--allow-empty", "-m", "theirs"]):
        subprocess.run(["git", "-C", str(tmp_path), *words], check=True)
    (tmp_path / "site-packages").mkdir()
    (tmp_path / "site-packages" / "__init__.py").touch()
    assert checkout(tmp_path / "site-packages") is None


SHOW = "print([os.environ.get(name) for name in ('GOMP_SPINCOUNT', 'OMP_WAIT_POLICY')])"


@pytest.mark.parametrize(
    ("imports", "own", "found"),
    [
        ("ablate", {}, [SPIN, None]),
        ("ablate", {"GOMP_SPINCOUNT": "7"}, ["7", None]),
        ("ablate", {"OMP_WAIT_POLICY": "ACTIVE"}, [None, "ACTIVE"]),
        pytest.param("torch, ablate", {}, [None, None], marks=pytest.mark.slow),
    ],
)
def test_how_long_threads_spin_is_set_before_torch_and_not_over_a_persons_setting(
    monkeypatch, imports, own, found
):
    monkeypatch.delenv("GOMP_SPINCOUNT", raising=False)  # that of this process
    assert in_a_process("-c", f"import os, {imports}; {SHOW}", **own).stdout == f"{found}\n"


@pytest.mark.ci
@pytest.mark.skipif(sys.platform != "linux", reason="GNU's OpenMP comes with torch's Linux wheels")
def test_torch_reads_it(monkeypatch):
    monkeypatch.delenv("GOMP_SPINCOUNT", raising=False)
    told = in_a_process("-c", "import ablate, torch", OMP_DISPLAY_ENV="VERBOSE").stderr
    assert f"GOMP_SPINCOUNT = '{SPIN}'" in told


# Trains until the first step is done, then says which of these were imported.
UNTIL_THE_FIRST_STEP = """
import sys
import ablate.__main__ as command
from ablate.training.progress import ProgressFile

class Enough(BaseException): pass

def enough(*args, **kwargs): raise Enough

ProgressFile.on_train_batch_end = enough
for model in ("gpt", "vit"):
    sys.argv[1:] = ["trainer.max_steps=1", "schedule.warmup=0", "logger=none", f"model={model}"]
    try: command.main()
    except Enough: pass
    heavy = {"transformers", "torchvision", "timm", "sklearn", "scipy", "wandb", "tensorboard",
             "tokenizers", "sacrebleu", "babel", "gensim", "ablate.study.report"}
    print(sorted(heavy & set(sys.modules)))
"""


@pytest.mark.slow
def test_before_the_first_step_nothing_is_imported_that_it_does_without(tmp_path):
    done = in_a_process("-c", UNTIL_THE_FIRST_STEP, folder=tmp_path)
    said = done.stdout.splitlines()
    assert [line for line in said if " parameters | " not in line] == ["[]", "[]"], done.stderr


@pytest.mark.slow
def test_torchmetrics_is_whole_for_whoever_asks():
    script = """
import sys, ablate, lightning.pytorch
import torchmetrics
from torchmetrics import Metric
print("torchmetrics.image" in sys.modules)
from torchmetrics import *
import torchmetrics.text, torchmetrics.functional
print([name for name in torchmetrics.__all__ if not hasattr(torchmetrics, name)])
print(Metric is torchmetrics.metric.Metric, issubclass(BLEUScore, Metric))
print(torchmetrics.functional.accuracy.__module__)
"""
    accuracy = "torchmetrics.functional.classification.accuracy"
    said = in_a_process("-c", script).stdout.splitlines()
    assert said == ["False", "[]", "True True", accuracy]


def test_another_version_is_imported_as_it_comes(monkeypatch):
    find = Finder().find_spec
    assert not isinstance(find("torchmetrics", None).loader, SourceFileLoader)
    monkeypatch.setattr(_lazy_torchmetrics, "version", lambda name: "1.10.0")
    assert isinstance(find("torchmetrics", None).loader, SourceFileLoader)
    assert find("torch", None) is None


COMMAND = ("-c", "from ablate_attention import main; main()", "--version")


@pytest.mark.parametrize(
    ("start", "case"),
    [
        (COMMAND, "theirs first"),
        (("-m", "ablate", "--version"), "ours over theirs"),
        (COMMAND, "apart"),
    ],
)
def test_a_mixture_with_the_other_package_is_refused(tmp_path, start, case):
    """PyPI's `ablate`, which has no command."""
    (tmp_path / "ablate-0.2.3.dist-info").mkdir()
    (tmp_path / "ablate-0.2.3.dist-info/METADATA").write_text("Name: ablate\nVersion: 0.2.3\n")
    if case == "ours over theirs":
        (tmp_path / "ablate").symlink_to(PACKAGE)
    else:
        (tmp_path / "ablate").mkdir()
        (tmp_path / "ablate/__init__.py").write_text("__version__ = '0.2.3'\n")
    folders = [str(tmp_path), str(PACKAGE.parent)]
    path = os.pathsep.join(folders if case != "apart" else folders[::-1])
    done = in_a_process(*start, folder=tmp_path.parent, PYTHONPATH=path)
    if case == "apart":
        assert (done.returncode, done.stderr) == (0, "")
    else:
        assert done.returncode != 0
        last = done.stderr.strip().splitlines()[-1]
        assert "PyPI's package 'ablate' 0.2.3 is installed" in last
        assert f"install {NAME} again" in last


# requirements.lock holds a version of everything, inside the ranges of pyproject.toml

ROOT = Path(__file__).parents[1]
PROJECT = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]
EXTRAS = PROJECT["optional-dependencies"]
EVERY = [Requirement(text) for text in chain(PROJECT["dependencies"], *EXTRAS.values())]
RANGES = [requirement for requirement in EVERY if requirement.name != PROJECT["name"]]
LOCK = re.split(r"\n(?=\S)", (ROOT / "requirements.lock").read_text())
LOCKED = [one for text in LOCK for one in re.findall(r"^([\w.-]+)==(\S+)", text)]


def test_every_range_has_two_ends_and_the_lock_file_is_inside_and_has_hashes():
    """Several versions of one package are for several versions of Python."""
    for requirement in RANGES:
        name = canonicalize_name(requirement.name)
        versions = [Version(number) for other, number in LOCKED if canonicalize_name(other) == name]
        assert versions, name
        assert all(one in requirement.specifier for one in versions), name
        if name != "types-pyyaml":  # stubs, numbered by their day
            assert {one.operator for one in requirement.specifier} == {">=", "<"}, name
    for entry in LOCK:
        assert entry.startswith("#") or "==" not in entry or "--hash=sha256:" in entry
