"""The distribution, which has another name than its package: `ablate` on PyPI is another project.

Code that must work if both are installed, so it is not in the package, whose files the
other one overwrites.
"""

import sys
from importlib.metadata import PackageNotFoundError, distribution
from importlib.util import find_spec
from pathlib import Path


def mixture() -> str | None:
    """The message for PyPI's `ablate` imported in place of this package, or in its folder;
    None if it does neither."""
    try:
        other = distribution("ablate")
    except PackageNotFoundError:
        return None
    spec = find_spec("ablate")
    origin = Path(spec.origin) if spec and spec.origin else Path()
    theirs = Path(str(other.locate_file("ablate")))
    if origin.parent.resolve() != theirs.resolve():
        return None
    return (
        f"PyPI's package 'ablate' {other.version} is installed, whose module has the same name as"
        " that of ablate-attention: pip uninstall ablate, then install ablate-attention again"
    )


def main() -> None:
    """The command `ablate`."""
    if line := mixture():
        print(f"ablate: {line}", file=sys.stderr)
        raise SystemExit(2)
    from ablate.__main__ import program

    program()
