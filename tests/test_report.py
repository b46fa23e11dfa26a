"""The report of a study: what it says of made-up runs, and what it refuses to say."""

import json
import shutil
import sys
from pathlib import Path
from typing import Any

import pytest
from make_study import ADDITIVE, BASE, arm, make_study, scores, shifted

from ablate import report as command_line
from ablate.cli.command import command
from ablate.errors import UserError
from ablate.study.analysis.collect import collect
from ablate.study.analysis.comparable import RULES, lines, objections
from ablate.study.analysis.compare import compare
from ablate.study.report.rows import Report, assemble


@pytest.fixture
def study(tmp_path: Path) -> Path:
    return scores(tmp_path)


def judged(study: Path, **options: Any) -> Report:
    """What the report says, before anything is drawn."""
    return assemble(collect(study), **options)


def kinds(report: Report) -> dict[str, str]:
    return {row.arm.name: row.kind for row in report.rows}


def test_verdicts_are_those_of_the_statistics(study: Path) -> None:
    report = judged(study)
    assert list(kinds(report).values()) == ["base", "worse", "open", "refused"]
    values = {name: dict(enumerate(v)) for name, v in (("b", BASE), ("a", shifted(0.1)))}
    row = report.rows[1]
    assert row.comparison is not None
    values["c"] = dict(enumerate(shifted(0.0)))  # Holm runs over both
    assert row.comparison.tests == compare(values, baseline="b", mode="min").arms[0].tests


def test_a_result_that_does_not_mean_what_it_seems_to_is_marked(study: Path) -> None:
    assert not judged(study).marks
    for path in study.glob(f"{ADDITIVE}-*/result.json"):
        path.write_text(json.dumps(json.loads(path.read_text()) | {"caution": "it peeks"}))
    assert judged(study).marks == ["additive: it peeks."]


def bend(study: Path, arm: str, by: float) -> None:
    """Move an arm's curve by so much up to three quarters of the steps."""
    for path in study.glob(f"{arm}-*/metrics.csv"):
        head, *rows = [line.split(",") for line in path.read_text().splitlines()]
        last = int(rows[-1][0])
        for row in rows:
            if row[2] and int(row[0]) <= 0.75 * last:
                row[2] = str(float(row[2]) + by)
        path.write_text("\n".join(map(",".join, [head, *rows])) + "\n")


@pytest.mark.parametrize(("by", "marked"), [(0.02, False), (0.03, True), (-0.03, True)])
def test_a_difference_that_still_changes_is_marked(study: Path, by: float, marked: bool) -> None:
    """By more than a quarter of itself, 0.1 here, in the last quarter of training."""
    bend(study, "model.attention=cosine", 10 * by)  # no difference is shown there
    assert not judged(study).marks
    bend(study, ADDITIVE, by)
    said = "Still changing in the last quarter of training, so that more steps may say otherwise: "
    arms = f"additive (from +{0.1 + by:.3f} at step 300 to +0.100 at step 400)."
    assert judged(study).marks == ([said + arms] if marked else [])


def train(study: Path, arm: str, losses: list[float]) -> None:
    """Replace the training losses of an arm."""
    for path in study.glob(f"{arm}-*/metrics.csv"):
        head, *rows = [line.split(",") for line in path.read_text().splitlines()]
        for row, loss in zip(rows, losses, strict=True):
            row[1] = str(loss)
        path.write_text("\n".join(map(",".join, [head, *rows])) + "\n")


STEPS = range(16)  # that a made-up run logs


@pytest.mark.parametrize(
    ("losses", "said"),
    [
        ([3.6 - 0.1 * n for n in STEPS], "Still falling in the last quarter of training, by more"),
        ([3.55 - 0.002 * n for n in STEPS], "Hardly trained, so that a verdict says little: the"),
        ([3.52 for _ in STEPS], "Hardly trained"),
        ([1 + 2 * 0.5**n for n in STEPS], ""),
    ],
)
def test_arms_that_needed_more_steps_are_marked(
    study: Path, losses: list[float], said: str
) -> None:
    train(study, ADDITIVE, losses)
    found = judged(study).marks
    assert len(found) == bool(said)
    assert all(line.startswith(said) and "additive" in line for line in found)
    for name in ("baseline", "model.attention=cosine"):
        train(study, name, losses)
    assert all(("every arm" in line) == said.startswith("Still") for line in judged(study).marks)


def test_seeds_are_paired_by_number_and_not_by_place(tmp_path: Path) -> None:
    study = make_study(tmp_path / "s", {"baseline": arm(BASE), "a=1": arm(shifted(0.1))})
    plan = json.loads((study / "plan.json").read_text())
    plan["cells"].reverse()
    (study / "plan.json").write_text(json.dumps(plan))
    row = judged(study).rows[1]
    assert row.comparison is not None
    assert row.comparison.difference == pytest.approx(0.1, abs=0.002)
    assert row.comparison.sd == pytest.approx(row.comparison.baseline_sd, rel=0.2)


@pytest.mark.parametrize(
    ("rule", "other"),
    [
        ("seeds", {"values": [*BASE[:4], "failed: out of memory"]}),
        ("seeds", {"values": [*BASE[:4], None]}),
        ("data", {"fingerprint": "0123"}),
        ("code", {"commit": "0123"}),
        ("code", {"dirty": True}),
        ("code", {"commit": None}),
        ("budget", {"steps": 800}),
        ("budget", {"parameters": 900_000}),
    ],
)
def test_a_broken_rule_is_refused_until_it_is_allowed(
    tmp_path: Path, rule: str, other: dict
) -> None:
    made = arm(**({"values": shifted(0.1)} | other))
    arms = {"baseline": arm(BASE), "a=1": made, "a=2": arm(shifted(0.1))}
    match = {"budget": "parameters", "by": "model.ffn_dim"}
    study = make_study(tmp_path / "s", arms, match=match)
    refused = judged(study)
    assert list(kinds(refused).values()) == ["base", "refused", "worse"]
    (said,) = lines(refused.objections)
    assert said.startswith(f"{rule}: not compared: a=1: ")
    assert f"--allow {rule}" in said
    allowed = judged(study, allow=[rule])
    assert kinds(allowed)["a=1"] != "refused"
    assert not lines(allowed.objections)
    other_rules = [one for one in RULES if one != rule]
    assert kinds(judged(study, allow=other_rules))["a=1"] == "refused"


def test_parameters_may_differ_where_nothing_was_matched(tmp_path: Path) -> None:
    arms = {"baseline": arm(BASE), "a=1": arm(shifted(0.1), parameters=900_000)}
    assert not objections(collect(make_study(tmp_path / "s", arms)), "val/loss")


def test_data_that_depend_on_the_seed_are_compared_seed_by_seed(study: Path) -> None:
    for run in study.glob("*/provenance.json"):
        seed = json.loads((run.parent / "result.json").read_text())["seed"]
        content = json.loads(run.read_text()) | {"data_fingerprint": f"of seed {seed}"}
        run.write_text(json.dumps(content))
    assert {one.rule for one in objections(collect(study), "val/loss")} == {"seeds"}


def test_a_baseline_without_a_seed_stops_every_arm(tmp_path: Path) -> None:
    arms = {"baseline": arm([*BASE[:4], "failed: x"]), "a=1": arm(BASE), "a=2": arm(BASE)}
    study = make_study(tmp_path / "s", arms)
    assert list(kinds(judged(study)).values()) == ["base", "refused", "refused"]
    assert len(lines(objections(collect(study), "val/loss"))) == 1


def test_half_written_and_foreign_folders_are_runs_without_a_result(study: Path) -> None:
    folders = sorted(study.glob(f"{ADDITIVE}-*"))
    (folders[0] / "result.json").write_text('{"status": "fini')
    (folders[1] / "result.json").unlink()
    (folders[2] / "metrics.csv").write_text("step,val/loss\n1,")
    content = json.loads((folders[3] / "result.json").read_text()) | {"run_id": "another"}
    (folders[3] / "result.json").write_text(json.dumps(content))
    content = json.loads((folders[4] / "result.json").read_text()) | {"metrics": {"val/loss": None}}
    (folders[4] / "result.json").write_text(json.dumps(content))
    shutil.rmtree(study / "wandb", ignore_errors=True)
    (study / "notes").mkdir()
    found = collect(study)
    states = sorted(run.state for run in found.runs_of(ADDITIVE).values())
    assert states == ["finished", "finished", "missing", "missing", "missing"]
    assert len(found.values(ADDITIVE, "val/loss")) == 1
    assert kinds(judged(study))[ADDITIVE] == "refused"


def test_another_metric_has_its_own_direction(study: Path) -> None:
    assert judged(study, metric="val/perplexity").mode == "min"
    for result in study.glob("*/result.json"):
        content = json.loads(result.read_text())
        content["metrics"] |= {"val/thing": 1.0, "val/accuracy": 0.5}
        result.write_text(json.dumps(content))
    assert judged(study, metric="val/accuracy").mode == "max"
    with pytest.raises(UserError, match="--mode min or --mode max"):
        judged(study, metric="val/thing")
    assert judged(study, metric="val/thing", mode="max").mode == "max"


def ran(monkeypatch: pytest.MonkeyPatch, *arguments: str | Path) -> int:
    monkeypatch.setattr(sys, "argv", ["ablate.report", *map(str, arguments)])
    with pytest.raises(SystemExit) as end:
        command(command_line.main)
    assert isinstance(end.value.code, int)
    return end.value.code


def test_the_command_prints_the_table_and_its_path(
    study: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setenv("COLUMNS", "160")
    assert ran(monkeypatch, study) == 0
    printed = capsys.readouterr()
    for words in ("lower is better", ADDITIVE, "worse", "not compared", str(study / "report.html")):
        assert words in printed.out
    assert printed.err.startswith("ablate: seeds: not compared: model.attention=general")


@pytest.mark.parametrize(
    ("arguments", "says"),
    [
        (["{}/scors"], "did you mean '{}/scores'?"),
        (["{}"], "those in it: {}/scores"),
        (["{}/scores/" + "x"], "did you mean '{}/scores'?"),
        (["{}/scors", "--status"], "did you mean '{}/scores'?"),
        (["{}/scores", "--metric", "val/los"], "did you mean 'val/loss'? (there: val/loss,"),
        (["{}/scores", "--allow", "sedes"], "did you mean 'seeds'?"),
        (["{}/empty"], "has no finished run yet (2 missing)"),
        (["{}/broken"], "is not the plan of a study"),
    ],
)
def test_a_mistake_is_one_line(
    study: Path,
    arguments: list[str],
    says: str,
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
) -> None:
    parent = study.parent
    if "empty" in arguments[0]:
        make_study(parent / "empty", {"baseline": arm([None]), "a=1": arm([None])})
    (parent / "broken").mkdir()
    (parent / "broken" / "plan.json").write_text("[1]")
    assert ran(monkeypatch, *(one.format(parent) for one in arguments)) == 2
    error = capsys.readouterr().err
    assert error.startswith("ablate: ")
    assert error.count("\n") == 1
    if "those in it" not in says:
        assert says.format(parent) in error
    else:
        assert str(study) in error
