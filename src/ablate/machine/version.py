"""The installation of ablate: its folder, package, version, and the commit of a checkout."""

import re
import subprocess
from importlib import import_module
from importlib.metadata import PackageNotFoundError, requires, version
from pathlib import Path
from types import ModuleType
from typing import Any

from ablate.errors import UserError

NAME = "ablate-attention"  # of the distribution: see ablate_attention.py
PACKAGE = Path(__file__).parents[1]

try:
    __version__ = version(NAME)
except PackageNotFoundError:  # on the path, but not installed
    __version__ = "unknown"


def extra_with(module: str) -> str | None:
    """The extra of this package that installs a module; None if there is none."""
    try:
        listed = requires(NAME) or []
    except PackageNotFoundError:
        listed = []
    parts = (re.match(r"([\w.-]+).*; extra == ['\"](.+)['\"]$", text) for text in listed)
    extras = {part[1].replace("-", "_"): part[2] for part in parts if part and part[2] != "dev"}
    return extras.get(module)


def install(extra: str) -> str:
    """The command that installs the packages of an optional feature."""
    return f"pip install '{NAME}[{extra}]'"


def require(library: str, needed_by: object, extra: str) -> ModuleType:
    """Import a library of an extra; UserError with the command that installs it. needed_by:
    the key, file or command, for the message."""
    try:
        return import_module(library)
    except ImportError:
        name = library.partition(".")[0]
        raise UserError(f"{needed_by} needs the library {name}: {install(extra)}") from None


def checkout(package: Path) -> dict[str, Any] | None:
    """Return the commit and whether the package's files differ from it; None outside a checkout."""

    def git(*arguments: str) -> bytes:
        command = ["git", "-C", str(package), *arguments]
        return subprocess.run(command, capture_output=True, check=True).stdout.strip()

    try:
        # A virtual environment may be inside the checkout of another project.
        git("ls-files", "--error-unmatch", ".")
        commit, changes = git("rev-parse", "HEAD"), git("status", "--porcelain", "--", ".")
    except (OSError, subprocess.CalledProcessError):
        return None
    return {"commit": commit.decode(), "dirty": bool(changes)}


def described() -> str:
    """Return the version, such as "ablate 0.1.0 (commit 1a2b3c4d5e6f, with changes)"."""
    if (known := checkout(PACKAGE)) is None:
        return f"ablate {__version__}"
    changes = ", with changes" if known["dirty"] else ""
    return f"ablate {__version__} (commit {known['commit'][:12]}{changes})"
