"""Dates in the formats of many languages, and the same dates in ISO 8601.

    mardi 3 mars 2015  ->  2015-03-03

The formats are Babel's (date_forms.py). A text that the forms in use write for two dates is
ambiguous, such as 3/4/15 in American and Spanish, and is in no split. The remaining forms and dates
are sampled with equal probability, and no text twice.
"""

from collections.abc import Sequence
from datetime import MAXYEAR, date
from typing import Annotated, Any, ClassVar, Literal

import numpy as np
from numpy.typing import NDArray

from ablate.config.rules import Int, ListOf
from ablate.data.date_forms import Form, ambiguous, check_locale, fields_of, find_forms
from ablate.data.generated import Generated
from ablate.data.pairs import Link, Pair, Pairs
from ablate.data.split import three_way
from ablate.errors import UserError
from ablate.random.seeding import derive

TARGET = {"year": range(0, 4), "month": range(5, 7), "day": range(8, 10)}  # in 2015-03-03


class Dates(Generated, Pairs):
    """The split of a date depends only on the date, so that training has no date of validation or
    test in any language.
    """

    joint: ClassVar[bool] = False  # source and target have separate vocabularies

    def __init__(
        self,
        *,
        locales: Sequence[str],
        styles: Sequence[Literal["full", "long", "medium", "short"]],
        years: Annotated[Sequence[int], ListOf(Int(1), length=2)],
        **options: Any,
    ) -> None:
        super().__init__(**options)
        self.locales = _without_duplicates("locales", locales)
        for name in self.locales:
            check_locale(name)
        self.styles = _without_duplicates("styles", styles)
        self.first_year, self.last_year = years
        if not self.first_year <= self.last_year <= MAXYEAR:
            raise UserError(
                f"data.years=[{self.first_year}, {self.last_year}]: must be the first year and the"
                f" last, which is at most {MAXYEAR}"
            )

    def read(self) -> dict[str, list[Pair]]:
        first = date(self.first_year, 1, 1).toordinal()
        last = date(self.last_year, 12, 31).toordinal()
        days = [date.fromordinal(number) for number in range(first, last + 1)]
        forms = find_forms(self.locales, self.styles, range(self.first_year, self.last_year + 1))
        clear = ~ambiguous(forms, days)
        pairs: dict[str, list[Pair]] = {}
        self._drawn: dict[str, list[tuple[Form, date]]] = {}
        for split, numbers in three_way([day.isoformat().encode() for day in days]).items():
            self._require_clear(forms, clear[:, numbers])
            drawn = self._draw(split, forms, [days[n] for n in numbers], clear[:, numbers])
            pairs[split] = [Pair(text, day.isoformat()) for text, (_, day) in drawn.items()]
            self._drawn[split] = list(drawn.values())
        return pairs

    def alignment(self, split: str, index: int) -> list[Link]:
        """Links of year, month and day; weekdays and the text in between belong to none."""
        form, day = self._drawn[split][self.numbers[split][index]]
        spans = form.spans(self._fields(day))
        return [(positions, spans[field]) for field, positions in TARGET.items()]

    def _require_clear(self, forms: list[Form], clear: NDArray[np.bool_]) -> None:
        """Raise a UserError unless every form writes an unambiguous date in every split."""
        for form, names_one in zip(forms, clear, strict=True):
            if not names_one.any():
                raise UserError(
                    f"data.years=[{self.first_year}, {self.last_year}]: {form.style} dates of"
                    f" {form.locale} ({form.pattern}) can be read as other dates, so that a split"
                    " has none; take fewer years, or leave out that style or locale"
                )

    def _draw(
        self, split: str, forms: list[Form], days: list[date], clear: NDArray[np.bool_]
    ) -> dict[str, tuple[Form, date]]:
        """Distinct texts of these days, and the form and date of each."""
        count = self.counts[split]
        rng = np.random.default_rng(derive(self.data_seed, "dates", split))
        drawn: dict[str, tuple[Form, date]] = {}
        for cell in rng.permutation(np.flatnonzero(clear)):
            form, day = forms[cell // len(days)], days[cell % len(days)]
            drawn.setdefault(form.text(self._fields(day)), (form, day))
            if len(drawn) == count:
                return drawn
        raise UserError(
            f"data.{split}_examples={count}: data.locales, data.styles and data.years have only"
            f" {len(drawn)} texts for this split"
        )

    def _fields(self, day: date) -> dict[str, int]:
        return fields_of(day, first_year=self.first_year)


def _without_duplicates(key: str, names: Sequence[str]) -> list[str]:
    if twice := next((name for name in names if list(names).count(name) > 1), None):
        raise UserError(f"data.{key}: names {twice} twice")
    return list(names)
