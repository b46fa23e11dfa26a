"""The files that a report leaves: page, Markdown, LaTeX, CSV; words and numbers in them."""

import csv
import json
import re
import shlex
import shutil
import subprocess
from html import unescape
from html.parser import HTMLParser
from urllib.parse import unquote

import numpy as np
import pytest
from make_study import BASE, CONFIG, arm, change, make_study, shifted
from matplotlib.colors import to_rgb
from matplotlib.image import imread, imsave

from ablate.study.analysis.collect import collect
from ablate.study.analysis.rows import assemble
from ablate.study.numbers import NOTHING, amount, apart, decimals, duration, number, share, signed
from ablate.study.report import write
from ablate.study.report.chart_data import gather, robust
from ablate.study.report.content import content
from ablate.study.report.figures import BEYOND, VERDICTS
from ablate.study.report.inline import COLORS
from ablate.study.report.render import latex
from ablate.study.report.sentences import commands, settings

pytest_plugins = ["make_study"]
quickly = pytest.mark.usefixtures("no_pdf")


@pytest.fixture(scope="module")
def everything(tmp_path_factory):
    """The folder of a reported study with something of everything in it."""
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
        tune={"optimizer.lr": [0.001, 0.003]},
        asks="Does\n<a> matter? Nobody 2026,\nsection 3.",
        illegal=[{"arm": "a=7", "reason": "needs heads"}],
        excluded=[{"arm": "a=8 b=1", "by": {"a": "8", "b": "1"}}],
    )
    write(study, allow=["seeds"])
    return study


def texts_of(study):
    """Every text of a report: the page without its markup, and report.md without its escapes."""
    page = re.sub("<[^>]*>", " ", re.sub("</?span>", "", (study / "report.html").read_text()))
    return " ".join(unescape(page).split()), (study / "report.md").read_text().replace("\\", "")


NO_EFFECT = "the model is the baseline's: same parameters, same initial outputs"


def test_page_and_markdown_say_everything(everything):
    for text in texts_of(everything):
        for words in (
            "Does <a> matter?",
            "despite the rule 'seeds'",
            "all 5 seeds failed",
            "killed by SIGKILL",
            "needs heads",
            "a=8 b=1",
            NO_EFFECT,
            "optimizer.lr: 0.002 → 0.003 (tuned)",
            "the largest optimizer.lr=0.003: a larger one may be better still",
            "300 (matched to the baseline's budget)",
            "so an interval excludes zero exactly if a difference is shown",
        ):
            assert words in text
    (row,) = re.findall(r"^\| a=2 \| 5 .*$", text, re.MULTILINE)
    assert row.count(" to ") == 1  # the interval, which the verdict does not repeat
    for shown in ("a=1 (no effect)", "a=2", "a=3 (no effect) (= baseline)"):
        assert f"\n| {shown} | 5 |" in text
    assert f"\n| a=1 | {NOTHING} | no effect | {NO_EFFECT} |" in text


def test_the_length_of_a_training_by_epochs_is_in_epochs(tmp_path):
    for trainer, said in (
        ({"max_steps": -1, "max_epochs": 4}, "trainer.max_epochs=4"),
        ({"max_steps": 400, "max_epochs": None}, "trainer.max_steps=400"),
    ):
        config = {"config": CONFIG | {"trainer": trainer}}
        study = make_study(tmp_path / said, {"baseline": arm(BASE)}, baseline=config)
        assert [w for w in settings(assemble(collect(study))).split() if "trainer." in w] == [said]


def test_commands_can_be_pasted_into_a_shell(tmp_path):
    typed = ["data.path='my ä, 1=2.txt'", "study.tune={optimizer.lr: [1e-3, 1e-2]}", "-m"]
    study = make_study(tmp_path / "a b", {"baseline": arm(BASE), "a=$x": arm(BASE)}, command=typed)
    run, again = map(shlex.split, commands(assemble(collect(study).rebased("a=$x"))))
    assert run == ["python", "-m", "ablate", *typed]
    assert again == ["python", "-m", "ablate.report", str(study), "--baseline", "a=$x"]


def test_runs_csv_has_every_run_once_and_its_numbers(everything):
    with open(everything / "runs.csv", newline="") as file:
        every = list(csv.DictReader(file))
    rows = [row for row in every if row["kind"] != "tune"]
    assert (len(every) - 12, len({row["folder"] for row in rows})) == (25, 25)
    assert {row["arm"] for row in rows if row["same_as"] == "a=3"} == {"baseline"}
    for row in rows:
        content = json.loads((everything / row["folder"] / "result.json").read_text())
        if row["state"] == "finished":
            assert float(row["val/loss"]) == content["metrics"]["val/loss"]
            assert int(row["flops_per_step"]) == content["flops_per_step"]
            if "=" in row["arm"]:
                factor, option = row["arm"].split("=")
                assert row[factor] == option
            assert row["choice/model.attention"] == content["choices"]["model.attention"]
        else:
            assert (row["state"], row["val/loss"], row["detail"] > "") == ("failed", "", True)


def test_figures_show_the_arms_and_markdown_shows_the_figures(everything):
    shown = {"forest": VERDICTS["worse"], "effects": COLORS[0], "cost": COLORS[1],
             "curves": COLORS[0]}  # fmt: skip
    for name, color in shown.items():
        pixels = imread(everything / "figures" / f"{name}.png")[..., :3]
        assert (abs(pixels - to_rgb(color)) < 0.01).all(axis=-1).sum() > 50, name
    shown = re.findall(r"!\[[^]]*\]\(([^)]*)\)", (everything / "report.md").read_text())
    assert shown
    assert all((everything / figure).exists() for figure in shown)


@quickly
def test_the_same_study_makes_the_same_page_and_no_id_twice(everything):
    page = (everything / "report.html").read_text()
    write(everything, allow=["seeds"])
    assert (everything / "report.html").read_text() == page
    ids = re.findall(r' id="([^"]*)"', page)
    assert len(ids) == len(set(ids)) > 5
    assert set(re.findall(r'(?:href="|url\()#(\w+)', page)) <= set(ids)


@pytest.mark.ci
@quickly
def test_the_page_has_what_the_arms_drew_and_wrote(tmp_path):
    """Of the first finished seed, small, with links to the files; damaged ones are left out."""
    failed = ["failed: x", *BASE[1:]]
    arms = {"baseline": arm(failed), "a=1": arm(BASE), "a=2": arm(BASE), "a=3": arm([None] * 5)}
    study = make_study(tmp_path / "s", arms | {"a=4": arm(BASE, fingerprint="other data")})
    imsave(tmp_path / "drawn.png", np.random.rand(1200, 1200))
    for folder in study.glob("*-*"):
        (folder / "figures").mkdir()
        (folder / "sample.txt").write_text(f"{folder.name} {'x' * 700}")
        for name in ("attention_layer_01.png", "curves.png"):
            shutil.copy(tmp_path / "drawn.png", folder / "figures" / name)
        page = f"https://wandb.ai/me/it/runs/{folder.name[-12:]}"
        change(folder / "result.json", logged_to=page)
    for folder in study.glob("a=2-*"):
        (folder / "figures" / "attention_layer_01.png").write_bytes(b"\x89PNG\r\n\x1a\n damaged")
    write(study, allow=["seeds"])
    page = Page((study / "report.html").read_text())
    images = [to for to in page.links if to.startswith("data:image")]
    assert len(images) == 3
    assert max(map(len, images)) < 400_000
    whole = {to for to in page.links if to.endswith(("png", "txt"))}
    first = {run.arm: run.folder.name for run in reversed(collect(study).runs) if run.finished}
    assert whole == {
        *(f"{first[arm]}/figures/attention_layer_01.png" for arm in ("baseline", "a=1", "a=4")),
        *(f"{folder}/sample.txt" for folder in first.values()),
    }
    of_wandb = {to for to in page.links if to.startswith("https:")}
    assert len(of_wandb) == 20


@pytest.mark.ci
@quickly
def test_another_metric_or_baseline_has_files_of_its_own(tmp_path):
    both = [{"val/loss": v, "val/perplexity": 2 * v} for v in BASE]
    study = make_study(tmp_path / "s", {"baseline": arm(both), "a=b/c": arm(both)})
    first = {path: path.read_bytes() for path in write(study).files}
    choices = [{"metric": "val/perplexity"}, {"baseline": "a=b/c"}, {"mode": "max"}]
    for options, name in zip(choices, ("val_perplexity", "a=b_c", "max"), strict=True):
        other = write(study, **options).files
        assert {*other} & {*first} == {study / "runs.csv"}
        assert len(other) == len(first)
        assert all(name in path.name for path in other if path.name != "runs.csv")
        ((option, value),) = options.items()
        text = (study / f"report-{name}.md").read_text()
        assert f"python -m ablate.report {study} --{option} {value}" in text
        assert f"(figures/forest-{name}.png)" in text
    assert first == {path: path.read_bytes() for path in first}


# Texts that are markup, code or a formula where they are not escaped.
HOSTILE = (
    "</style></title><script>hacked = 1</script><base href=https://example.org/>",
    "\" onmouseover=hacked=1 style=background:url(https://example.org/x) x='",
    "[x](javascript:hacked=1) ![x](https://example.org/x) ```\n<img/src=x onerror=hacked=1>",
    "&lt;img src=x&gt; {{7*7}} ${7*7} $x^2$ \u2028 a\x1bb | `_x_`",
)
OURS = """html head meta link title style body main div script h1 h2 p section ul li b dl dt dd
    details summary pre code table thead tbody tr th td button span wbr figure
    a h3 img figcaption svg g path use defs clippath rect circle line polygon text tspan"""


class Page(HTMLParser):
    """The tags, attributes and links of a page as a browser finds them."""

    def __init__(self, text):
        super().__init__()
        self.tags, self.scripts, self.events, self.links = set(), [], [], []
        self.feed(text)

    def handle_starttag(self, tag, attrs):
        self.tags.add(tag)
        self.events += [name for name, _ in attrs if name.startswith("on")]
        self.links += [value for name, value in attrs if name in ("href", "src")]

    def handle_data(self, data):
        self.scripts += [data] * (self.lasttag == "script")


@quickly
@pytest.mark.parametrize(
    "hostile",
    [*HOSTILE[:2], *(pytest.param(text, marks=pytest.mark.ci) for text in HOSTILE[2:])],
)
def test_no_text_becomes_markup(tmp_path, hostile):
    """A hostile text in every field that a study, its runs and their files hold."""
    kept = dict.fromkeys(("commit", "source", "host", "fingerprint"), hostile)
    b, c, typed = f"{hostile}b", f"{hostile}c", [f"model.{hostile.partition('=')[0]}={hostile}"]
    own = {"overrides": typed, "tuned": {"optimizer.lr": 0.01}}
    arms = {
        "baseline": arm(BASE, seconds=10, **kept),
        hostile: arm(shifted(0.1), changes={hostile: b}, seconds=12, **kept),
        c: arm(shifted(0.3), changes={hostile: c}, **own),
        "failed": arm([f"failed: {hostile}"] * 5, changes={hostile: "d"}),
        "same": arm(BASE, changes={hostile: "e"}, no_effect=True),
        "two": arm(shifted(0.5), changes={hostile: b, "b": hostile}),
    }
    factors = {
        hostile: {option: [f"a={option}"] for option in ("a", b, c, "d")},
        "b": {"0": [], hostile: [f"b={hostile}"]},
    }
    folder = make_study(
        tmp_path / hostile.replace("/", "\u2215")[:60],
        arms,
        tune={"optimizer.lr": [0.01, 0.1]},
        validations=3,
        factors=factors,
        asks=f"{hostile}? {hostile}",
        sweep=hostile,
        command=[f"sweep={hostile}"],
        illegal=[{"arm": f"{hostile}f", "reason": hostile}],
        excluded=[{"arm": f"{hostile}g", "by": {hostile: hostile}}],
    )
    for result in folder.glob("*/result.json"):
        (result.parent / "sample.txt").write_text(hostile)
        change(result, logged_to=f"javascript:1 {hostile}")
    write(folder, allow=["seeds", "data", "code", "budget"])
    text = (folder / "report.html").read_text()
    page = Page(text)
    assert page.tags <= set(OURS.split())
    assert "hacked" not in "".join(page.scripts)
    assert page.events == []
    links = {to for to in page.links if not to.startswith("#")} - {"data:,"}
    assert {(folder / unquote(to)).exists() for to in links} == {True}
    assert not [to for to in links if ":" in to or to.startswith("/")]
    assert not re.search(r"url\((?!#\w+\))|@import", re.sub(r">[^<]*<|=\"[^\"]*\"", "", text))
    drawn = unescape("".join(re.findall(r"<text [^>]*>([^<]*)</text>", text)))
    assert hostile[:20].replace("\x1b", "\ufffd") in drawn
    assert "\x1b" not in drawn
    assert hostile.split()[0] in unescape(text)
    inside = re.sub(r"(?ms)^(`{3,})\n.*?^\1$", "", (folder / "report.md").read_text())
    assert not re.search(r"(?<!\\)<\w|(?<!\\)\[x\]", inside)  # but in a fence
    table = [line for line in inside.splitlines() if line.startswith("|")][:6]
    assert len({len(re.findall(r"(?<!\\)\|", line)) for line in table}) == 1


# Names that LaTeX took for an argument, a command, a ligature, or cannot print everywhere.
ODD = r"a_b & 50%$x^2#{\~}<>"
NAMES = (
    *("[2,4]", "[4,2]", "*", "-", "--", "''", '"a', "`", "?`", "|", "%", "\\\\", "#1", "^^M"),
    *("a/b,c", ODD, "a\nb\x1b", "é", "e\u0301", "ę", "10°", "Ω", "д", "星", "\u202e", "\U0001f600"),
)


def named_table(folder):
    arms = {f"x={name}": arm(shifted(0.1), changes={"x": name}) for name in NAMES}
    arms["x=2"] = arm([*BASE[:4], "failed: x_y & 7 %"])
    study = make_study(folder / "[naïve]", {"baseline": arm(BASE)} | arms)
    report = assemble(collect(study))
    (folder / "table.tex").write_text(text := latex(content(report, gather(report))))
    return text


def test_a_name_is_no_argument_of_tex(tmp_path):
    text = named_table(tmp_path)
    rows = [line for line in text.splitlines() if line.endswith(r" \\")][1:]
    assert len(rows) == 1 + len(NAMES) + 1
    assert not [row for row in rows if row.startswith(("[", "*"))]
    for name, verdict in {
        "baseline": r"\textendash{}",
        r"{[}2,\allowbreak{}4]": "worse",
        r"a\_\allowbreak{}b \& 50\%\$x\textasciicircum{}2\#\{\textbackslash{}\textasciitilde{}\}"
        r"\textless{}\textgreater{}": "worse",
        "x=\\allowbreak{}2": "not compared",
    }.items():
        assert [row for row in rows if row.startswith(name) and f"{verdict} \\\\" in row], name
    plain = re.sub(r"\\unicodechar{.}{(U\+[0-9A-F]{4,5})}", r"\1", "\n".join(rows))
    assert re.sub("é", "", plain).isascii()
    assert not re.search("--|''|[`\"|\x1b]", plain)
    assert r"\label{tab:-na-ve-}" in text


@pytest.mark.skipif(shutil.which("pdflatex") is None, reason="needs LaTeX")
@pytest.mark.parametrize("encoding", ["OT1", "T1"])
def test_a_table_of_any_names_compiles(tmp_path, encoding):
    named_table(tmp_path)
    (tmp_path / "paper.tex").write_text(
        rf"\documentclass{{article}}\usepackage[{encoding}]{{fontenc}}\usepackage{{booktabs,tabularx}}"
        r"\begin{document}\listoftables\input{table}\end{document}"
    )
    line = ["pdflatex", "-halt-on-error", "-interaction=nonstopmode", "paper"]
    for _ in range(2):  # the list of tables is read by the second
        done = subprocess.run(line, cwd=tmp_path, capture_output=True, check=False)
        assert done.returncode == 0, done.stdout.decode(errors="replace")[-2000:]


@quickly
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
    made = dict(zip(("validations", "rows_per_validation"), points, strict=True))
    study = make_study(tmp_path / "s", {"baseline": arm(BASE), "a=1": arm(shifted(0.1))}, **made)
    write(study)
    for text in texts_of(study):
        notes = ("not shown", "validated only once", "No learning curves")
        assert [note for note in notes if note in text] == [says] * bool(says)
    assert (study / "figures" / "curves.png").exists() == drawn


def test_what_has_nothing_to_show_is_not_drawn(tmp_path):
    study = make_study(tmp_path / "s", {"baseline": arm(BASE)})
    for curve in study.glob("*/metrics.csv"):
        curve.unlink()
    (study / "figures").mkdir()
    for name in ("forest.png", "forest.pdf"):
        (study / "figures" / name).write_bytes(b"of an earlier report")
    figures = [path.name for path in write(study).files if path.parent.name == "figures"]
    assert figures == ["cost.png", "cost.pdf"]
    assert sorted(path.name for path in (study / "figures").iterdir()) == sorted(figures)
    pdf = (study / "figures" / "cost.pdf").read_bytes()
    write(study)
    assert (study / "figures" / "cost.pdf").read_bytes() == pdf  # no date in it


@pytest.mark.parametrize(
    ("values", "high"),
    [
        ([1.5, 1.52, 1.49, 1.51, 11.5], 1.52),
        ([1.5, 1.52, 1.49, 1.51, -9.0], 1.52),
        ([1.5, 1.52, 1.49, 1.51, 1.7], 1.7),  # it leaves room for the rest
        ([1.5, 1.52, 11.5, 11.6], 11.6),  # as many as the rest
        ([1.5, 1.5, 1.5], 1.5),
    ],
)
def test_outliers_do_not_flatten_a_chart(values, high):
    ends = robust(values)
    held = [value for value in values if ends.inside(value)]
    assert max(held) == high
    assert ends.high - high <= 0.1 * max(max(held) - min(held), high)


@pytest.mark.ci
@quickly
def test_an_outlier_is_a_triangle_with_its_number(tmp_path):
    """In main effects, interactions and costs; the others keep the room."""
    arms = {"baseline": arm(BASE, seconds=10), "a=1": arm(shifted(0.05)), "b=1": arm(shifted(0.02)),
            "a=1 b=1": arm(shifted(0.06))}  # fmt: skip
    far = {"a=none": arm(shifted(10)), "a=none b=1": arm(shifted(10.2))}
    for name, more, said in (("s", {}, 0), ("far", far, 3)):
        study = make_study(tmp_path / name, arms | more, design="factorial")
        write(study)
        page = (study / "report.html").read_text()
        assert page.count("A triangle marks a value outside the axis") == said
        charts = re.findall(r"<svg .*?</svg>", page, re.DOTALL)
        marked = {re.search('aria-label="([^"]*)', c)[1] for c in charts if BEYOND in c}
        by = ("a: baseline, 1 and none", "b: baseline and 1", "a \u00d7 b", "training time (s)")
        assert marked == {f"validation loss by {what}" for what in by if said}


@quickly
@pytest.mark.parametrize(
    ("base", "other"),
    [
        ([0.0], [0.0]),
        (["failed: x"] * 3, [1.0, 1.1, 1.2]),
        ([-5.0, -5.1, -5.2], [1e9, 1.1e9, 1.2e9]),
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
        (signed(1234.5, 1), "+1,234.5"),
        (share(-1.5), "\u2212150 %"),
        (amount(814_720), "815 k"),
        (amount(999_600), "1 M"),
        (duration(1e6), "11.5 days"),
        (decimals([1.5, 1.6], [0.012, 0.03]), 3),
        (decimals([1234.0], [None]), 0),
        (apart([0.12, 0.1], 3), 3),
        (apart([2e-5, 1e-5], 3), 5),
    ],
)
def test_numbers_have_sensible_digits(said, words):
    assert said == words
