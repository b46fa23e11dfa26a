"""Custom components in a composition: their files, and whether they were edited since."""

import ast
import sys
import sysconfig
from collections.abc import Iterator, Mapping
from contextlib import suppress
from hashlib import sha256
from pathlib import Path
from typing import Any, TextIO

from ablate.config.keys import targets
from ablate.config.parts import OURS
from ablate.data import digest
from ablate.machine.terminal.say import say
from ablate.run_files import read_mapping


def custom_code(values: Mapping[str, Any]) -> dict[str, str]:
    """Hash the files of custom components, which are imported by now: module -> 16 hex digits.

    With a component's file go those in its folder that it imports, and the imports of these; of a
    file that cannot be parsed only its content.
    """
    installed = tuple(sysconfig.get_path(name) for name in ("stdlib", "purelib", "platlib"))
    hashes = {}
    for target in set(targets(values).values()):
        module = target
        while module and module not in sys.modules:
            module = module.rpartition(".")[0]
        file = getattr(sys.modules.get(module), "__file__", None)
        if file and not target.startswith(OURS) and not file.startswith(installed):
            hashes[module] = digest(*(sha256(c).hexdigest() for c in _contents(module, Path(file))))
    return hashes


def _contents(module: str, file: Path) -> Iterator[bytes]:
    """The content of a module's file, then of all that it imports from the folder of its package.

    Found by path, not in sys.modules: an import in a function may not have run yet.
    """
    depth = module.count(".") + (file.name == "__init__.py")
    root, files = file.parents[depth], [file]
    for path in files:  # grows
        yield (content := path.read_bytes())
        if path.suffix == ".py":
            with suppress(SyntaxError, ValueError):  # a guarded import may name anything
                files += sorted({*_imported(ast.parse(content), path, root)} - {*files})


def _imported(tree: ast.AST, path: Path, root: Path) -> Iterator[Path]:
    for node in ast.walk(tree):
        names = [alias.name.split(".") for alias in getattr(node, "names", [])]
        if isinstance(node, ast.Import):
            start = root
        elif isinstance(node, ast.ImportFrom):
            start = path.parents[node.level - 1] if node.level else root
            base = node.module.split(".") if node.module else []
            names = [base, *(base + name for name in names)]
        else:
            continue
        for name in names:
            place = start.joinpath(*name)
            packages = [start.joinpath(*name[:n]) / "__init__.py" for n in range(1, len(name) + 1)]
            every = place.parent / f"{place.name}.py", place / "__init__.py", *packages
            yield from (file for file in every if file.is_file())


def say_edited(run_dir: Path, values: Mapping[str, Any], file: TextIO | None = None) -> None:
    """Report which custom components of a finished run were edited since it was trained. file: as
    of `say`."""
    known = read_mapping(run_dir / "provenance.json").get("custom_code")
    known = known if isinstance(known, dict) else {}
    if names := [name for name, now in custom_code(values).items() if known.get(name, now) != now]:
        say(
            f"{', '.join(names)}: edited since {run_dir} was trained; remove that folder to train"
            " it again",
            file=file,
        )
