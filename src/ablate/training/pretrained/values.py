"""Settings of a pretrained network as values of ablate's keys; UserError if there are none."""

from collections.abc import Mapping

from ablate.errors import UserError


def known(activation: str, names: Mapping[str, str], what: str) -> str:
    """Our name of an activation; UserError if we have none."""
    if activation not in names:
        raise UserError(
            f"{what}: its activation is {activation}; known: {', '.join(sorted(names))}"
        )
    return names[activation]


def side(size: int | tuple[int, int] | list[int], what: str) -> int:
    """The side of a square image or patch; UserError for others."""
    rows, columns = (size, size) if isinstance(size, int) else size
    if rows != columns:
        raise UserError(f"{what}: reads images or patches of {rows} x {columns}, not squares")
    return rows
