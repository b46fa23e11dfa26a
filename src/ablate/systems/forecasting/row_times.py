"""The order of a table's rows in time, by the column that contains it, and irregularities.

Such a column has dates, or numbers under a name such as time, or there are columns of years with
months and days, quarters or weeks. A cell that is not a time among others, a time that occurs twice
and a row of totals are rejected; rows out of order are sorted, and this and gaps are reported.
"""

import re
from collections.abc import Callable, Iterator, Sequence
from contextlib import suppress
from datetime import UTC, datetime, time, timedelta
from itertools import pairwise
from math import isfinite
from statistics import median

from ablate.data.table import Row
from ablate.errors import UserError

Time = datetime | float

DATES = [
    *("%d.%m.%Y", "%d.%m.%y", "%Y/%m/%d", "%m/%d/%Y", "%d/%m/%Y", "%m/%d/%y", "%d/%m/%y"),
    *("%d-%m-%Y", "%m-%d-%Y"),
    *("%Y-%m", "%Y/%m", "%m/%Y", "%b %Y", "%B %Y", "%b-%Y", "%Ym%m", "%b-%y", "%b%Y"),
    *("%d %b %Y", "%d %B %Y", "%d-%b-%Y", "%d-%b-%y", "%b %d, %Y", "%B %d, %Y", "%b %d %Y"),
]
CLOCKS = ["", " %H:%M", " %H:%M:%S", " %I:%M %p", " %I:%M:%S %p", "T%H:%M:%SZ"]
# Names of columns whose numbers are times; of parts of a date; and of rows that sum up others.
NUMBERED = {"time", "timestamp", "datetime", "date", "unixtime", "epoch", "t", "ts", "ds", "step"}
PARTS = ("year", "quarter", "month", "week", "day", "hour", "minute")
SHORT = {"yr": "year", "qtr": "quarter", "mo": "month", "dy": "day", "hr": "hour"}
TOTALS = {"total", "totals", "grand total", "subtotal", "sum", "average", "mean", "overall"}
LAST = r"^Q?([1-4])[-Q ]+(\d{4})$"  # quarters before their year
TRIED = 100  # rows that determine the form of a date
LONG = 1.5  # times the usual step: a longer one is a gap


def in_order(header: Sequence[str], rows: list[Row], shown: str) -> tuple[list[Row], list[str]]:
    """The rows, earliest first, and warnings on them. shown: the file, for messages."""
    _require_no_totals(header, rows, shown)
    if len(rows) < 2:
        return rows, []
    columns = [
        [cells[at].strip() if at < len(cells) else "" for _, cells in rows]
        for at in range(len(header))
    ]
    if (found := _times(header, columns, rows, shown)) is None:
        return rows, _suspicious(header, columns, shown)
    name, times = found
    order = sorted(range(len(rows)), key=times.__getitem__)
    doubled = [(a, b) for a, b in pairwise(order) if times[a] == times[b]]
    if doubled:
        first, second = doubled[0]
        raise UserError(
            f"{shown}: {len(doubled):,} row(s) repeat a time of {name}, first {_text(times[first])}"
            f" in lines {rows[first][0]} and {rows[second][0]}; a series has one row for each time"
            " step"
        )
    said = []
    if order != list(range(len(rows))):
        said.append(
            f"{shown}: the rows are not in order of time (line {rows[0][0]} has {_text(times[0])},"
            f" line {rows[-1][0]} {_text(times[-1])}); they are sorted by {name}"
        )
    steps = [_seconds(times[b]) - _seconds(times[a]) for a, b in pairwise(order)]
    usual = median(steps)
    if gaps := [n for n, step in enumerate(steps) if step > LONG * usual]:
        longest = max(gaps, key=steps.__getitem__)
        said.append(
            f"{shown}: {len(gaps):,} of {len(steps):,} steps of {name} are gaps, the longest from"
            f" {_text(times[order[longest]])} to {_text(times[order[longest + 1]])}; every row"
            " counts as the time step after the one before it"
        )
    return [rows[n] for n in order], said


def _suspicious(header: Sequence[str], columns: Sequence[Sequence[str]], shown: str) -> list[str]:
    """Warnings on columns that may be times: decreasing numbers, and texts of no known form."""
    said = []
    for name, cells in zip(header, columns, strict=True):
        if all(is_number(cell) for cell in cells):
            if all(float(a) > float(b) for a, b in pairwise(cells)):
                said.append(
                    f"{shown}: column '{name}' decreases from row to row; if the newest row is the"
                    " first, turn the file round: rows are read in order of time"
                )
        elif len(set(cells)) == len(cells) and all(re.search(r"\d", cell) for cell in cells):
            said.append(
                f"{shown}: column '{name}' ('{cells[0]}') is in no known form of a date, so rows"
                " keep the order of the file, which must be that of time; dates as in 2020-01-31"
                " are sorted"
            )
    return said


def _require_no_totals(header: Sequence[str], rows: list[Row], shown: str) -> None:
    for at, name in enumerate(header):
        named = [(line, cells[at]) for line, cells in rows if _cell(cells, at) in TOTALS]
        if named and 2 * len(named) < len(rows):  # else a category
            line, cell = named[0]
            raise UserError(
                f"{shown}: line {line}, column '{name}': the row '{cell.strip()}' sums up others;"
                " leave it out"
            )


def _cell(cells: Sequence[str], at: int) -> str:
    return cells[at].strip().strip(":").lower() if at < len(cells) else ""


def _times(
    header: Sequence[str], columns: Sequence[Sequence[str]], rows: Sequence[Row], shown: str
) -> tuple[str, list[Time]] | None:
    """The column's name, and the time of every row; None if there is none."""
    for name, cells in zip(header, columns, strict=True):
        if read := _reader(cells, name, shown):
            times: list[Time] = []
            for (line, _), cell in zip(rows, cells, strict=True):
                if (when := read(cell)) is None:
                    raise UserError(
                        f"{shown}: line {line}, column '{name}': '{cell}' is not a date, as the"
                        " others of its column are; leave the row out, or correct it"
                    )
                times.append(when)
            if len(set(times)) < len(times):
                times = _with_clock(times, header, columns)
            return f"column '{name}'", times
    return _of_parts(header, columns) or _numbered(header, columns)


def _with_clock(
    dates: list[Time], header: Sequence[str], columns: Sequence[Sequence[str]]
) -> list[Time]:
    """With the time of day, if another column has it."""
    for name, cells in zip(header, columns, strict=True):
        with suppress(ValueError):
            if _named(name) == "hour":
                return [
                    date + timedelta(hours=int(cell))
                    for date, cell in zip(dates, cells, strict=True)
                    if isinstance(date, datetime)
                ]
            clocks = [time.fromisoformat(cell) for cell in cells]
            if any(":" not in cell for cell in cells):
                continue
            return [
                datetime.combine(date, clock.replace(tzinfo=None))
                for date, clock in zip(dates, clocks, strict=True)
                if isinstance(date, datetime)
            ]
    return dates


def _reader(cells: Sequence[str], name: str, shown: str) -> Callable[[str], Time | None] | None:
    """The parser that reads most cells of a column as dates; None for other columns."""
    tried = cells[:TRIED]
    if all(is_number(cell) for cell in tried):
        named = name.strip().lower() in NUMBERED
        if not named or any(len(cell) != 8 for cell in tried):  # 20200131 may be a date
            return None
    readers = [_iso, *(_by(form) for form in _forms(tried))]
    counts = [sum(read(cell) is not None for cell in tried) for read in readers]
    if 2 * max(counts) <= len(tried):
        return None
    best = [read for read, n in zip(readers, counts, strict=True) if n == max(counts)]
    orders = [[read(cell) for cell in cells] for read in best]
    if len(best) == 1 or all(times == orders[0] for times in orders):
        return best[0]
    # Days and months may be exchanged: only one of the two is in order.
    for read, times in zip(best, orders, strict=True):
        known = [when for when in times if when is not None]
        if known in (sorted(known), sorted(known, reverse=True)):
            return read
    raise UserError(
        f"{shown}: column '{name}': '{cells[0]}' may be a day and a month or the reverse; write"
        " dates as in 2020-01-31"
    )


def _iso(cell: str) -> Time | None:
    with suppress(ValueError):
        if quarter := re.fullmatch(r"(\d{4})[-: ]?Q([1-4])", re.sub(LAST, r"\2Q\1", cell)):
            return datetime(int(quarter[1]), 3 * int(quarter[2]) - 2, 1)
        when = datetime.fromisoformat(cell)
        return when.astimezone(UTC).replace(tzinfo=None) if when.tzinfo else when
    return None


def _by(form: str) -> Callable[[str], Time | None]:
    def read(cell: str) -> Time | None:
        with suppress(ValueError):
            return datetime.strptime(cell, form)
        return None

    return read


def _forms(tried: Sequence[str]) -> Iterator[str]:
    """Those that read some of these cells."""
    for date in DATES:
        for clock in CLOCKS:
            read = _by(form := date + clock)
            if any(read(cell) is not None for cell in (tried[0], tried[-1])):
                yield form


def _of_parts(
    header: Sequence[str], columns: Sequence[Sequence[str]]
) -> tuple[str, list[Time]] | None:
    """Of years, months and days in separate columns."""
    places = {_named(name): at for at, name in enumerate(header)}
    parts = [part for part in PARTS if part in places]
    if "year" not in parts:
        return None
    with suppress(ValueError):
        numbers = [[_part(part, cell) for cell in columns[places[part]]] for part in parts]
        keys = [dict(zip(parts, row, strict=True)) for row in zip(*numbers, strict=True)]
        names = " and ".join(f"'{header[places[part]]}'" for part in parts)
        return f"column {names}", [_joined(**key) for key in keys]
    return None


def _named(header: str) -> str:
    """The part of a date that a column is, or its name."""
    name = header.strip().lower()
    return SHORT.get(name, name)


def _joined(
    *, year: int, quarter: int = 1, month: int | None = None, week: int | None = None,
    day: int = 1, hour: int = 0, minute: int = 0,
) -> datetime:  # fmt: skip
    if month is None and week is not None:
        start = datetime.fromisocalendar(year, week, 1)
    else:
        start = datetime(year, month or 3 * quarter - 2, day)
    return start.replace(hour=hour, minute=minute)


def _part(part: str, cell: str) -> int:
    if part == "month" and not cell.replace(".", "").isdigit():
        for form in ("%b", "%B"):
            with suppress(ValueError):
                return datetime.strptime(cell, form).month
    if (number := float(cell.lstrip("Q") if part == "quarter" else cell)) != int(number):
        raise ValueError(cell)
    return int(number)


def _numbered(
    header: Sequence[str], columns: Sequence[Sequence[str]]
) -> tuple[str, list[Time]] | None:
    for name, cells in zip(header, columns, strict=True):
        if name.strip().lower() in NUMBERED and all(is_number(cell) for cell in cells):
            return f"column '{name}'", [float(cell) for cell in cells]
    return None


def is_number(cell: str) -> bool:
    with suppress(ValueError):
        return isfinite(float(cell))
    return False


def _text(when: Time) -> str:
    return f"{when:.15g}" if isinstance(when, float) else str(when).removesuffix(" 00:00:00")


def _seconds(when: Time) -> float:
    return (when - datetime(1970, 1, 1)).total_seconds() if isinstance(when, datetime) else when
