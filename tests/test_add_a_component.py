"""The examples of docs/how-to/add-*.md run as they are printed, in a copy of the project."""

import re
import runpy
import shutil
import sys
from pathlib import Path

import pytest
from make_study import scores
from tiny import in_a_process

from ablate.study import report
from ablate.study.report.terminal import show

pytest_plugins = ["make_study"]
ROOT = Path(__file__).parents[1]
PAGES = ("add-a-component", "add-to-the-repository", "add-a-model-and-task")
SECTIONS = {
    (page, title): text
    for page in PAGES
    for section in (ROOT / f"docs/how-to/{page}.md").read_text("utf-8").split("\n## ")[1:]
    for title, text in [section.split("\n", 1)]
}
NORM, MIXER, IMAGES, METRIC, CALLBACK, SCORE, DATA, OPTIMIZER, KEY, COLUMN, ATTENTION, FAMILY = (
    SECTIONS
)


def blocks(section: str) -> list[tuple[str, str]]:
    """The file that each indented block names in its first line, and the rest of the block."""
    found: list[tuple[str, list[str]]] = []
    inside = False
    for line in section.splitlines():
        if named := re.fullmatch(r"    # ([\w.]+/[\w./]+\.(?:py|yaml))(: [\w.]+)?", line):
            found.append((named[1], []))
            inside = True
        elif inside and (line.startswith("    ") or not line):
            found[-1][1].append(line[4:])
        else:
            inside = False
    return [(file, "\n".join(lines).strip("\n") + "\n") for file, lines in found]


def write(section: str, folder: Path) -> None:
    for file, text in blocks(section):
        place = folder / file
        place.parent.mkdir(parents=True, exist_ok=True)
        assert not place.exists(), file
        place.write_text(text, encoding="utf-8")


def write_package(section: str, folder: Path, patch: pytest.MonkeyPatch) -> Path:
    """Write the package `my`, whose modules can then be imported; return its config folder."""
    write(section, folder)
    patch.syspath_prepend(folder)
    for name in [name for name in sys.modules if name.partition(".")[0] == "my"]:
        patch.delitem(sys.modules, name)
    return folder / "my/conf"


def change(section: str, folder: Path) -> None:
    for file, text in blocks(section):
        place = folder / file
        lines = text.splitlines()
        before = "\n".join(line[1:] for line in lines if line[0] != "+")
        after = "\n".join(line[1:] for line in lines if line[0] != "-")
        whole = place.read_text(encoding="utf-8")
        assert whole.count(before + "\n") == 1, (file, before)
        place.write_text(whole.replace(before, after), encoding="utf-8")


def python(*arguments: str, folder: Path, source: Path) -> str:
    own = {"PYTHONPATH": str(source), "PYTEST_ADDOPTS": ""}
    done = in_a_process(*arguments, folder=folder, limit=3600, **own)
    assert done.returncode == 0, done.stdout + done.stderr
    return done.stdout


def train(folder: Path, *typed: str) -> None:
    own = ("-m", "ablate", "--config-dir", "my/conf")
    python(*own, "debug=fast", *typed, folder=folder, source=ROOT / "src")


@pytest.mark.slow
@pytest.mark.parametrize(
    ("section", "typed", "column"),
    [
        (NORM, "model.norm_type=scale", "val/loss"),
        (MIXER, "model.mixer=decay model.depth=2", "val/loss"),
        (MIXER, "model.layers.mixer=[decay,attention] model.depth=2", "val/loss"),
        (IMAGES, "model=vit data=stripes model.patch=4", "val/accuracy/columns"),
        (METRIC, "model=vit task=calibrated", "val/calibration"),
        (CALLBACK, "callbacks=gradient_norm", "train/gradient_norm"),
    ],
)
def test_a_custom_component_trains(
    tmp_path: Path, section: tuple[str, str], typed: str, column: str
) -> None:
    write(SECTIONS[section], tmp_path)
    train(tmp_path, *typed.split())
    (curves,) = tmp_path.glob("outputs/debug/*/metrics.csv")
    columns, *rows = curves.read_text(encoding="utf-8").splitlines()
    last = dict(zip(columns.split(","), rows[-1].split(","), strict=True))
    assert float(last[column]) >= 0


@pytest.mark.slow
def test_a_task_with_a_metric_and_a_callback_are_a_file_each(tmp_path: Path) -> None:
    for section in (METRIC, CALLBACK):
        write(SECTIONS[section], tmp_path)
    shutil.rmtree(tmp_path / "my/conf")
    task = ("model=vit", "task._target_=my.calibrated.Calibrated", "+task.bins=10")
    callback = "+callbacks.mine._target_=my.norms.GradientNorm"
    typed = ("-m", "ablate", "debug=fast", *task, callback)
    python(*typed, folder=tmp_path, source=ROOT / "src")
    (curves,) = tmp_path.glob("outputs/debug/*/metrics.csv")
    assert {"val/calibration", "train/gradient_norm"} <= {
        *curves.read_text().split("\n")[0].split(",")
    }


@pytest.mark.parametrize(("section", "count"), [(KEY, 3), (COLUMN, 1), (ATTENTION, 2)])
def test_a_key_changes_few_files(section: tuple[str, str], count: int, tmp_path: Path) -> None:
    files = {file for file, _ in blocks(SECTIONS[section])}
    assert len(files) == count
    for file in files:
        (tmp_path / file).parent.mkdir(parents=True)
        shutil.copy(ROOT / file, tmp_path / file)
    change(SECTIONS[section], tmp_path)


@pytest.mark.usefixtures("no_pdf")
def test_a_column_of_the_report_is_in_every_format(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    file = tmp_path / "src/ablate/study/report/columns.py"
    file.parent.mkdir(parents=True)
    shutil.copy(ROOT / file.relative_to(tmp_path), file)
    change(SECTIONS[COLUMN], tmp_path)
    columns = runpy.run_path(str(file))["COLUMNS"]
    monkeypatch.setattr(sys.modules["ablate.study.report.content"], "COLUMNS", columns)
    show(report.write(folder := scores(tmp_path)))
    texts = [(folder / name).read_text() for name in ("report.html", "report.md", "table.tex")]
    heads = (">steps</button>", "| steps |", " & steps & ", "┃ steps ┃")
    for text, head in zip([*texts, capsys.readouterr().out], heads, strict=True):
        assert head in text


@pytest.mark.slow
def test_every_walk_within_the_repository(tmp_path: Path) -> None:
    """All at once; the tests of the project find what was added, and every id stays."""
    for name in ("src", "conf", "sweeps", "tests"):
        ignored = shutil.ignore_patterns("__pycache__")
        shutil.copytree(ROOT / name, tmp_path / name, symlinks=True, ignore=ignored)
    shutil.copy(ROOT / "pyproject.toml", tmp_path)
    for section in (SCORE, DATA, OPTIMIZER):
        write(SECTIONS[section], tmp_path)
    link = tmp_path / "conf" / "model.cross_attention" / "l2.yaml"
    link.symlink_to("../model.attention/l2.yaml")
    for section in (KEY, ATTENTION):
        change(SECTIONS[section], tmp_path)
    added = [
        "every_parameter_gets_a_gradient[model.attention-l2]",
        "every_parameter_gets_a_gradient[model.cross_attention-l2]",
        "every_parameter_gets_a_gradient[data-rotate]",
        "every_parameter_gets_a_gradient[optimizer-nadam]",
        "every_key_of_a_model_acts[gpt-True]",
        "every_key_of_a_model_acts[transformer-True]",
        "every_key_of_a_part_acts[model.mixer-attention]",
        "every_key_of_a_block_acts_by_layer",
        "the_axes_hold_every_value_that_is_allowed",
    ]
    words = "l2 rotate nadam acts[gpt-True] acts[transformer-True] acts_by_layer mixer-attention"
    chosen = " or ".join([*words.split(), "axes_hold"])
    files = [f"tests/test_{name}.py" for name in ("config_tree", "knobs", "run_id", "pairs")]
    # Whether an option's turn comes by default depends on its place in a list: ask for all (-m "").
    pytest_ = ("-m", "pytest", "-n0", "-rA", "-m", "", "-k", chosen, *files)
    said = python(*pytest_, folder=tmp_path, source=tmp_path / "src")
    assert [test for test in added if f"{test}\n" not in said] == []
