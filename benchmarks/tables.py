"""Tables of measurements: Markdown that is printed or put into a page, and CSV files."""

import csv
from collections.abc import Iterable, Mapping, Sequence
from pathlib import Path

END = "<!-- end -->"


def row(*cells: object) -> str:
    return "| " + " | ".join(str(cell).replace("|", r"\|") for cell in cells) + " |"


def head(*names: str) -> str:
    return f"{row(*names)}\n{row(*['---'] * len(names))}"


def table(heads: Sequence[str], rows: Iterable[Sequence[object]]) -> str:
    return "".join(f"{line}\n" for line in [head(*heads), *(row(*cells) for cells in rows)])


def put(page: Path, start: str, *tables: str) -> None:
    """Replace the tables of a page between the lines `start` and END, in order."""
    before, *parts = page.read_text().split(start)
    for text, part in zip(tables, parts, strict=True):
        before += start + text + part[part.index(END) :]
    page.write_text(before)


def write(file: Path, rows: Sequence[Mapping[str, object]], fields: Sequence[str]) -> None:
    with file.open("w", newline="") as opened:
        writer = csv.DictWriter(opened, fields, lineterminator="\n")
        writer.writeheader()
        writer.writerows(rows)
