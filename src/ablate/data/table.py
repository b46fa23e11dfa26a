"""Tables in CSV files, with a one-line UserError for every error in them."""

import csv
import io
from collections.abc import Iterator, Sequence

from ablate.data import source
from ablate.errors import UserError, suggest

Row = tuple[int, list[str]]  # the number of its last line in the file; its cells


def read_texts(path: str, columns: Sequence[str], *, key: str) -> list[Row]:
    """The cells of columns of text, and the numbers of their lines; a row without any is left out.

    path: a file of commas, or of tabs if it is called .tsv; plain or gzip, or a download.
    """
    shown = f"{key}={path}"
    header, rows = open_table(path, shown, key=key)
    for name in columns:
        if header.count(name) != 1:
            raise UserError(
                f"{shown}: needs one column '{name}' in its first row, which has"
                f" {', '.join(header)}{suggest(name, header)}"
            )
    read = []
    for line, cells in rows:
        if len(cells) > len(header):
            raise UserError(
                f"{shown}: line {line} has {len(cells)} cells, the header has {len(header)}; quote"
                " strings that contain the separator"
            )
        cells += [""] * (len(header) - len(cells))
        if any(cells):
            read.append((line, [cells[header.index(name)] for name in columns]))
    return read


def open_table(path: str, shown: str, *, key: str = source.KEY) -> tuple[list[str], Iterator[Row]]:
    """The names of the columns, and the rows below them."""
    text = source.text(source.read(path, key=key), path, key=key)
    tabs = path.partition("?")[0].lower().removesuffix(".gz").endswith(".tsv")
    rows = _rows(text.rstrip("\r\n"), shown, "\t" if tabs else ",")
    header = [name.strip() for name in next(rows, (0, []))[1]]
    if not any(header):
        raise UserError(f"{shown}: the first row must name the columns")
    return header, rows


def _rows(text: str, shown: str, separator: str) -> Iterator[Row]:
    csv.field_size_limit(2**31 - 1)  # the size of the file is limited
    reader = csv.reader(
        io.StringIO(text, newline=""), delimiter=separator, strict=True, skipinitialspace=True
    )
    try:
        for cells in reader:
            yield reader.line_num, cells
    except csv.Error as error:
        raise UserError(f"{shown}: line {reader.line_num} is not valid CSV ({error})") from None
