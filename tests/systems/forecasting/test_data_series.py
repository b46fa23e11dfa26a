"""data=series: which values are read and which are targets, and what a file may not hold."""

from datetime import date, timedelta

import numpy as np
import pytest
import torch
from make_data import everything, make, ready
from refusals import refused

import ablate
from ablate.errors import UserError

COUNT = 60
SMALL = {"window": 6, "horizon": 4, "val_fraction": 0.2, "test_fraction": 0.25, "batch_size": 4}
ENDS = {"train": 33, "val": 45, "test": 60}  # 60 - 12 - 15, 60 - 15, 60
PLACES = np.arange(float(COUNT))


@pytest.fixture
def series(tmp_path):
    """Of these columns, x and y."""

    def made(x, y, columns=("x",)):
        rows = [f"{one},{other}\n" for one, other in zip(x, y, strict=True)]
        (tmp_path / "series.csv").write_text("".join(["x,y\n", *rows]))
        return ready("series", path=str(tmp_path / "series.csv"), columns=[*columns], **SMALL)

    return made


@pytest.fixture
def counting(series):
    """A series whose values are their places, 0, 1, 2 .., and its negative in another column."""
    return series(PLACES, -PLACES)


def places(data, values):
    """Which values of `counting` they are."""
    found = data.restore(values)[..., 0]
    np.testing.assert_allclose(found, np.round(found), atol=1e-4)
    return np.round(found)


def test_the_default_is_the_sunspots_of_309_years():
    data = ready("series")
    spots = data.restore(data.values)[:, 0]
    assert len(spots) == 309
    # R. Wolf's first and the data center's last: 1700, 1701, 1705, 1957 (the highest), 2008.
    for year, value in {1700: 5.0, 1701: 11.0, 1705: 58.0, 1957: 190.2, 2008: 2.9}.items():
        assert spots[year - 1700] == pytest.approx(value, abs=1e-4)
        assert data.time(year - 1700) == str(year)
    assert spots.argmax() == 257
    assert data.period == 11
    assert data.sizes.arguments() == {"channels": 1, "length": data.window}
    labels = data.example(3)["labels"]
    assert len(labels) == data.window
    assert int(labels[-1]) == 1700 + data.starts["val"] + 2


def test_training_sees_every_stretch_of_the_training_part_once(counting):
    batch = everything(counting, "train")
    values, targets = (places(counting, batch[name]) for name in ("values", "targets"))
    firsts = np.arange(ENDS["train"] - SMALL["window"])
    np.testing.assert_array_equal(values, firsts[:, None] + np.arange(SMALL["window"]))
    np.testing.assert_array_equal(targets, values + 1)


@pytest.mark.parametrize(("before", "split"), [("train", "val"), ("val", "test")])
def test_every_value_of_a_split_is_a_target_once_and_no_other_is(counting, before, split):
    batch = everything(counting, split)
    targets = np.arange(ENDS[before], ENDS[split])[:, None]
    future = targets + np.arange(float(SMALL["horizon"]))
    future[future >= ENDS[split]] = np.nan  # another split's, or not there
    found = counting.restore(batch["future"])[..., 0]
    np.testing.assert_allclose(found, future, atol=1e-4)
    # The values before it, which may lie in the split before.
    values = places(counting, batch["values"])
    np.testing.assert_array_equal(values, targets + np.arange(-SMALL["window"], 0))


def test_normalisation_knows_the_training_part_alone(series):
    rng = np.random.default_rng(0)
    first = rng.normal(size=(COUNT, 2)) * [3, 50] + [1, -7]
    later = first.copy()
    later[ENDS["train"] :] *= 100
    training = first[: ENDS["train"]]
    one, other = (series(*values.T, columns=["x", "y"]) for values in (first, later))
    for data in (one, other):
        np.testing.assert_allclose(data.mean, training.mean(0), rtol=1e-12)
        np.testing.assert_allclose(data.deviation, training.std(0), rtol=1e-12)
    read = everything(one, "train")["values"]
    assert torch.equal(read, everything(other, "train")["values"])
    np.testing.assert_allclose(one.restore(one.values), first, rtol=1e-5, atol=1e-5)
    expected = (first[:6] - training.mean(0)) / training.std(0)
    np.testing.assert_allclose(read[0], expected, rtol=1e-5, atol=1e-6)


def test_of_another_file_every_value_after_a_window_is_measured(counting, tmp_path):
    data = make("series", path=str(tmp_path / "series.csv"), columns=["x"], **SMALL)
    data.measure_as(counting)
    data.whole = True
    data.setup()
    assert {split: data.length(split) for split in data.splits} == {"val": COUNT - SMALL["window"]}


def test_another_series_is_measured_with_the_runs_normalization(counting, tmp_path):
    other = make("series", **(SMALL | {"window": 12}))
    other.measure_as(counting)
    other.setup()
    assert (other.mean, other.deviation) == (counting.mean, counting.deviation)
    spots = other.restore(other.values)[:, 0]
    assert spots[1957 - 1700] == pytest.approx(190.2, abs=1e-3)
    two = make("series", path=str(tmp_path / "series.csv"), columns=["x", "y"], **SMALL)
    two.measure_as(counting)
    with pytest.raises(UserError, match=r"trained on 1 column\(s\), these are 2: x, y"):
        two.setup()


DAYS = [date(2019, 12, 1) + timedelta(days=n) for n in range(COUNT)]
WEEKS = [date(2018, 1, 1) + timedelta(weeks=n) for n in range(COUNT)]
MONTHS = [date(2000 + n // 12, n % 12 + 1, 1) for n in range(COUNT)]
# Header without the values, and the cells that say when each of 60 rows was.
WHEN = {
    "date": [day.isoformat() for day in DAYS],
    "day": [f"{day:%d.%m.%Y}" for day in DAYS],
    "American": [f"{day:%m/%d/%Y}" for day in DAYS],
    "British": [f"{day:%d/%m/%Y}" for day in DAYS],
    "in words": [f'"{day:%B %d, %Y}"' for day in DAYS],
    "ds": [f"{day:%Y%m%d}" for day in DAYS],
    "zone": [f"{day}T23:00:00-05:00" for day in DAYS],
    "month": [f"{month:%Y-%m}" for month in MONTHS],
    "quarter": [f"{1990 + n // 4}-Q{n % 4 + 1}" for n in range(COUNT)],
    "before": [f"Q{n % 4 + 1} {1990 + n // 4}" for n in range(COUNT)],
    "short": [f"{month:%b-%y}" for month in MONTHS],
    "date,time": [f"{DAYS[n // 24]},{n % 24:02}:00" for n in range(COUNT)],
    "date,hour": [f"{DAYS[n // 24]},{n % 24 + 1}" for n in range(COUNT)],
    "year,week": [",".join(map(str, day.isocalendar()[:2])) for day in WEEKS],
    "Year,Qtr": [f"{1990 + n // 4},Q{n % 4 + 1}" for n in range(COUNT)],
    "YEAR,MO,DY": [f"{day.year},{day.month},{day.day}" for day in DAYS],
    "Year": [str(1900 + n) for n in range(COUNT)],
    "year,month": [f"{month.year},{month:%b}" for month in MONTHS],
    "timestamp": [str(1_600_000_000 + 60 * n) for n in range(COUNT)],
}


def timed(folder, header, rows):
    """The values of a series in the order in which they are read."""
    (folder / "series.csv").write_text("\n".join([header, *rows]) + "\n")
    data = ready("series", path=str(folder / "series.csv"), columns=["x"], **SMALL)
    return data.restore(data.values)[:, 0].round(3).tolist()


@pytest.mark.parametrize("header", WHEN)
@pytest.mark.parametrize("order", ["newest first", "shuffled", "sorted"])
def test_times_order_the_rows_and_this_is_said(tmp_path, caplog, header, order):
    rows = [f"{n / 2},{when}" for n, when in enumerate(WHEN[header])]
    if order == "newest first":
        rows.reverse()
    elif order == "shuffled" and "/" not in rows[0]:  # day or month: only an order tells
        rows = [rows[n] for n in np.random.default_rng(0).permutation(COUNT)]
    given = [float(row.partition(",")[0]) for row in rows]
    assert timed(tmp_path, f"x,{header}", rows) == sorted(given)
    assert len(caplog.messages) == (given != sorted(given))
    assert all("they are sorted by column" in line for line in caplog.messages)


ROWS = [f"{day},{n}" for n, day in enumerate(DAYS)]


@pytest.mark.parametrize(
    ("header", "rows", "line"),
    [
        ("date,x", [*ROWS[:9], *ROWS[8:]], "1 row(s) repeat a time of column 'date', first 2019-"),
        ("date,x", [row for row in ROWS for _ in "ab"], "60 row(s) repeat a time"),  # of two shops
        ("date,x", [*ROWS, "Total,9000"], "line 62, column 'date': the row 'Total' sums up others"),
        ("date,x", [*ROWS, "mean:,30"], "the row 'mean:' sums up"),
        ("date,x", [*ROWS, ",9000"], "line 62, column 'date': '' is not a date"),
        ("date,x", [*ROWS[:4], "soon,4"], "line 6, column 'date': 'soon' is not a date"),
        ("x", [*map(str, range(COUNT)), "1770"], "line 62, the last, is the sum of all the others"),
        ("shop,x", [*(f"{n}th,{n}" for n in range(COUNT)), "Sum,7"], "row 'Sum' sums up"),
        ("date,x", [f"0{n % 9 + 1}/0{n % 7 + 1}/2020,{n}" for n in range(COUNT)],
         "'01/01/2020' may be a day and a month or the reverse"),
        *(("date,x", [*ROWS[:4], f"{DAYS[4]},{wrong}", *ROWS[5:]],
           f"column 'x': {float(wrong):g} in 1 row(s), first in line 6, is far from its")
          for wrong in ("-999", "-9999.0", "9999", "-99.9", "-32768", "1e20", "9.96921e+36")),
    ],
)  # fmt: skip
def test_rows_that_are_no_time_steps_are_refused(tmp_path, header, rows, line):
    with refused(line):
        timed(tmp_path, header, rows)


@pytest.mark.parametrize(
    ("header", "rows", "line"),
    [
        ("date,x", [*ROWS[:30], *ROWS[33:]], "1 of 56 steps of column 'date' are gaps, the lon"),
        ("n,x", [f"{-n},{n}" for n in range(COUNT)], "column 'n' decreases from row to row"),
        ("date,x", [f"{month},{n}" for n, month in enumerate(MONTHS)], None),  # of 28 to 31 days
        ("when,x", [f"Week {COUNT - n},{n}" for n in range(COUNT)],
         "column 'when' ('Week 60') is in no known form of a date, so rows keep the order"),
        ("when,x", [f"{n // 60:02}:{n % 60:02},{n}" for n in range(COUNT)], "'when' ('00:00')"),
        ("date,region,x", [row.replace(",", ",total,") for row in ROWS], None),
        ("date,x", [f"{day},{99 + n % 3}" for n, day in enumerate(DAYS)], None),
        ("step,x", [f"{n},{n}" for n in range(COUNT)], None),
        ("date,x", [f"{day},{n if n % 4 else -1}" for n, day in enumerate(DAYS)],
         "column 'x': -1 in 15 of 60 rows, and no other value in more than 1; if it marks a mi"),
        ("date,x", [f"{day},{n % 9 - 1}" for n, day in enumerate(DAYS)], None),  # of few values
    ],
)  # fmt: skip
def test_gaps_are_said_and_other_rows_are_read(tmp_path, caplog, header, rows, line):
    timed(tmp_path, header, rows)
    assert len(caplog.messages) == (line is not None)
    assert (line or "") in "".join(caplog.messages)


HAET = r"no column 'haet' in its first row; allowed: heat, y; did you mean 'heat'\?"
# Content of a file, the columns, and what the line says.
WRONG_FILES = [
    ("x,y\n1,2\n", None, r"data\.columns=null: name the columns of data\.path=.*allowed: x, y$"),
    ("heat,y\n1,2\n", ["haet"], HAET),
    (
        "0.0844\n0.1\n",
        None,
        r"allowed: 0\.0844; the first line contains numbers, .*no header: add",
    ),
    ("2020-01-01,1e3\n", ["x"], r"no column 'x' .*allowed: 2020-01-01, 1e3; .*seems to have no h"),
    ("\n\n", ["x"], r"the first row must name the columns"),
    ("x;y\n1,5;2\n", ["x"], r"columns are separated by ';'; use commas, and write numbers"),
    ("when,x\n2020-01,2\n", ["when"], r"line 2, column 'when': '2020-01' is not a number"),
    ('x,y\n"1,5",2\n', ["x"], r"line 2, column 'x': '1,5' is not a number; .* as in 1234\.5"),
    ("x,x\n1,2\n", ["x"], r"several columns 'x'"),
    ("x,y\n1,2\n3,warm\n", ["x", "y"], r"series\.csv: line 3, column 'y': 'warm' is not a number"),
    ("x,y\n1,2\n3\n5,6\n", ["y"], r"line 3, column 'y': the value is missing \(''\)"),
    ("x,y\n1,1_000\n", ["y"], r"'1_000' is not a number"),
    ("x,y\n1,1e400\n", ["y"], r"'1e400' is not a finite number"),
    ("x,y\n" + "1,1e200\n2,3\n" * 30, ["y"], r"has values too large"),
    ("x,y\n1,inf\n", ["y"], r"line 2, column 'y': 'inf' is not a finite number"),
    ("x,y\n1,2,3\n", ["x"], r"line 2 has 3 cells, the header has 2"),
    ('x,y\n1,"2\n', ["x"], r"line 2 is not valid CSV"),
    ("x\n" + "5\n" * 60, ["x"], r"column 'x' has the same value throughout the training part"),
    ("x\n1\n2\n", ["x"], r"data\.window=6: the training part of 2 values .*needs at least 7"),
]


@pytest.mark.parametrize(("content", "columns", "line"), WRONG_FILES)
def test_a_wrong_file_is_one_line(tmp_path, content, columns, line):
    (tmp_path / "series.csv").write_text(content)
    with pytest.raises(UserError, match=line) as caught:
        ready("series", path=str(tmp_path / "series.csv"), columns=columns, **SMALL)
    assert "\n" not in str(caught.value)


@pytest.mark.parametrize("count", [5, 6, 7])
def test_a_short_file_is_not_measured_whole(count, tmp_path):
    (tmp_path / "series.csv").write_text("x\n" + "\n".join(map(str, range(count))))
    data = make("series", path=str(tmp_path / "series.csv"), columns=["x"], **SMALL)
    data.whole = True
    with pytest.raises(UserError, match=rf"has {count} values, and data.window=6 with data.hori"):
        data.setup()


def test_what_files_may_look_like(tmp_path):
    """A byte order mark, quotes, spaces, lines of Windows, other columns, an end without a line."""
    rows = [f'"day, {n}", {n}.5 ,1e-1' for n in range(40)]
    file = tmp_path / "series.csv"
    file.write_bytes(("\ufeff" + "\r\n".join(['when, "x",y', *rows])).encode())
    data = ready("series", path=str(file), columns=["x"], **SMALL)
    np.testing.assert_allclose(data.restore(data.values)[:, 0], np.arange(40) + 0.5, rtol=1e-5)
    file.write_bytes(file.read_bytes() + b"\r\n\r\n\r\n")
    again = make("series", path=str(file), columns=["x"], **SMALL)
    assert again.fingerprint() == data.fingerprint()


def test_one_file_is_read() -> None:
    with refused("data.path=[a,b]: must be the path or URL of one file, or"):
        ablate.compose("data=series", "data.path=[a,b]")
