"""What `import ablate` gives: its functions, whatever is imported, and nothing else in sight."""

import pkgutil
import re
import subprocess
import sys
from importlib import import_module
from importlib.metadata import version
from pathlib import Path

import pytest

import ablate
from ablate.cli.version import checkout, described

PACKAGE = Path(ablate.__file__).parent


def test_no_public_name_is_a_submodule_too() -> None:
    """Importing such a submodule would put it where the function is."""
    names = {module.name for module in pkgutil.iter_modules(ablate.__path__)}
    assert names
    assert not names & {*ablate.__all__, "__version__"}


def test_the_functions_stay_whatever_is_imported() -> None:
    for module in pkgutil.iter_modules(ablate.__path__):
        if module.name != "__main__":
            import_module(f"ablate.{module.name}")
    for home in ("config.compose", "training.build", "training.load", "training.train"):
        import_module(f"ablate.{home}")
    assert all(callable(getattr(ablate, name)) for name in ablate.__all__)
    with pytest.raises(ModuleNotFoundError):
        import_module("ablate.build")
    with pytest.raises(AttributeError, match="no attribute 'nothing'"):
        _ = ablate.nothing


def test_dir_lists_what_a_person_uses() -> None:
    assert dir(ablate) == sorted([*ablate.__all__, "__version__"])
    assert set(ablate.__all__) == {"RunFailed", "UserError", "build", "compose", "load", "run"}
    assert ablate.__version__ == version("ablate")


def test_importing_it_is_quick() -> None:
    code = "import sys, ablate; ablate.__version__; print({'torch', 'hydra'} & set(sys.modules))"
    assert subprocess.check_output([sys.executable, "-c", code], text=True) == "set()\n"


def test_the_version_names_the_commit_of_its_own_checkout_alone(tmp_path: Path) -> None:
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
