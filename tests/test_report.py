"""The report of a study: what it says of made-up runs, and what it refuses to say."""

import json
from dataclasses import replace
from pathlib import Path

import pytest
import yaml
from make_study import ADDITIVE, BASE, arm, change, make_study, scores, shifted
from refusals import refused

import ablate
from ablate import report as command_line
from ablate.cli.command import command
from ablate.study.analysis.collect import collect
from ablate.study.analysis.compare import compare
from ablate.study.analysis.derived import COSTS, mode, reach, require_known
from ablate.study.analysis.folder import Folder
from ablate.study.analysis.rows import assemble, at_edges, unsettled
from ablate.study.any_runs import show_runs
from ablate.study.plan.tune import result_with
from ablate.study.report import write
from ablate.study.report.sentences import answers, certainty
from ablate.study.report.terminal import show
from ablate.study.report.to_json import to_json

pytest_plugins = ["make_study"]
pytestmark = pytest.mark.usefixtures("no_pdf")


@pytest.fixture
def study(tmp_path):
    return scores(tmp_path)


def judged(study, **options):
    """What the report says, before anything is drawn."""
    return assemble(collect(study), **options)


def kinds(report):
    return {row.arm.name: row.kind for row in report.rows}


def test_verdicts_are_those_of_the_statistics(study):
    """Of runs paired by seed; from the best to the worst, what is not compared at the end."""
    cells = json.loads((study / "plan.json").read_text())["cells"]
    change(study / "plan.json", cells=cells[::-1])
    report = judged(study)
    assert list(kinds(report).values()) == ["baseline", "inconclusive", "worse", "excluded"]
    arms = {"b": BASE, "a": shifted(0.1), "c": shifted(0.0)}  # Holm runs over both
    values = {name: dict(enumerate(v)) for name, v in arms.items()}
    found = report.rows[2].comparison
    assert found.tests == compare(values, baseline="b", mode="min").arms[0].tests
    assert found.difference == pytest.approx(0.1, abs=0.002)


def test_a_result_that_does_not_mean_what_it_seems_to_is_marked(study):
    assert not judged(study).remarks
    for path in study.glob(f"{ADDITIVE}-*/result.json"):
        change(path, caution="it leaks_targets")
    assert judged(study).remarks == ["additive: it leaks_targets."]
    for path in study.glob(f"{ADDITIVE}-*/result.json"):
        change(path, not_evaluated={"long": "16 positions"})
    leaks_targets, lacks = judged(study).remarks
    assert (leaks_targets, lacks) == (
        "additive: it leaks_targets.",
        "additive: not evaluated under evaluate.long: 16 positions.",
    )
    for path in study.glob("*/result.json"):
        change(path, chosen_on={"examples": 5, "of": 2000, "value": 1.5})
    said = "the best weights were chosen on 5 of 2,000 validation examples (trainer.val_examples)"
    assert any(said in line for line in judged(study).remarks)


def test_weights_that_another_metric_chose_are_marked(study):
    for path in study.glob("*/result.json"):
        change(path, metric={"name": "val/accuracy", "value": 0.5, "mode": "max"})
    (mark,) = judged(study).remarks
    assert mark.startswith("val/loss is evaluated at the checkpoint with the best val/accuracy;")
    for path in study.glob("*/result.json"):
        change(path, metric={"name": "val/perplexity", "value": 1.5, "mode": "min"})
    assert not judged(study).remarks  # the loss is best where its exponential is


def test_a_result_that_cannot_be_read_is_named(study):
    path = next(study.glob(f"{ADDITIVE}-*/result.json"))
    path.write_text("{")
    (said,) = [each.reason for each in judged(study).objections if each.arm == ADDITIVE]
    assert f"not read ({path} cannot be read" in said


def rewrite(study, arm, change):
    """The curves of an arm; change: (row's number, its cells, the last step) -> its cells."""
    for path in study.glob(f"{arm}-*/metrics.csv"):
        head, *rows = [line.split(",") for line in path.read_text().splitlines()]
        rows = [change(n, row, int(rows[-1][0])) for n, row in enumerate(rows)]
        path.write_text("\n".join(map(",".join, [head, *rows])) + "\n")


def test_what_came_out_says_why_an_arm_is_not_compared(tmp_path):
    values = {"1": ["failed: nan"] * 5, "2": [*BASE[:4], "failed: nan"]}
    arms = {f"a={n}": arm(v) for n, v in values.items()} | {"a=3": arm(BASE, fingerprint="other")}
    ((_, _, said),) = answers(judged(make_study(tmp_path / "s", {"baseline": arm(BASE)} | arms)))
    assert said == "a=1 (all 5 seeds failed), a=2 (seed 4 failed) and a=3 (other data)"


def test_one_seed_is_said_to_give_no_verdict(tmp_path):
    for n, pairs, ending in (
        (1, "(1 pair)", "nor a verdict."),
        (3, "(3 pairs)", "from every arm of the study."),
    ):
        arms = {"baseline": arm(BASE[:n]), "a=1": arm(shifted(0.1)[:n])}
        said, *_ = certainty(judged(make_study(tmp_path / pairs, arms)))
        assert (pairs in said, said.endswith(ending)) == (True, True)


def test_a_bare_value_is_named_with_its_key(tmp_path):
    options = ("2", "1e-3", "null", "True", "none", "cosine")
    arms = {
        f"model.x={o}": arm(BASE, changes={"model.x": o} if n else {})
        for n, o in enumerate(options)
    }
    labels = [*judged(make_study(tmp_path / "s", arms)).labels.values()]
    assert sorted(labels) == ["cosine", "none", "x=1e-3", "x=2", "x=True", "x=null"]


@pytest.mark.parametrize(
    ("means", "said"),
    [
        ((1.1, 1.0, 1.2), "optimizer.lr=0.001 (smallest of 3)"),
        ((1.1, 1.2, 1.0), "optimizer.lr=0.004 (largest of 3)"),
        ((1.0, 1.1, 1.1), ""),
        ((1.1, 1.0), ""),
    ],
)
def test_a_best_value_at_the_edge_of_its_grid_is_marked(tmp_path, means, said):
    names = ("baseline", "optimizer.lr=0.001", "optimizer.lr=0.004")  # the baseline's is 0.002
    arms = {name: arm([mean] * 2) for name, mean in zip(names, means, strict=False)}
    marked = at_edges(judged(make_study(tmp_path / "s", arms)))
    assert [line.partition("better: ")[2] for line in marked] == ([f"{said}."] if said else [])


def test_a_tuned_value_at_the_edge_of_its_grid_is_marked(tmp_path):
    arms = {"baseline": arm(BASE, tuned={"x": 1}), ADDITIVE: arm(BASE, tuned={"x": 4})}
    report = judged(make_study(tmp_path / "s", arms, tune={"x": (1, 2, 4)}))
    line = (
        "Best at the edge of a grid, so a value beyond it may be better: x=1 of baseline (smallest"
        " of 3 tried) and x=4 of additive (largest of 3 tried)."
    )
    assert line in to_json(report)["warnings"]


def test_what_came_out_begins_with_the_largest_differences(tmp_path):
    arms = {f"a={n}": arm(shifted(n / 10)) for n in range(1, 11)}
    report = judged(make_study(tmp_path / "s", {"baseline": arm(BASE)} | arms))
    ((_, _, said),) = answers(report)
    assert said.startswith("a=10 (+1.000), a=9 (+0.900), ")
    assert said.endswith("a=3 (+0.300) and 2 more")
    assert [row.arm.name for row in report.others] == [*arms]


@pytest.mark.parametrize(("by", "marked"), [(0.02, False), (0.03, True), (-0.03, True)])
def test_a_difference_that_still_changes_is_marked(study, by, marked):
    """By more than a quarter of itself, 0.1 here, in the last quarter of training."""

    def bent(by):
        def change(n, row, last):
            moved = row[2] and int(row[0]) <= 0.75 * last
            return [*row[:2], str(float(row[2]) + by)] if moved else row

        return change

    rewrite(study, "model.attention=cosine", bent(10 * by))  # no difference is shown there
    rewrite(study, ADDITIVE, bent(by))
    arms = f"additive (from +{0.1 + by:.3f} at step 300 to +0.100 at step 400)."
    found = judged(study).remarks
    assert [mark.startswith("Still changing") and mark.endswith(arms) for mark in found] == (
        [True] * marked
    )
    for line in unsettled(replace(judged(study), decimals=0)):  # digits that tell them apart
        assert f"from +{0.1 + by:.2f} at step 300 to +0.10 at step 400" in line


STEPS = range(16)  # that a made-up run logs


@pytest.mark.parametrize(
    ("losses", "said"),
    [
        ([3.6 - 0.1 * n for n in STEPS], "Still falling: the training loss of "),
        ([3.55 - 0.002 * n for n in STEPS], "Barely trained: the training loss of "),
        ([1 + 2 * 0.5**n for n in STEPS], ""),
        ([-3.55 - 0.002 * n for n in STEPS], ""),
        ([*[""] * 15, 1.5], "Too short to judge: "),
    ],
)
def test_arms_that_needed_more_steps_are_marked(study, losses, said):
    """Whose training loss falls still, or never fell, or was logged but once; it may be below 0."""
    rewrite(study, ADDITIVE, lambda n, row, last: [row[0], str(losses[n]), *row[2:]])
    found = judged(study).remarks
    assert len(found) == bool(said)
    assert all(line.startswith(said) and "additive" in line for line in found)


def test_an_arm_with_the_runs_of_another_is_compared_once(tmp_path):
    same = arm(shifted(0.1), same_as="a=1")
    arms = {"baseline": arm(BASE), "a=1": arm(shifted(0.1)), "a=2": same}
    first, second = judged(make_study(tmp_path / "s", arms)).rows[1:]
    assert first.comparison.tests == second.comparison.tests
    assert first.comparison.tests.p_holm == first.comparison.tests.p


def test_an_arm_that_could_not_be_tuned_is_left_out_and_its_trials_are_kept(tmp_path):
    arms = {"baseline": arm(BASE), "a=1": arm(shifted(0.1)), "a=2": arm([None])}
    study = make_study(tmp_path / "s", arms, tune={"optimizer.lr": [0.1]})
    plan = json.loads((study / "plan.json").read_text())
    cells = [each for each in plan["cells"] if (each["arm"], each["kind"]) != ("a=2", "run")]
    illegal = [{"arm": "a=2", "reason": "it has no values"}]
    change(study / "plan.json", arms=plan["arms"][:2], cells=cells, illegal=illegal)
    assert kinds(judged(study)) == {"baseline": "baseline", "a=1": "worse"}
    assert [run.arm for run in collect(study).tuning] == [*arms]


def test_half_written_and_foreign_folders_are_runs_without_a_result(study):
    folders = sorted(study.glob(f"{ADDITIVE}-*"))
    (folders[0] / "result.json").write_text('{"status": "fini')
    (folders[1] / "result.json").unlink()
    (folders[2] / "metrics.csv").write_text("step,val/loss\n1,")
    change(folders[3] / "result.json", run_id="another")
    change(folders[4] / "result.json", metrics={"val/loss": None})
    failed = next(study.glob("model.attention=cosine-*"))
    change(failed / "result.json", status="failed")  # although it has measured something
    (study / "notes").mkdir()
    found = collect(study)
    states = sorted(run.state for run in found.runs_of(ADDITIVE).values())
    assert states == ["finished", "finished", "missing", "missing", "missing"]
    assert len(found.values(ADDITIVE, "val/loss")) == 1
    assert len(found.values("model.attention=cosine", "val/loss")) == 4
    assert kinds(judged(study))[ADDITIVE] == "excluded"


def test_another_metric_has_its_own_direction_and_no_margin(tmp_path):
    both = [{"val/loss": v, "val/thing": 1.0, "val/accuracy": v} for v in BASE]
    arms = {"baseline": arm(both), "a=1": arm(both)}
    study = make_study(tmp_path / "s", arms, margin=0.5)
    assert kinds(judged(study))["a=1"] == "equivalent"
    found = judged(study, metric="val/accuracy")
    assert (found.mode, kinds(found)["a=1"]) == ("max", "inconclusive")
    said = "study.margin applies to val/loss, so equivalence is not tested"
    assert any(said in line for line in found.remarks)
    with refused("--mode min or --mode max"):
        judged(study, metric="val/thing")
    assert judged(study, metric="val/thing", mode="max").mode == "max"


def ran(monkeypatch, *arguments):
    monkeypatch.setattr("sys.argv", ["ablate.report", *map(str, arguments)])
    with pytest.raises(SystemExit) as end:
        command(command_line.main)
    return end.value.code


@pytest.mark.parametrize(
    ("arguments", "says"),
    [
        (["{}/scors"], "did you mean '{}/scores'?"),
        (["{}"], "studies in it: "),
        (["{}/scores/" + "x", "--status"], "did you mean '{}/scores'?"),
        (["{}/scores", "--metric", "val/los"], "did you mean 'val/loss'? (available: val/loss,"),
        (["{}/scores", "--allow", "sedes"], "did you mean 'seeds'?"),
        (["{}/scores", "--baseline", "aditive"], "did you mean 'additive'? (there: baseline,"),
        (["{}/scores", "--status", "--mode", "min"], "--mode: no effect with --status"),
        (["{}/scores", "--status", "--wandb"], "--wandb: not allowed with argument --status"),
        (["{}/empty"], "has no finished run yet (2 missing)"),
        (["{}/broken"], "is not the plan of a study"),
    ],
)
def test_a_mistake_is_one_line(study, arguments, says, monkeypatch, capsys):
    parent = study.parent
    make_study(parent / "empty", {"baseline": arm([None]), "a=1": arm([None])})
    (parent / "broken").mkdir()
    (parent / "broken" / "plan.json").write_text("[1]")
    assert ran(monkeypatch, *(one.format(parent) for one in arguments)) == 2
    error = capsys.readouterr().err
    assert error.startswith("ablate: ")
    assert error.count("\n") == 1
    assert says.format(parent) in error


def test_the_command_prints_a_table_and_its_path(study, monkeypatch, capsys):
    """Of the plan's baseline, or of another arm."""
    monkeypatch.setenv("COLUMNS", "160")
    difference = judged(study).rows[2].difference
    assert ran(monkeypatch, study, "--baseline", ADDITIVE) == 0
    out, err = capsys.readouterr()
    for words in (
        *("lower is better", "better", "not compared", "the baseline of the plan is baseline"),
        str(study / f"report-{ADDITIVE}.html"),
    ):
        assert words in " ".join(out.split())
    assert err.startswith("ablate: not compared (rule seeds): model.attention=general")
    assert not (study / "report.json").exists()  # that of the plan's baseline
    told = json.loads((study / f"report-{ADDITIVE}.json").read_text())
    assert told["baseline"] == ADDITIVE
    (row,) = [row for row in told["arms"] if row["name"] == "baseline"]
    assert (row["difference"], row["verdict"]) == (pytest.approx(-difference), "better")
    rebased = collect(study).rebased("additive")
    differs = {arm.name: arm.differs for arm in rebased.arms}
    assert differs["model.attention=cosine"] == {"model.attention": ["additive", "cosine"]}
    assert not rebased.baseline.differs


def test_runs_of_no_study_make_a_table(tmp_path, capsys, monkeypatch):
    """The best first, with what any of them sets beside what model and data bring; no verdicts."""
    rotary = arm([1.5], changes={"pos_enc": "rotary"})
    failed = arm(["failed: nan"], changes={"pos_enc": "none"})
    runs = make_study(tmp_path / "runs", {"baseline": arm([2.5]), "a": rotary, "b": failed})
    (runs / "plan.json").unlink()
    own = ({"init_from": "elsewhere"}, {}, {"callbacks": {"mine": {"_target_": "my.Own"}}})
    for content, file in zip(own, sorted(runs.glob("*/config.yaml")), strict=True):
        config = {"init_from": None, "callbacks": None} | yaml.safe_load(file.read_text())
        file.write_text(yaml.safe_dump(config | content))
    monkeypatch.setenv("COLUMNS", "200")
    show_runs(runs)
    out = capsys.readouterr().out
    assert (out.count("init_from=elsewhere"), out.count("callbacks=mine")) == (1, 1)
    assert "null" not in out
    assert out.index("pos_enc=rotary") < out.index("2.5")
    assert " ".join(out.split()).count("model=gpt data=pydoc") == out.count("pos_enc=") == 1
    assert (out.count("val/loss"), out.count("No verdicts")) == (2, 1)
    assert "2 finished runs" in out
    with refused("did you mean 'val/loss'"):
        show_runs(runs, "val/los")
    show_runs(runs, "val/loss", "max")
    out = capsys.readouterr().out
    assert out.index("2.5") < out.index("pos_enc=rotary")
    for file in runs.glob("*/result.json"):  # another metric than that of the task has its own mode
        result = json.loads(file.read_text())
        value = result["metrics"].get("val/loss") or 0.0
        result["metrics"]["val/accuracy"] = value / 10
        file.write_text(json.dumps(result))
    show_runs(runs, "val/accuracy")
    out = capsys.readouterr().out
    assert out.index("0.25") < out.index("pos_enc=rotary")


@pytest.mark.parametrize(
    ("second", "shown"),
    [
        ({}, ()),
        ({"path": "two"}, ("data.path=one", "data.path=two")),
        ({"content": "two"}, ("data_fingerprint=one", "data_fingerprint=two")),
        ({"path": "two", "content": "two"}, ("data.path=one", "data.path=two")),
        ({"path": "two", "data": "shakespeare"}, ("data=text", "data=shakespeare")),
    ],
)
def test_a_table_of_runs_tells_their_data_apart(second, shown, tmp_path, capsys, monkeypatch):
    runs = make_study(tmp_path / "runs", {"baseline": arm([2.5]), "a": arm([1.5])})
    (runs / "plan.json").unlink()
    usual = {"path": "one", "content": "one", "data": "text"}
    for run, values in zip(sorted(runs.glob("*/")), (usual, usual | second), strict=True):
        config = yaml.safe_load((run / "config.yaml").read_text())
        config["data"] = {"path": values["path"]}
        config["choices"] |= {"data": values["data"]}
        (run / "config.yaml").write_text(yaml.safe_dump(config))
        provenance = json.loads((run / "provenance.json").read_text())
        provenance["data_fingerprint"] = values["content"]
        (run / "provenance.json").write_text(json.dumps(provenance))
    monkeypatch.setenv("COLUMNS", "200")
    show_runs(runs)
    cells = [
        line.split("│")[2].split() for line in capsys.readouterr().out.splitlines() if "│" in line
    ]
    assert sorted(word for words in cells for word in words) == sorted(shown)


def test_a_study_is_found_by_its_name(study, monkeypatch, capsys):
    (study.parent / "outputs").mkdir()
    study.rename(study.parent / "outputs" / "scores")
    monkeypatch.chdir(study.parent)
    assert ran(monkeypatch, "scores", "--status") == 0
    assert ran(monkeypatch, "scors", "--status") == 2
    assert "did you mean 'outputs/scores'?" in capsys.readouterr().err
    with refused("did you mean 'outputs/scores'?"):
        ablate.load_study("scores")


# Metrics that are read off a run: what it cost, and when it reached a value


THROUGHPUT = {"value": 30.0, "unit": "tokens/s"}
RESULT = {"steps": 100, "train_seconds": 50.0, "flops_per_step": 7, "throughput": THROUGHPUT}


class Recorded(Folder):
    """A run with the curve 3.0, 2.5, 1.9, 2.1 at steps 10, 20, 50, 100."""

    def curve(self, column):
        loss = [(10, 3.0), (20, 2.5), (50, 1.9), (100, 2.1)]
        return {"val/accuracy": [(10, 0.1), (100, 0.8)], "val/loss": loss}.get(column, [])


@pytest.mark.parametrize(
    ("metric", "value"),
    [
        ("steps_to:val/loss:2.5", 20),
        ("steps_to:val/loss:2.0", 50),
        ("steps_to:val/loss:1.0", 100),  # never
        ("seconds_to:val/loss:2.0", 25.0),
        ("flops_to:val/loss:2.0", 350),
        ("tokens_to:val/loss:2.0", 750.0),
        ("steps_to:val/accuracy:0.5", 100),
        ("steps_to:val/perplexity:2", None),
    ],
)
def test_when_a_value_was_reached(metric, value):
    assert reach(metric).of(Recorded(Path(), RESULT)) == value
    assert mode(metric) == "min"


@pytest.mark.parametrize(
    ("metric", "says"),
    [
        ("step_to:val/loss:2", "did you mean 'steps_to'"),
        ("steps_to:test/loss:2", "only a curve of validation"),
        ("steps_to:val/loss:low", "low is not a number"),
        ("steps_to:val/loss:nan", "nan is not a number"),
        ("steps_to:val/strange:1", "set the better direction"),
        ("cost/second", "did you mean 'cost/seconds'"),
    ],
)
def test_what_is_no_metric_is_refused(metric, says):
    with refused(says):
        require_known(metric)


def test_a_report_compares_by_what_was_reached_or_spent(study):
    first = next(run for run in collect(study).runs if run.finished)
    (step, value), *_ = sorted(first.curve("val/loss"), key=lambda point: point[1])
    report = judged(study, metric=f"steps_to:val/loss:{value + 1e-9}")
    assert step in report.baseline.values.values()
    never = judged(study, metric="steps_to:val/loss:0.001")
    assert set(never.baseline.values.values()) == {400.0}
    assert any(
        "Target value not reached" in line and "baseline (5 of 5 runs)" in line
        for line in never.remarks
    )
    costs = judged(study, metric="cost/seconds")
    assert (costs.mode, len(costs.baseline.values)) == ("min", 5)
    write(study, metric="steps_to:val/loss:0.001")
    (page,) = study.glob("report-*.html")
    assert "Target value not reached" in page.read_text()


def test_costs_and_what_was_reached_are_figures_of_every_result(study, tmp_path):
    run = next(run for run in collect(study).runs if run.finished)
    found = {name for name in COSTS if run.value(name) is not None}
    assert found >= {"cost/seconds", "cost/throughput", "cost/parameters", "cost/flops_per_step"}
    found = result_with(run.folder, run.run_id, "steps_to:val/loss:0.001")  # as tuning reads it
    assert found["metrics"] == {**run.result["metrics"], "steps_to:val/loss:0.001": 400.0}
    assert result_with(run.folder, run.run_id, "val/loss") == run.result
    assert result_with(tmp_path / "none", "", "val/loss") is None


def test_several_metrics_stand_in_one_table(tmp_path):
    """Each with the verdict that it has alone."""
    base, other = (
        arm([{"val/loss": loss, "val/accuracy": 0.5 + by} for loss in shifted(by)])
        for by in (0.0, 0.1)
    )
    arms = {"baseline": base, ADDITIVE: other}
    root = make_study(tmp_path / "s", arms, also=["val/accuracy"])
    assert "Other metrics" in write(root).files[0].read_text()
    found = json.loads((root / "report.json").read_text())
    (also,) = [row for row in found["extra_metrics"]["val/accuracy"] if row["name"] == ADDITIVE]
    assert (found["arms"][1]["verdict"], also["verdict"]) == ("worse", "better")
    assert "val/accuracy |" in (root / "report.md").read_text()
    assert judged(root, metric="val/accuracy").also == {}


def test_the_measures_of_a_task_are_in_a_table(tmp_path, capsys):
    """Of the metric's split, each whole and once, but for what study.extra_metrics has."""
    more = {"val/accuracy/length_4": 0.9, "val/perplexity": 9.0, "test/exact_match": 0.1}

    def measured(loss, exact):
        return {"val/loss": loss, "val/exact_match": exact, "val/bleu": 20.0, **more}

    arms = {
        "baseline": arm([measured(1.50, 0.80), measured(1.52, 0.84)]),
        ADDITIVE: arm([measured(1.40, 0.90), "failed: the loss became NaN"]),
    }
    root = make_study(tmp_path / "dates", arms, also=["val/bleu"])
    show(written := write(root))
    report = judged(root)
    assert [*report.measures] == ["val/exact_match"]
    assert [*judged(root, metric="val/exact_match").measures] == ["val/loss", "val/bleu"]
    measures = written.content["metrics"][0]
    assert measures.heads == ["arm", "val/exact_match"]
    assert measures.rows == [("baseline", "0.820 ± 0.028"), (ADDITIVE, "0.900")]
    texts = [written.files[0].read_text(), (root / "report.md").read_text()]
    texts.append(capsys.readouterr().out)
    assert [text for text in texts if "0.820 ± 0.028" not in text] == []
    found = json.loads((root / "report.json").read_text())["measures"]["val/exact_match"]
    assert found[ADDITIVE] == {"n": 1, "mean": 0.9, "sd": None}
