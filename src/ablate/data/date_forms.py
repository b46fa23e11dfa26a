"""Date formats of many languages: their texts, the positions of the fields, and ambiguous dates.

The patterns and names are those of Unicode's CLDR (Unicode Technical Standard 35, part 4), as
provided by Babel. A form follows one pattern, such as "EEEE d MMMM y", and equals the output of
`babel.dates.format_date`, but is written piece by piece, so that the characters of each field are
known.
"""

from collections import defaultdict
from collections.abc import Sequence
from datetime import date
from itertools import product
from typing import NamedTuple

import numpy as np
from babel import Locale, UnknownLocaleError
from babel.dates import DateTimeFormat, tokenize_pattern
from babel.localedata import locale_identifiers
from numpy.typing import NDArray

from ablate.errors import UserError, suggest

ALIGNED = ("year", "month", "day")
SAME = "same"  # the field of pieces that do not depend on the date
# The field of each letter of a pattern. The era is the same for every date that Python has.
LETTERS = {
    "y": "year",
    "M": "month",
    "L": "month",
    "d": "day",
    "E": "weekday",
    "c": "weekday",
    "G": SAME,
}
ODD = 0x9E3779B97F4A7C15  # base of the polynomial hash: any large odd number


class Piece(NamedTuple):
    """One piece of a text: values[n] for dates whose `field` has number n."""

    field: str
    values: tuple[str, ...]


class Form(NamedTuple):
    """One way of writing dates; `locale` and `style` are the first that have it."""

    pieces: tuple[Piece, ...]
    pattern: str
    locale: str
    style: str

    def text(self, numbers: dict[str, int]) -> str:
        return "".join([values[numbers[field]] for field, values in self.pieces])

    def spans(self, numbers: dict[str, int]) -> dict[str, range]:
        """The character ranges of year, month, day and weekday."""
        spans, start = {}, 0
        for field, values in self.pieces:
            end = start + len(values[numbers[field]])
            if field != SAME:
                spans[field] = range(start, end)
            start = end
        return spans

    def hashes(self, columns: dict[str, NDArray[np.int64]]) -> NDArray[np.uint64]:
        """The hash of each date's text, combined from those of its pieces."""
        joined = np.zeros(len(columns[SAME]), np.uint64)
        for field, values in self.pieces:
            hashed, power = np.array([_hash(value) for value in values], np.uint64).T
            number = columns[field]
            joined = joined * power[number] + hashed[number]
        return joined


def fields_of(day: date, *, first_year: int) -> dict[str, int]:
    """The number that a date has in every field of a form."""
    return {
        "year": day.year - first_year,
        "month": day.month - 1,
        "day": day.day - 1,
        "weekday": day.weekday(),
        SAME: 0,
    }


def find_forms(locales: Sequence[str], styles: Sequence[str], years: range) -> list[Form]:
    """The distinct forms of these locales and styles; their first year has number 0."""
    examples = _examples(years)
    forms: dict[tuple[Piece, ...], Form] = {}
    for name, style in product(locales, styles):
        locale = Locale.parse(name)
        pattern = locale.date_formats[style].pattern
        tokens = tokenize_pattern(pattern)
        fields = [LETTERS.get(token[0]) for kind, token in tokens if kind == "field"]
        if None in fields or not all(fields.count(field) == 1 for field in ALIGNED):
            raise UserError(
                f"data.locales: Babel's {style} dates of {name} ({pattern}) are not plain day, "
                f"month and year; leave out that locale"
            )
        pieces = tuple(_piece(token, locale, examples) for _, token in tokens)
        forms.setdefault(pieces, Form(pieces, pattern, name, style))
    return list(forms.values())


def check_locale(name: str) -> None:
    """Raise a UserError unless a locale has Babel's spelling: equal runs need equal run ids."""
    known = locale_identifiers()
    if name in known:
        return
    try:  # CLDR resolves fr-FR, zh_CN and en_UK
        near = f"; did you mean '{Locale.parse(name.replace('-', '_'))}'?"
    except (ValueError, UnknownLocaleError):
        near = suggest(name, known) or "; write them as in fr_FR"
    raise UserError(f"data.locales: Babel has no locale {name!r}{near}")


def ambiguous(forms: Sequence[Form], days: Sequence[date]) -> NDArray[np.bool_]:
    """forms by dates: whether any form writes another of the dates in the same way.

    days: in order; their first year has number 0 in the forms.

    Equal texts have equal hashes, so texts are written and compared only if hashes collide.
    """
    first_year = days[0].year
    numbers = [fields_of(day, first_year=first_year) for day in days]
    columns = {field: np.array([n[field] for n in numbers]) for field in numbers[0]}
    hashes = np.stack([form.hashes(columns) for form in forms])
    dates_of: dict[str, set[int]] = defaultdict(set)
    cells: dict[str, list[tuple[int, int]]] = defaultdict(list)
    for cell in _collisions(hashes).tolist():
        form, day = divmod(cell, len(days))
        text = forms[form].text(numbers[day])
        dates_of[text].add(day)
        cells[text].append((form, day))
    result = np.zeros(hashes.shape, np.bool_)
    for text, dates in dates_of.items():
        if len(dates) > 1:
            result[tuple(zip(*cells[text], strict=True))] = True
    return result


def _examples(years: range) -> dict[str, list[date]]:
    """A date for each number of each field."""
    return {
        "year": [date(year, 1, 1) for year in years],
        "month": [date(2000, month, 1) for month in range(1, 13)],
        "day": [date(2000, 1, day) for day in range(1, 32)],
        "weekday": [date(2001, 1, day) for day in range(1, 8)],  # the first was a Monday
        SAME: [date(2000, 1, 1)],
    }


def _piece(token: str | tuple[str, int], locale: Locale, examples: dict[str, list[date]]) -> Piece:
    """One token of a pattern: characters, or a letter and how often it is repeated."""
    if isinstance(token, str):
        return Piece(SAME, (token,))
    letter, width = token
    field = LETTERS[letter]
    written = (DateTimeFormat(day, locale)[letter * width] for day in examples[field])
    return Piece(field, tuple(written))


def _hash(text: str) -> tuple[int, int]:
    """The polynomial hash of a text modulo 2**64, and the factor for the hash of a prefix."""
    value, power = 0, 1
    for character in text:
        value, power = value * ODD + ord(character), power * ODD
    return value % 2**64, power % 2**64


def _collisions(hashes: NDArray[np.uint64]) -> NDArray[np.int64]:
    """Flat indices, in forms by dates, whose hash also occurs at another date."""
    order = hashes.argsort(axis=None)
    same = np.diff(hashes.flat[order]) == 0
    other_date = np.diff(order % hashes.shape[1]) != 0
    group = np.concatenate([[0], np.cumsum(~same)])
    meets = np.zeros(len(order), np.bool_)
    meets[group[1:][same & other_date]] = True
    return order[meets[group]]
