"""Dates: written as Babel does, each field where it is said to be, and read in one way only."""

from collections import defaultdict
from datetime import date, timedelta
from itertools import permutations, product

import numpy as np
import pytest
from babel.dates import format_date, get_month_names
from babel.localedata import locale_identifiers
from make_data import make, ready

from ablate.data import date_forms
from ablate.data.date_forms import ambiguous, fields_of, find_forms
from ablate.errors import UserError

STYLES = ["full", "long", "medium", "short"]
SPLITS = ["train", "val", "test"]
SMALL = {"train_examples": 600, "val_examples": 200, "test_examples": 200}


@pytest.fixture(scope="module")
def data():
    return ready("dates", **SMALL)


def form_of(locale, style):
    (form,) = find_forms([locale], [style], range(2015, 2017))
    return form


def days(year, count=365):
    return [date(year, 1, 1) + timedelta(n) for n in range(count)]


def read(locales, when):
    """The dates that a text names, by looking at what Babel writes for each."""
    named = defaultdict(set)
    for locale, style, day in product(locales, STYLES, when):
        named[format_date(day, style, locale)].add(day)
    return named


@pytest.mark.parametrize("every", [19, pytest.param(1, marks=pytest.mark.slow)])
def test_every_locale_is_written_as_babel_does(every):
    assert len(locale_identifiers()) > 500
    for locale, style in product(locale_identifiers()[::every], STYLES):
        form = form_of(locale, style)
        for day in (date(2015, 1, 9), date(2015, 5, 31), date(2016, 2, 29), date(2016, 12, 25)):
            written = form.text(fields_of(day, first_year=2015))
            assert written == format_date(day, style, locale), (locale, day)


# Counted by hand: first character and the one after the last of year, month and day.
BY_HAND = [
    ("en_US", "full", "Tuesday, March 3, 2015", (18, 22), (9, 14), (15, 16)),
    ("it_IT", "short", "03/03/15", (6, 8), (3, 5), (0, 2)),
    ("ja_JP", "full", "2015年3月3日火曜日", (0, 4), (5, 6), (7, 8)),
    ("ar_EG", "medium", "03\u200f/03\u200f/2015", (8, 12), (4, 6), (0, 2)),
    ("th_TH", "long", "3 มีนาคม ค.ศ. 2015", (14, 18), (2, 8), (0, 1)),
]


@pytest.mark.parametrize(("locale", "style", "text", "year", "month", "day"), BY_HAND)
def test_fields_stand_where_a_person_finds_them(locale, style, text, year, month, day):
    form, when = form_of(locale, style), fields_of(date(2015, 3, 3), first_year=2015)
    assert form.text(when) == text
    spans = form.spans(when)
    expected = [range(*year), range(*month), range(*day)]
    assert [spans["year"], spans["month"], spans["day"]] == expected


def test_a_form_is_found_once():
    forms = find_forms(["en_GB", "fr_FR", "fr", "pt_BR"], ["short"], range(2015, 2017))
    assert [(form.locale, form.pattern) for form in forms] == [("en_GB", "dd/MM/y")]


@pytest.mark.ci
def test_a_text_is_ambiguous_where_reading_all_texts_says_so(monkeypatch):
    locales = ["en_US", "es_ES", "it_IT", "ja_JP", "sv_SE", "hr_HR"]
    when = days(1915) + days(2014) + days(2015)
    forms = find_forms(locales, STYLES, range(1915, 2016))
    found, named = ambiguous(forms, when), read(locales, when)
    for form, row in zip(forms, found.tolist(), strict=True):
        for day, answer in zip(when, row, strict=True):
            text = format_date(day, form.style, form.locale)
            assert answer == (len(named[text]) > 1), text
    assert 0 < found.sum() < found.size
    # Hashes only say where to look: here a text's is the sum of its characters.
    monkeypatch.setattr(date_forms, "ODD", 1)
    assert (ambiguous(forms, when) == found).all()


def test_equal_texts_have_equal_hashes_however_they_are_cut_into_pieces():
    numbers = [fields_of(day, first_year=2015) for day in days(2015, 731)]
    columns = {field: np.array([n[field] for n in numbers]) for field in numbers[0]}
    for form in find_forms(["en_US", "ja_JP", "ko_KR"], STYLES, range(2015, 2017)):
        alone = [date_forms._hash(form.text(n))[0] for n in numbers]
        assert form.hashes(columns).tolist() == alone


# the data set


@pytest.mark.ci
def test_the_alignment_finds_what_the_target_says(data):
    months = defaultdict(set)
    for locale, width in product(data.locales, ("wide", "abbreviated")):
        for number, name in get_month_names(width, "format", locale).items():
            months[name].add(number)
    short = make("dates", **SMALL)
    short.max_length = 12
    short.setup()
    assert 0 < len(short.texts["train"]) < 600  # the others were dropped
    for of, split in [*((data, split) for split in SPLITS), (short, "train")]:
        for index, (source, target) in enumerate(of.texts[split]):
            links = of.alignment(split, index)
            assert "-".join(target[p.start : p.stop] for p, _ in links) == target
            year, month, day = (source[s.start : s.stop] for _, s in links)
            when = date.fromisoformat(target)
            assert int(day) == when.day
            assert year in (str(when.year), target[2:4])
            assert when.month in ([int(month)] if month.isdigit() else months[month])


def test_a_date_stays_in_its_split_whatever_is_chosen(data):
    other = ready(
        "dates", **SMALL, data_seed=1, locales=["sv_SE"], styles=["long"], years=[1900, 2000]
    )
    assert [len(data.texts[split]) for split in SPLITS] == [600, 200, 200]
    for one, far in permutations(SPLITS, 2):
        there = {pair.target for pair in data.texts[one]}
        for of in (data, other):
            assert there.isdisjoint(pair.target for pair in of.texts[far])


def test_no_text_comes_twice_or_has_two_readings():
    locales = ["en_US", "en_GB", "es_ES", "fr_FR"]
    data = ready("dates", **SMALL, locales=locales, years=[2011, 2012])
    named = read(locales, days(2011, 731))
    pairs = [pair for split in SPLITS for pair in data.texts[split]]
    assert len({source for source, _ in pairs}) == len(pairs)
    for source, target in pairs:
        assert named[source] == {date.fromisoformat(target)}
    assert any(source.count("/") for source, _ in pairs)


def test_a_format_that_says_more_than_a_date_is_refused(monkeypatch):
    """No locale of today has one."""
    monkeypatch.delitem(date_forms.LETTERS, "G")
    with pytest.raises(UserError, match=r"full dates of th_TH \(EEEE.* G y\) are not plain day"):
        find_forms(["th_TH"], ["full"], range(2015, 2016))
