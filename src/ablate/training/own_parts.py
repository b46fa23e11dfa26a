"""Parts of a user's own in a composition: their files, and whether they were edited since."""

import sys
import sysconfig
from collections.abc import Mapping
from hashlib import sha256
from pathlib import Path
from typing import Any, TextIO

from ablate.config.keys import OURS, targets
from ablate.data import digest
from ablate.run_files import read_mapping
from ablate.terminal.say import say


def own_parts(values: Mapping[str, Any]) -> dict[str, str]:
    """Hash the files of a user's own parts, which are imported by now: module -> 16 hex digits."""
    installed = tuple(sysconfig.get_path(name) for name in ("stdlib", "purelib", "platlib"))
    hashes = {}
    for target in set(targets(values)):
        module = target
        while module and module not in sys.modules:
            module = module.rpartition(".")[0]
        file = getattr(sys.modules.get(module), "__file__", None)
        if file and not target.startswith(OURS) and not file.startswith(installed):
            hashes[module] = digest(sha256(Path(file).read_bytes()).hexdigest())
    return hashes


def say_edited(run_dir: Path, values: Mapping[str, Any], file: TextIO | None = None) -> None:
    """Say which own parts of a finished run were edited since it was trained. file: as of `say`."""
    known = read_mapping(run_dir / "provenance.json").get("own_parts")
    known = known if isinstance(known, dict) else {}
    if names := [name for name, now in own_parts(values).items() if known.get(name, now) != now]:
        say(
            f"{', '.join(names)}: edited since {run_dir} was trained; remove that folder to train"
            " it again",
            file=file,
        )
