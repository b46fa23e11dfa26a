"""The files that a report leaves: page, Markdown, LaTeX, CSV; words and numbers in them."""

import csv
import json
import re
import shutil
import subprocess
from html import unescape
from pathlib import Path
from statistics import fmean, stdev

import numpy as np
import pytest
from make_study import BASE, arm, make_study, shifted
from matplotlib.colors import to_rgb
from matplotlib.image import imread

from ablate.study.numbers import NOTHING, amount, decimals, duration, number, share, signed
from ablate.study.report import Written, write
from ablate.study.report.figures import VERDICTS
from ablate.study.report.inline import COLOURS


@pytest.fixture(scope="module")
def everything(tmp_path_factory: pytest.TempPathFactory) -> Written:
    """The report of a study with something of everything in it."""
    found = {"tuned": {"optimizer.lr": 0.003}, "set": {"model.ffn_dim": 300}}
    arms = {
        "baseline": arm(BASE),
        "a=1": arm(BASE, no_effect=True),
        "a=2": arm(shifted(0.1), **found),
        "a=3": arm(BASE, no_effect=True, same_as="baseline"),
        "a=4": arm(["failed: killed by SIGKILL"] * 5),
        "a=5": arm([*shifted(0.2)[:4], "failed: the loss became NaN"]),
    }
    study = make_study(
        tmp_path_factory.mktemp("made") / "everything",
        arms,
        asks="Does\n<a> matter? Nobody 2026,\nsection 3.",
        illegal={"a=7": "needs heads"},
        excluded={"a=8 b=1": {"a": "8", "b": "1"}},
        tune={"optimizer.lr": [0.001, 0.003]},
    )
    return write(study, allow=["seeds"])


def texts_of(study: Path) -> tuple[str, str]:
    """Every text of a report: the page without its markup, and report.md without its escapes."""
    page = unescape(
        re.sub("<[^>]*>", " ", re.sub("</?span>", "", (study / "report.html").read_text()))
    )
    return " ".join(page.split()), (study / "report.md").read_text().replace("\\", "")


NO_EFFECT = "the model is the baseline's: same parameters, same outputs at initialisation"


@pytest.mark.parametrize(
    "words",
    [
        "Does <a> matter?",
        "in spite of the rule 'seeds'",
        "all 5 seeds failed",
        "killed by SIGKILL",
        "needs heads",
        "a=8 b=1",
        NO_EFFECT,
        "optimizer.lr: 0.002 → 0.003 (tuned)",
        "the largest optimizer.lr=0.003: a larger one may be better still",
        "300 (matched to the baseline's budget)",
        "the intervals are not corrected",
        "5 seeds: sign-flip p at least 0.0625",
    ],
)
def test_page_and_markdown_say_it(everything, words):
    for text in texts_of(everything.report.study.folder):
        assert words in text


def test_arms_without_effect_are_told_from_others(everything):
    _, text = texts_of(everything.report.study.folder)
    for shown in ("a=1 (no effect)", "a=2", "a=3 (no effect) (= baseline)"):
        assert f"\n| {shown} | 5 |" in text
    assert f"\n| a=1 | {NOTHING} | no effect | {NO_EFFECT} |" in text


def test_runs_csv_has_every_run_once_and_its_numbers(everything):
    study = everything.report.study.folder
    with open(study / "runs.csv", newline="") as file:
        rows = list(csv.DictReader(file))
    assert [row["kind"] for row in rows].count("tune") == 12
    rows = [row for row in rows if row["kind"] != "tune"]
    assert len({row["folder"] for row in rows}) == len(rows) == 25
    assert {row["arm"] for row in rows if row["same_as"] == "a=3"} == {"baseline"}
    for row in rows:
        if row["state"] == "finished":
            content = json.loads((study / row["folder"] / "result.json").read_text())
            assert float(row["val/loss"]) == content["metrics"]["val/loss"]
            assert int(row["flops_per_step"]) == content["flops_per_step"]
            assert row["choice/model.attention"] == content["choices"]["model.attention"]
        else:
            assert (row["state"], row["val/loss"]) == ("failed", "")
            assert row["detail"]


def test_figures_show_the_arms_and_markdown_shows_the_figures(everything):
    study = everything.report.study.folder
    for name, colours in {
        "forest": (VERDICTS["worse"],),
        "curves": COLOURS[:2],
        "effects": COLOURS[:1],
        "cost": COLOURS[1:2],
    }.items():
        counts = [pixels(study / "figures" / f"{name}.png", colour) for colour in colours]
        assert min(counts) > 50, (name, counts)
    figures = re.findall(r"!\[[^]]*\]\(([^)]*)\)", (study / "report.md").read_text())
    assert all((study / figure).exists() for figure in figures)
    assert figures


def test_the_same_study_makes_the_same_page_and_no_id_twice(everything):
    folder = everything.report.study.folder
    page = (folder / "report.html").read_text()
    write(folder, allow=["seeds"])
    assert (folder / "report.html").read_text() == page
    ids = re.findall(r' id="([^"]*)"', page)
    assert len(ids) == len(set(ids)) > 5
    assert set(re.findall(r'(?:href="|url\()#(\w+)', page)) <= set(ids)


@pytest.mark.parametrize(
    "name", ["<script>alert(1)</script>&\"'|`_x_`<img/src=x/onerror=alert(1)>", "$x^2$a\x1bb"]
)
def test_names_are_no_markup_no_formulas_and_no_control_characters(tmp_path, name):
    made = {
        "baseline": arm(BASE),
        "odd": arm(shifted(0.1), changes={name: name}),
        "b=1": arm(shifted(0.2), changes={"b": "1"}),
        "both": arm(shifted(0.5), changes={name: name, "b": "1"}),
    }
    factors = {name: {"baseline": [], name: []}, "b": {"0": [], "1": []}}
    asks = f"Is {name} run?"
    study = make_study(tmp_path / "s", made, factors=factors, design="factorial", asks=asks)
    write(study)
    page = (study / "report.html").read_text()
    assert "<script>alert" not in page
    assert "<img/" not in page
    assert re.findall(r'(?:src|href)="([^"#][^"]*)"', page) == ["data:,"]
    assert not re.search(r"url\((?!#\w+\))|@import", page)
    text = (study / "report.md").read_text()
    assert not re.search(r"(?<!\\)<\w", text)
    table = [line for line in text.splitlines() if line.startswith("|")][:6]
    assert len({len(re.findall(r"(?<!\\)\|", line)) for line in table}) == 1
    shown = [unescape(one) for one in re.findall(r"<text [^>]*>([^<]*)</text>", page)]
    assert any(name[:20].replace("\x1b", "\ufffd") in one for one in shown)  # in its charts


ODD = r"data.path=a_b & 50%$x^2#{\~}<>"


@pytest.fixture
def latex(tmp_path: Path) -> Path:
    """The table of a study whose names TeX would take for commands."""
    arms = {
        "baseline": arm(BASE),
        ODD: arm(shifted(-0.1), changes={"data.path": ODD}),
        "a=2": arm([*BASE[:4], "failed: x_y & 7 %"]),
    }
    write(make_study(tmp_path / "under_score", arms))
    return tmp_path / "under_score" / "table.tex"


def test_names_are_no_commands_of_tex(latex):
    lines = latex.read_text().splitlines()
    rows = [line for line in lines if line.endswith(r" \\")][1:]
    assert [row.partition(" & ")[0] for row in rows] == [
        "baseline",
        r"data.path=a\_b \& 50\%\$x\textasciicircum{}2\#\{\textbackslash{}\textasciitilde{}\}"
        r"\textless{}\textgreater{}",
        "a=2",
    ]


@pytest.mark.skipif(shutil.which("pdflatex") is None, reason="pdflatex is not installed")
def test_the_table_compiles(latex):
    (latex.parent / "paper.tex").write_text(
        "\\documentclass{article}\\usepackage{booktabs}\\begin{document}\\input{table}\\end{document}"
    )
    typed = ["pdflatex", "-halt-on-error", "-interaction=nonstopmode", "paper.tex"]
    done = subprocess.run(typed, cwd=latex.parent, capture_output=True, text=True)
    assert done.returncode == 0, done.stdout[-2000:]


@pytest.mark.parametrize(
    ("points", "drawn", "says"),
    [
        ((8, 2), True, "not shown"),
        ((2, 4), True, ""),  # both validations after the steep start
        ((1, 3), True, "validated only once"),
        ((1, 1), False, "No learning curves"),
    ],
)
def test_learning_curves_say_what_they_show(tmp_path, points, drawn, says):
    arms = {"baseline": arm(BASE), "a=1": arm(shifted(0.1))}
    made = {"validations": points[0], "rows_per_validation": points[1]}
    study = make_study(tmp_path / "s", arms, mode="max", **made)
    write(study)
    for text in texts_of(study):
        notes = ("not shown", "validated only once", "No learning curves")
        assert [note for note in notes if note in text] == [says] * bool(says)
    assert (study / "figures" / "curves.png").exists() == drawn


def test_a_curve_has_a_band_where_there_are_two_seeds(tmp_path):
    """As high as two standard deviations; of one seed nothing is known."""
    values = {"baseline": BASE, "a=1": shifted(0.3), "a=2": [1.6]}
    study = make_study(tmp_path / "s", {name: arm(own) for name, own in values.items()})
    write(study)
    page = (study / "report.html").read_text()
    kinds = {"baseline": "base", "a=1": "c1", "a=2": "c2"}
    bands = {
        name: re.findall(rf'class="curve band {kind}" [^>]*><path d="M ([^Z"]*?) z', page)
        for name, kind in kinds.items()
    }
    assert [len(bands[name]) for name in values] == [1, 1, 0]

    def last(name: str) -> float:
        body = re.findall(rf'<g class="curve {kinds[name]}" .*?</g></g>', page)[0]
        return float(re.findall(r'<use x="[\d.]*" y="([\d.]*)"', body)[-1])

    unit = (last("baseline") - last("a=1")) / (fmean(values["a=1"]) - fmean(BASE))  # in points
    for name in ("baseline", "a=1"):
        points = [tuple(map(float, point.split())) for point in bands[name][0].split("L")]
        (x, above), (same, below) = sorted(points[7:9], key=lambda point: point[1])
        assert (len(points), x) == (16, same)  # 8 validations, there and back
        assert below - above == pytest.approx(2 * stdev(values[name]) * unit, rel=0.03)
        assert (above + below) / 2 == pytest.approx(last(name), abs=0.2)
    assert pixels(study / "figures" / "curves.png", COLOURS[0], alpha=0.14) > 500


def pixels(figure: Path, colour: str, alpha: float = 1.0) -> int:
    """How many have that colour on white."""
    wanted = 1 - alpha * (1 - np.array(to_rgb(colour)))
    return int((abs(imread(figure)[..., :3] - wanted) < 0.01).all(axis=-1).sum())


def test_what_has_nothing_to_show_is_not_drawn(tmp_path):
    study = make_study(tmp_path / "s", {"baseline": arm(BASE)})
    for curve in study.glob("*/metrics.csv"):
        curve.unlink()
    (study / "figures").mkdir()
    (study / "figures" / "forest.png").write_bytes(b"of an earlier report")
    written = write(study)
    assert [path.name for path in (study / "figures").iterdir()] == ["cost.png"]
    assert [path.name for path in written.files if path.suffix == ".png"] == ["cost.png"]


def test_one_comparison_has_one_p(tmp_path):
    """A grid of two options is one comparison; with a second factor the effects are averages."""
    noise = [0.0, 0.03, -0.02, 0.01, 0.02]
    other = [value + more for value, more in zip(shifted(0.02), noise, strict=True)]
    arms = {"baseline": arm(BASE), "model.norm=post": arm(other)}
    study = make_study(tmp_path / "one", arms, design="factorial")
    write(study)
    assert [len(re.findall(r"Holm p|F tests", text)) for text in texts_of(study)] == [0, 0]
    arms |= {"model.heads=8": arm(shifted(0.1)), "model.norm=post model.heads=8": arm(shifted(0.6))}
    study = make_study(tmp_path / "two", arms, design="factorial")
    write(study)
    for text in texts_of(study):
        assert "The p values here are of F tests" in text
        assert "model.norm × model.heads: the step from pre to post is 0.4" in text  # noqa: RUF001


@pytest.mark.parametrize(("spread", "said"), [(0.04, True), (0.004, False), (0.4, False)])
def test_options_that_differ_only_together_are_explained(tmp_path, spread, said):
    """One option is as far above the baseline as the other is below it."""
    base, shifts = [1.5, 1.6, 1.4], {"a=1": [0.1, 0.1 - spread, 0.1 + spread],
                                     "a=2": [-0.1, -0.1 + spread, -0.1 - spread]}  # fmt: skip
    arms = {"baseline": arm(base)}
    arms |= {name: arm([*map(sum, zip(base, by, strict=True))]) for name, by in shifts.items()}
    study = make_study(tmp_path / "s", arms, design="factorial")
    kinds = {row.kind for row in write(study).report.others}
    assert (kinds == {"open"}) == (spread > 0.004)
    together = "the options of a differ while no arm that changes it alone is shown to differ"
    assert [together in text for text in texts_of(study)] == [said] * 2


@pytest.mark.parametrize(
    ("base", "other"),
    [
        ([1.0], [1.1]),
        ([0.0, 0.0], [0.0, 0.0]),
        (["failed: x"] * 3, [1.0, 1.1, 1.2]),
        pytest.param([1.0] * 3, [2.0] * 3, marks=pytest.mark.slow),
        pytest.param([-5.0, -5.1, -5.2], [1e9, 1.1e9, 1.2e9], marks=pytest.mark.slow),
        pytest.param([1e-9, 2e-9, 3e-9], [2e-9, 3e-9, 5e-9], marks=pytest.mark.slow),
    ],
)
def test_odd_studies_are_reported(tmp_path, base, other):
    study = make_study(tmp_path / "s", {"baseline": arm(base), "a=1": arm(other)})
    next(study.glob("*/metrics.csv")).unlink()
    written = write(study)
    assert not re.findall(r'[=">,](?:nan|inf)\b', (study / "report.html").read_text())
    assert all(path.stat().st_size for path in written.files)
    assert not list(study.rglob("*.tmp"))


@pytest.mark.parametrize(
    ("said", "words"),
    [
        (number(-0.5, 2), "\u22120.50"),
        (signed(-0.001, 2), "0.00"),
        (signed(1234.5, 1), "+1,234.5"),
        (share(0.0312), "+3.1 %"),
        (share(-1.5), "\u2212150 %"),
        (amount(814_720), "815 k"),
        (amount(2.1e12), "2.1 T"),
        (duration(18.31), "18.3 s"),
        (duration(7805), "2 h 10 min"),
        (duration(1e6), "11.5 days"),
        (str(decimals([1.5, 1.6], [0.012, 0.03])), "3"),
        (str(decimals([1234.0], [None])), "0"),
    ],
)
def test_numbers_have_sensible_digits(said, words):
    assert said == words
