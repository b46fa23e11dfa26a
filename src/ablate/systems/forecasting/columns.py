"""Columns of numbers in a CSV file, with a one-line UserError for every error in them."""

import math
from collections.abc import Sequence

import numpy as np
from numpy.typing import NDArray

from ablate.data.table import Row, open_table
from ablate.errors import UserError, suggest
from ablate.systems.forecasting.row_times import in_order, is_number

# Cells that mark a missing value.
MISSING = {"", "na", "n/a", "nan", "null", "none", "-", "?"}
OTHERS = (";", "\t", "|")  # other delimiters in files called CSV
# Numbers that loggers and file formats write for a missing value, in addition to those of only
# nines.
SENTINELS = (-32768.0, -(2.0**31))
FILL = 1e20  # and all beyond
PLAUSIBLE = (0.0, -1.0)  # also missing values, but often real ones
OFTEN = 10  # times as often as any other value


def read_columns(path: str, columns: Sequence[str] | None) -> tuple[NDArray[np.float64], list[str]]:
    """rows x columns of a file, plain or gzip, or of a download, in order of time, and remarks on
    its rows for the user. Its first row names the columns.

    columns None: UserError that lists the columns.
    """
    header, rows = open_table(path, f"data.path={path}")
    if len(header) == 1 and (separator := next((s for s in OTHERS if s in header[0]), None)):
        raise UserError(
            f"data.path={path}: its columns are separated by {separator!r}; use commas, and write"
            " numbers as in 1234.5"
        )
    if columns is None:
        raise UserError(
            f"data.columns=null: name the columns of data.path={path} to use; {_named(header)}"
        )
    indices = [_place(name, header, path) for name in columns]
    ordered, said = in_order(header, list(rows), f"data.path={path}")
    read = [_numbers(row, header, indices, path) for row in ordered]
    values = np.array(read, np.float64).reshape(len(read), len(indices))
    lines = [line for line, _ in ordered]
    for name, column in zip(columns, values.T, strict=True):
        said += _sentinels(column, lines, f"data.path={path}: column '{name}'")
    if len(values) > 2 and (values[-1] != 0).any() and np.allclose(values[:-1].sum(0), values[-1]):
        raise UserError(
            f"data.path={path}: line {lines[-1]}, the last, is the sum of all the others; leave it"
            " out"
        )
    return values, said


def _sentinels(values: NDArray[np.float64], lines: Sequence[int], shown: str) -> list[str]:
    """Raise UserError for a number such as -999, far from all others; return a remark on one such
    as 0 or -1 that occurs much more often than any other."""
    said = []
    numbers, counts = np.unique(values, return_counts=True)
    for number, count in zip(numbers.tolist(), counts.tolist(), strict=True):
        digits = f"{abs(number):.6f}".rstrip("0").replace(".", "")
        nines = len(digits) > 1 and not digits.strip("9")
        marks = nines or number in SENTINELS or abs(number) >= FILL
        if not (marks or number in PLAUSIBLE) or 2 * count >= len(values):
            continue
        others = values[values != number]
        low, high = others.min(), others.max()
        far = max(high - low, abs(low), abs(high)) / 2
        if marks and not low - far <= number <= high + far:
            found = [line for line, value in zip(lines, values, strict=True) if value == number]
            raise UserError(
                f"{shown}: {number:g} in {count:,} row(s), first in line {min(found)}, is far"
                f" from its other values ({low:g} to {high:g}) and marks a missing one; fill it in,"
                " or leave out the rows before it"
            )
        if count >= OFTEN * (most := counts[numbers != number].max()):
            said.append(
                f"{shown}: {number:g} in {count:,} of {len(values):,} rows, and no other value in"
                f" more than {most:,}; if it marks a missing one, fill it in"
            )
    return said


def _named(header: Sequence[str]) -> str:
    allowed = f"allowed: {', '.join(header)}"
    if all(map(is_number, header[1:] or header)):  # the first may be a date
        return (
            f"{allowed}; the first line contains numbers, so the file seems to have no header: add"
            " a line that names its columns"
        )
    return allowed


def _place(name: str, header: Sequence[str], path: str) -> int:
    """The index of a column."""
    if name not in header:
        raise UserError(
            f"data.columns: data.path={path} has no column '{name}' in its first row;"
            f" {_named(header)}{suggest(name, header)}"
        )
    if header.count(name) > 1:
        raise UserError(f"data.columns: data.path={path} has several columns '{name}'")
    return header.index(name)


def _numbers(row: Row, header: Sequence[str], indices: Sequence[int], path: str) -> list[float]:
    line, cells = row
    if len(cells) > len(header):
        raise UserError(
            f"data.path={path}: line {line} has {len(cells)} cells, the header has {len(header)}"
        )
    cells = cells + [""] * (len(header) - len(cells))
    return [
        _number(cells[at].strip(), f"line {line}, column '{header[at]}'", path) for at in indices
    ]


def _number(cell: str, where: str, path: str) -> float:
    if cell.lower() in MISSING:
        raise UserError(
            f"data.path={path}: {where}: the value is missing ('{cell}'); fill it in, or leave out"
            f" the rows before it"
        )
    try:
        number = float("" if "_" in cell else cell)  # Python reads 1_000, no other program does
    except ValueError:
        raise UserError(
            f"data.path={path}: {where}: '{cell}' is not a number; data.columns= takes columns of"
            f" numbers, written as in 1234.5"
        ) from None
    if not math.isfinite(number):
        raise UserError(f"data.path={path}: {where}: '{cell}' is not a finite number")
    return number
