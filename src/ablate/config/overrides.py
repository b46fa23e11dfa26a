"""KEY=VALUE arguments of the commands other than training, parsed with Hydra's grammar."""

from itertools import product
from typing import Any

from hydra.core.override_parser.overrides_parser import OverridesParser
from hydra.errors import HydraException

from ablate.errors import UserError


def parse(arguments: list[str]) -> dict[str, list[Any]]:
    """Map each key to its values: `data.seq_len=64,128` has two."""
    try:
        overrides = OverridesParser.create().parse_overrides(arguments)
    except HydraException as error:
        line = str(error).splitlines()[0]
        raise UserError(f"{' '.join(arguments)}: not KEY=VALUE ({line})") from error
    values: dict[str, list[Any]] = {}
    for override in overrides:
        if override.is_delete() or override.is_add():
            raise UserError(f"{override.input_line}: only KEY=VALUE has a meaning here")
        sweep = override.is_sweep_override()
        values[override.key_or_group] = (
            list(override.sweep_iterator()) if sweep else [override.value()]
        )
    return values


def variants(values: dict[str, list[Any]]) -> list[dict[str, Any]]:
    """Return every combination of the values as a dictionary; one empty one if there are none."""
    return [dict(zip(values, row, strict=True)) for row in product(*values.values())]
