"""The files that a report leaves: page, Markdown, LaTeX, CSV; words and numbers in them."""

import csv
import json
import math
import re
import shutil
import subprocess
import time
from html import unescape
from pathlib import Path
from statistics import fmean, stdev
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest
from make_study import BASE, MadeArm, arm, make_study, scores, shifted
from matplotlib.colors import to_rgb
from matplotlib.image import imread

from ablate.study.numbers import NOTHING, amount, decimals, duration, number, share, signed
from ablate.study.report import write, write_report
from ablate.study.report.figures import VERDICTS, around_zero
from ablate.study.report.inline import COLOURS
from ablate.study.report.points import Limits, limits_of
from ablate.study.report.tables import tex
from ablate.study.report.trouble import troubles


@pytest.fixture
def study(tmp_path: Path) -> Path:
    return scores(tmp_path)


def test_an_allowed_comparison_is_marked_everywhere(study: Path) -> None:
    assert not write(study, allow=["seeds"]).refusals
    for name in ("report.html", "report.md", "table.tex"):
        text = unescape((study / name).read_text())
        assert "in spite of the rule 'seeds'" in text, name


def test_the_first_thing_said_is_what_the_study_asks(tmp_path: Path) -> None:
    arms = {"baseline": arm(BASE), "a=1": arm(shifted(0.1))}
    study = make_study(tmp_path / "s", arms, asks="Does\n<a> matter? Nobody 2026,\nsection 3.")
    write(study)
    page, text = ((study / name).read_text() for name in ("report.html", "report.md"))
    assert '<p class="question">Does &lt;a&gt; matter?</p>' in page
    assert text.startswith("# s\n\nDoes \\<a> matter?\n\nNobody 2026, section 3.\n\nHow does ")


def test_names_and_questions_are_no_markup(tmp_path: Path) -> None:
    hostile = "<img/src=x/onerror=alert(1)>"
    arms = {
        "baseline": arm(BASE, changes={hostile: f"{hostile}a", "b": "0"}),
        f"{hostile}=2": arm(shifted(0.1), changes={hostile: "2", "b": "0"}),
        "b=1": arm(shifted(0.2), changes={hostile: f"{hostile}a", "b": "1"}),
        "both": arm(shifted(0.5), changes={hostile: "2", "b": "1"}),
    }
    arms["baseline"] = arm(BASE)
    factors = {hostile: {f"{hostile}a": [], "2": []}, "b": {"0": [], "1": []}}
    study = make_study(
        tmp_path / "s", arms, factors=factors, design="factorial", asks=f"Is {hostile} run?"
    )
    write(study)
    assert "<img/" not in (study / "report.html").read_text()


def test_what_went_wrong_is_reported(tmp_path: Path) -> None:
    arms = {"baseline": arm(BASE), "a=1": arm(["failed: killed by SIGKILL"] * 5)}
    study = make_study(
        tmp_path / "s",
        arms,
        illegal={"a=7": "needs heads"},
        excluded={"a=8 b=1": {"a": "8", "b": "1"}},
    )
    write(study)
    for name in ("report.html", "report.md"):
        text = (study / name).read_text().replace("\\_", "_")
        for words in ("killed by SIGKILL", "needs heads", "a=8 b=1", "all 5 seeds failed"):
            assert words in text, (name, words)


def texts_of(study: Path) -> list[str]:
    """Every text of a report: the page without its markup, and report.md without its escapes."""
    page = unescape(re.sub("<[^>]*>", "", (study / "report.html").read_text()))
    return [" ".join(page.split()), (study / "report.md").read_text().replace("\\", "")]


@pytest.mark.parametrize(
    ("points", "drawn", "says"),
    [
        ((8, 2), True, ["not shown"]),
        ((2, 4), True, []),  # both validations after the steep start
        ((1, 3), True, ["validated only once, so this is the training loss"]),
        ((1, 1), False, ["No learning curves: no finished run has recorded two values"]),
    ],
)
def test_learning_curves_say_what_they_show(
    tmp_path: Path, points: tuple[int, int], drawn: bool, says: list[str]
) -> None:
    arms = {"baseline": arm(BASE), "a=1": arm(shifted(0.1))}
    study = make_study(
        tmp_path / "s", arms, mode="max", validations=points[0], rows_per_validation=points[1]
    )
    write(study)
    page, text = texts_of(study)
    for said in ("not shown", "validated only once", "No learning curves"):
        wanted = any(said in one for one in says)
        assert [said in page, said in text] == [wanted, wanted], said
    assert all(one in page for one in says)
    assert (study / "figures" / "curves.png").exists() == drawn
    axis_of = "training loss (lower is better)" if points[0] == 1 else "loss (higher is better)"
    assert (axis_of in page) == drawn


def test_a_cut_is_where_values_are_out_of_sight(tmp_path: Path) -> None:
    study = make_study(tmp_path / "s", {"baseline": arm(BASE), "a=1": arm(shifted(0.1))})
    write(study)
    values = [line.split(",") for line in next(study.glob("*/metrics.csv")).read_text().split()]
    highest = max(float(row[2]) for row in values[1:] if row[2])
    (limit,) = re.findall(r"values above ([\d.]+), at the start, are not shown", texts_of(study)[1])
    assert 1.52 < float(limit) < highest


@pytest.mark.parametrize("design", ["one_factor", "factorial"])
def test_a_question_of_one_factor_is_a_sentence(tmp_path: Path, design: str) -> None:
    arms = {"baseline": arm(BASE), "model.norm=post": arm(shifted(0.1))}
    study = make_study(tmp_path / "s", arms, design=design)
    write(study)
    question = (
        "How does validation loss (val/loss, lower is better) of gpt on pydoc change with"
        " model.norm (pre → post)?"
    )
    assert all(question in text for text in texts_of(study))


def test_one_comparison_has_one_p(tmp_path: Path) -> None:
    """A grid of two options is one comparison; with a second factor the effects are averages."""
    noise = [0.0, 0.03, -0.02, 0.01, 0.02]
    other = [value + more for value, more in zip(shifted(0.02), noise, strict=True)]
    arms = {"baseline": arm(BASE), "model.norm=post": arm(other)}
    study = make_study(tmp_path / "one", arms, design="factorial")
    write(study)
    assert [len(re.findall(r"Holm p|F tests", text)) for text in texts_of(study)] == [0, 0]
    arms |= {"model.heads=8": arm(shifted(0.1)), "model.norm=post model.heads=8": arm(other)}
    study = make_study(tmp_path / "two", arms, design="factorial")
    write(study)
    assert all("The p values here are of F tests" in text for text in texts_of(study))


TOGETHER = "That the options of a differ while no arm that changes it alone is shown to differ"


@pytest.mark.parametrize(("spread", "said"), [(0.04, True), (0.004, False), (0.4, False)])
def test_options_that_differ_only_together_are_explained(
    tmp_path: Path, spread: float, said: bool
) -> None:
    """One option is as far above the baseline as the other is below it."""
    base, shifts = [1.5, 1.6, 1.4], {"a=1": [0.1, 0.1 - spread, 0.1 + spread],
                                     "a=2": [-0.1, -0.1 + spread, -0.1 - spread]}  # fmt: skip
    arms = {"baseline": arm(base)}
    arms |= {name: arm([*map(sum, zip(base, by, strict=True))]) for name, by in shifts.items()}
    study = make_study(tmp_path / "s", arms, design="factorial")
    written = write(study)
    kinds = {row.kind for row in written.report.others}
    assert (kinds == {"open"}) == (spread > 0.004)
    assert [TOGETHER in text for text in texts_of(study)] == [said] * 2


@pytest.mark.parametrize("others", [1, 2])
def test_intervals_are_said_to_be_uncorrected_beside_corrected_verdicts(
    tmp_path: Path, others: int
) -> None:
    arms = {f"a={n}": arm(shifted(n / 10)) for n in range(1, others + 1)}
    study = make_study(tmp_path / "s", {"baseline": arm(BASE), **arms})
    write(study)
    for text in texts_of(study):
        assert ("the intervals are not corrected" in text) == (others > 1)


@pytest.mark.parametrize(("by", "advised"), [(0.0005, False), (0.01, True)])
def test_seeds_are_advised_for_an_effect_that_is_seen(
    tmp_path: Path, by: float, advised: bool
) -> None:
    """A mean difference within its standard error is no effect to be shown."""
    other = [v + by + 0.02 * step for v, step in zip(BASE, (1, -1, 0, 1, -1), strict=True)]
    study = make_study(tmp_path / "s", {"baseline": arm(BASE), "a=1": arm(other)})
    report = write(study).report
    assert report.rows[1].kind == "open"
    assert ("seeds needed" in texts_of(study)[0]) == advised
    said = "seeds would be needed" if advised else "too small an effect to say how many seeds"
    assert said in report.rows[1].verdict


def told(page: str, arm: str) -> list[str]:
    """The rows of an arm in the page's tables, without their markup; the first is its result."""
    rows = re.findall(rf'<tr data-arm="{arm}">(.*?)</tr>', page, re.DOTALL)
    return [" ".join(unescape(re.sub("<[^>]*>", " ", row)).split()) for row in rows]


def test_an_arm_without_effect_is_reported(tmp_path: Path) -> None:
    arms = {
        "baseline": arm(BASE),
        "a=1": arm(BASE, no_effect=True),
        "a=2": arm(shifted(0.1)),
        "a=3": arm(BASE, no_effect=True, same_as="baseline"),  # told by whose runs they are
    }
    study = make_study(tmp_path / "s", arms)
    why = "the model is the baseline's: same parameters, same outputs at initialisation"
    row = ["a=1", NOTHING, "no effect", why]
    assert troubles(write(study).report) == [row]
    page, text = ((study / name).read_text() for name in ("report.html", "report.md"))
    assert f"| {' | '.join(row)} |" in text.splitlines()
    assert " ".join(row) in told(page, "a=1")
    results = {name: told(page, name)[0] for name in ("a=1", "a=2", "a=3")}
    assert [name for name, said in results.items() if "no effect" in said] == ["a=1", "a=3"]
    for shown in ("a=1 (no effect)", "a=2", "a=3 (no effect) (= baseline)"):
        assert f"\n| {shown} | 5 |" in text


@pytest.mark.parametrize(
    ("seeds", "said"),
    [
        (2, "2 seeds: sign-flip p at least 0.5; too few for any verdict; from 6 seeds on"),
        (
            5,
            "5 seeds: sign-flip p at least 0.0625; verdicts rest on the paired t test, which takes"
            " the differences to be normal; from 6 seeds on that test can reach 0.05.",
        ),
        (6, ""),
    ],
)
def test_seeds_too_few_for_the_level_are_a_warning_everywhere(
    tmp_path: Path,
    seeds: int,
    said: str,
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
) -> None:
    monkeypatch.setenv("COLUMNS", "100")
    values = [*BASE, 1.505][:seeds]
    other = [value + 0.1 + 0.002 * (n % 3) for n, value in enumerate(values)]
    study = make_study(tmp_path / "s", {"baseline": arm(values), "a=1": arm(other)})
    write_report(study)
    texts = [capsys.readouterr().out]
    texts += [unescape((study / name).read_text()) for name in ("report.html", "report.md")]
    for text in texts:
        flat = " ".join(text.split())
        assert said in flat
        assert ("sign-flip p at least" in flat) == bool(said)


def test_runs_csv_has_every_run_and_its_numbers(study: Path) -> None:
    write(study)
    with open(study / "runs.csv", newline="") as file:
        rows = list(csv.DictReader(file))
    assert len(rows) == 20
    for row in rows:
        result = study / row["folder"] / "result.json"
        if row["state"] == "finished":
            content = json.loads(result.read_text())
            assert float(row["val/loss"]) == content["metrics"]["val/loss"]
            assert int(row["flops_per_step"]) == content["flops_per_step"]
            assert row["choice/model.attention"] == content["choices"]["model.attention"]
        else:
            assert row["val/loss"] == ""
            assert (row["state"] == "failed") == ("NaN" in row["detail"])


def test_the_page_stands_by_itself_and_names_are_no_markup(tmp_path: Path) -> None:
    name = "data.path=<script>alert(1)</script>&\"'|`_x_`"
    made = {"baseline": arm(BASE), "odd": arm(shifted(0.1), changes={"data.path": name})}
    factors = {"data.path": {"baseline": [], name: []}}
    study = make_study(tmp_path / "s", made, factors=factors)
    write(study)
    page = (study / "report.html").read_text()
    assert "<script>alert" not in page
    assert re.findall(r'(?:src|href)="([^"#][^"]*)"', page) == ["data:,"]
    assert "url(" not in re.sub(r"url\(#\w+\)", "", page)
    assert "@import" not in page


def test_markdown_is_a_table_of_all_arms(study: Path) -> None:
    write(study)
    text = (study / "report.md").read_text()
    table = [line for line in text.splitlines() if line.startswith("|")]
    head = table[0].count("|")
    assert all(len(re.findall(r"(?<!\\)\|", line)) == head for line in table[:6])
    assert sum("model.attention=" in line for line in table[:6]) == 3
    for figure in re.findall(r"!\[[^]]*\]\(([^)]*)\)", text):
        assert (study / figure).read_bytes().startswith(b"\x89PNG")


def test_everything_tex_would_take_for_a_command_is_escaped() -> None:
    assert tex(r"a_b & 50% of $x^2 #{\~}") == (
        r"a\_b \& 50\% of \$x\textasciicircum{}2 \#\{\textbackslash{}\textasciitilde{}\}"
    )


ODD = r"data.path=a_b & 50%$x^2#{\~}<>"


def test_the_table_is_sound_latex(tmp_path: Path) -> None:
    arms = {
        "baseline": arm(BASE),
        ODD: arm(shifted(-0.1), changes={"data.path": ODD}),
        "a=2": arm([*BASE[:4], "failed: x_y & 7 %"]),
    }
    study = make_study(tmp_path / "under_score", arms)
    write(study)
    lines = (study / "table.tex").read_text().splitlines()
    rules = [line for line in lines if line.endswith("rule")]
    assert rules == [r"\toprule", r"\midrule", r"\bottomrule"]
    top, middle, bottom = map(lines.index, rules)
    (head,), rows = lines[top + 1 : middle], lines[middle + 1 : bottom]
    assert [row.partition(" & ")[0] for row in rows] == [
        "baseline",
        r"data.path=a\_b \& 50\%\$x\textasciicircum{}2\#\{\textbackslash{}\textasciitilde{}\}"
        r"\textless{}\textgreater{}",
        "a=2",
    ]
    assert all(row.endswith(r" \\") for row in (head, *rows))
    (columns,) = re.findall(r"\\begin\{tabular\}\{@\{\}([lr]+)@\{\}\}", "\n".join(lines))
    (caption,) = re.findall(r"\\caption\{(.*)\}$", "\n".join(lines), re.MULTILINE)
    cells = [row.removesuffix(r"\\") for row in (head, *rows)]
    for words, between in ((caption, 0), *((row, len(columns) - 1) for row in cells)):
        assert words.isascii()
        left = re.sub(r"\\[&%$#_{}]|\\text[a-z]+\{\}|\$(-|\\[a-z]+)\$", "", words)
        assert left.count("&") == between
        assert not set(left) & set("\\%$#_^~{}<>"), words


@pytest.mark.skipif(shutil.which("pdflatex") is None, reason="pdflatex is not installed")
def test_the_table_compiles(tmp_path: Path) -> None:
    made = {"baseline": arm(BASE), "odd": arm(shifted(-0.1), changes={"data.path": ODD})}
    factors = {"data.path": {"baseline": [], ODD: []}}
    study = make_study(tmp_path / "under_score", made, factors=factors)
    write(study)
    (tmp_path / "paper.tex").write_text(
        "\\documentclass{article}\\usepackage{booktabs}\\begin{document}"
        "\\input{under_score/table}\\end{document}"
    )
    typed = ["pdflatex", "-halt-on-error", "-interaction=nonstopmode", "paper.tex"]
    done = subprocess.run(typed, cwd=tmp_path, capture_output=True, text=True)
    assert done.returncode == 0, done.stdout[-2000:]


def pixels(figure: Path, colour: str, alpha: float = 1.0) -> int:
    """How many have that colour on white."""
    wanted = 1 - alpha * (1 - np.array(to_rgb(colour)))
    return int((abs(imread(figure)[..., :3] - wanted) < 0.01).all(axis=-1).sum())


def test_figures_show_the_arms(study: Path) -> None:
    write(study, allow=["seeds"])
    for name, colours in {
        "forest": (VERDICTS["worse"], VERDICTS["open"]),
        "curves": COLOURS[:3],
        "effects": COLOURS[:1],
        "cost": COLOURS[:3],
    }.items():
        counts = [pixels(study / "figures" / f"{name}.png", colour) for colour in colours]
        assert min(counts) > 50, (name, counts)


@pytest.mark.parametrize(
    ("other", "unknown", "drawn"),
    [
        (True, "", ["cost", "curves", "effects", "forest"]),
        (False, "", ["cost", "curves"]),  # no arm, no factor
        (True, "train_seconds", ["curves", "effects", "forest"]),
        (True, "metrics.csv", ["cost", "effects", "forest"]),
    ],
)
def test_what_has_nothing_to_show_is_not_drawn(
    tmp_path: Path, other: bool, unknown: str, drawn: list[str]
) -> None:
    arms = {"baseline": arm(BASE)} | ({"a=1": arm(shifted(0.1))} if other else {})
    study = make_study(tmp_path / "s", arms)
    for result in study.glob("*/result.json"):
        content = json.loads(result.read_text())
        content.pop(unknown, None)
        result.write_text(json.dumps(content))
        if unknown == "metrics.csv":
            (result.parent / unknown).unlink()
    (study / "figures").mkdir()
    (study / "figures" / "forest.png").write_bytes(b"of an earlier report")
    written = write(study)
    assert sorted(path.stem for path in (study / "figures").iterdir()) == drawn
    shown = re.findall(r"!\[.*\]\(figures/(\w+)\.png\)", (study / "report.md").read_text())
    assert sorted(shown) == [name for name in drawn if name in ("curves", "forest")]
    assert sorted(path.stem for path in written.files if path.suffix == ".png") == drawn


def test_a_curve_has_a_band_where_there_are_two_seeds(tmp_path: Path) -> None:
    """As high as two standard deviations; of one seed nothing is known."""
    values = {"baseline": BASE, "a=1": shifted(0.3), "a=2": [1.6]}
    study = make_study(tmp_path / "s", {name: arm(own) for name, own in values.items()})
    write(study)
    page = (study / "report.html").read_text()
    kinds = {"baseline": "base", "a=1": "c1", "a=2": "c2"}
    bands = {
        name: re.findall(
            rf'class="curve band {kind}" data-arm="{name}"><path d="M ([^Z"]*?) z', page
        )
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
        assert len(points) == 16  # 8 validations, there and back
        assert x == same
        assert below - above == pytest.approx(2 * stdev(values[name]) * unit, rel=0.03)
        assert (above + below) / 2 == pytest.approx(last(name), abs=0.2)
    assert pixels(study / "figures" / "curves.png", COLOURS[0], alpha=0.14) > 500


def test_names_are_no_formulas_and_no_control_characters(tmp_path: Path) -> None:
    odd = ("$x^2$", r"$\frac{$ & <b>", "a\x1bb")
    arms = {"baseline": arm(BASE)}
    arms |= {f"odd {n}": arm(shifted(n / 10), changes={"a": name}) for n, name in enumerate(odd, 1)}
    factors = {"a": {"baseline": [], **{name: [] for name in odd}}}
    study = make_study(tmp_path / "s", arms, factors=factors)
    write(study)
    texts = re.findall(r"<text [^>]*>([^<]*)</text>", (study / "report.html").read_text())
    for shown in ("$x^2$", r"$\frac{$ &amp; &lt;b&gt;", "a\ufffdb"):
        assert texts.count(shown) >= 2, shown  # beside its curve, and below its runs


def test_the_same_study_makes_the_same_page_and_no_id_twice(study: Path) -> None:
    pages = []
    for _ in range(2):
        write(study, allow=["seeds"])
        pages.append((study / "report.html").read_text())
    assert pages[0] == pages[1]
    ids = re.findall(r' id="([^"]*)"', pages[0])
    assert len(ids) == len(set(ids)) > 5
    assert set(re.findall(r'(?:href="|url\()#(\w+)', pages[0])) <= set(ids)


def test_a_crossed_design_tells_main_effects_and_the_interaction(tmp_path: Path) -> None:
    def cell(shift: float) -> MadeArm:
        return arm([v + shift + 1e-4 * (n * round(100 * shift) % 5) for n, v in enumerate(BASE)])

    arms = {
        "baseline": cell(0.0),
        "model.norm=post": cell(0.02),
        "schedule.warmup=0": cell(0.01),
        "model.norm=post schedule.warmup=0": cell(0.6),
    }
    study = make_study(tmp_path / "s", arms, design="factorial")
    write(study)
    page = (study / "report.html").read_text()
    assert "model.norm \u00d7 schedule.warmup: the step from pre to post is 0.5696" in page


def test_tuned_and_matched_values_are_shown(tmp_path: Path) -> None:
    made = arm(shifted(0.1), tuned={"optimizer.lr": 0.003}, set={"model.ffn_dim": 300})
    arms = {"baseline": arm(BASE), "a=1": made}
    study = make_study(tmp_path / "s", arms, tune={"optimizer.lr": [0.001, 0.003]})
    write(study)
    text = re.sub("</?span>", "", unescape((study / "report.html").read_text()))
    assert "optimizer.lr: 0.002 → 0.003 (tuned)" in text
    assert "the largest optimizer.lr=0.003: a larger one may be better still" in text
    assert "300 (matched to the baseline's budget)" in text
    assert "## How each arm was tuned" in (study / "report.md").read_text()
    with open(study / "runs.csv", newline="") as file:
        assert sum(row["kind"] == "tune" for row in csv.DictReader(file)) == 4


@pytest.mark.parametrize(
    "arms",
    [
        {"baseline": arm(BASE)},
        {"baseline": arm([1.0]), "a=1": arm([1.1])},
        {"baseline": arm([0.0, 0.0]), "a=1": arm([0.0, 0.0])},
        {"baseline": arm([1.0] * 3), "a=1": arm([2.0] * 3)},
        {"baseline": arm([-5.0, -5.1, -5.2]), "a=1": arm([1e9, 1.1e9, 1.2e9])},
        {"baseline": arm([1e-9, 2e-9, 3e-9]), "a=1": arm([2e-9, 3e-9, 5e-9])},
        {"baseline": arm(["failed: x"] * 3), "a=1": arm([1.0, 1.1, 1.2])},
        {"baseline": arm(BASE), "a=1": arm(BASE, same_as="baseline", no_effect=True)},
    ],
)
def test_odd_studies_are_reported(tmp_path: Path, arms: dict) -> None:
    study = make_study(tmp_path / "s", arms)
    for curve in list(study.glob("*/metrics.csv"))[:1]:
        curve.unlink()
    written = write(study)
    marks = re.findall(r'[=">,](?:nan|inf)\b', (study / "report.html").read_text())
    assert not marks
    assert all(path.stat().st_size for path in written.files)
    assert not list(study.rglob("*.tmp"))


@pytest.mark.parametrize(
    ("said", "words"),
    [
        (number(-0.5, 2), "\u22120.50"),
        (signed(0.0, 2), "0.00"),
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
def test_numbers_have_sensible_digits(said: str, words: str) -> None:
    assert said == words


@pytest.mark.parametrize("arms", [8, 9])
def test_beyond_eight_arms_a_plot_of_every_arm_stands_below_the_table(
    tmp_path: Path, arms: int
) -> None:
    made = {"baseline": arm(BASE), **{f"a={n}": arm(shifted(0.1 * n)) for n in range(1, arms + 1)}}
    study = make_study(tmp_path / "study", made)
    write(study)
    text = (study / "report.html").read_text()
    assert ("Forest plot of every arm" in text) == (arms > 8)
    assert text.count(": differences from the baseline") == 1 + (arms > 8)


def test_an_axis_holds_its_values() -> None:
    low, high = limits_of([0.013, 0.079, math.nan])
    assert low < 0.013 < 0.079 < high


def test_one_huge_effect_does_not_hide_the_others() -> None:
    def ends(*differences: float) -> Limits:
        rows = [
            SimpleNamespace(comparison=SimpleNamespace(difference=one, t_interval=None))
            for one in differences
        ]
        report: Any = SimpleNamespace(compared=rows)
        return around_zero(report)

    assert ends(0.01, -0.02, 0.015, 0.02, 5.0).inside(0.02)
    assert not ends(0.01, -0.02, 0.015, 0.02, 5.0).inside(5.0)
    assert ends(1.0, 5.0).inside(5.0)


@pytest.mark.slow
def test_ten_thousand_runs_take_at_most_a_minute(tmp_path: Path) -> None:
    arms = {f"model.dim={n}": arm([1.5 + (n * s % 7) / 99 for s in range(100)]) for n in range(99)}
    study = make_study(
        tmp_path / "big",
        {"baseline": arm([1.5 + s % 5 / 99 for s in range(100)]), **arms},
        validations=6,
        rows_per_validation=30,
    )
    started = time.process_time()  # other work on the machine does not count
    written = write(study)
    assert time.process_time() - started < 60
    assert len(written.report.study.runs) == 10_000
