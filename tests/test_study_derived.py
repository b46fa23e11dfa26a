"""Metrics that are read off a run: what it cost, and when it reached a value."""

import json

import pytest
from make_study import ADDITIVE, arm, make_study, scores, shifted

from ablate.errors import UserError
from ablate.study.analysis.collect import collect
from ablate.study.analysis.derived import COSTS, mode, reach, require_known
from ablate.study.plan.tune import result_with
from ablate.study.report import write
from ablate.study.report.rows import assemble


class Recorded:
    """A run with the curve 3.0, 2.5, 1.9, 2.1 at steps 10, 20, 50, 100."""

    throughput = {"value": 30.0, "unit": "tokens/s"}
    result = {"steps": 100, "train_seconds": 50.0, "flops_per_step": 7, "throughput": throughput}

    def number(self, *path):
        value = self.result.get(path[0])
        return value[path[1]] if isinstance(value, dict) else value

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
    assert reach(metric).of(Recorded()) == value
    assert mode(metric) == "min"


@pytest.mark.parametrize(
    ("metric", "says"),
    [
        ("step_to:val/loss:2", "must begin with steps_to, .*did you mean 'steps_to'"),
        ("steps_to:test/loss:2", "only a curve of validation"),
        ("steps_to:val/loss:low", "low is no number"),
        ("steps_to:val/strange:1", "say which is better"),
        ("cost/second", "did you mean 'cost/seconds'"),
    ],
)
def test_what_is_no_metric_is_refused(metric, says):
    with pytest.raises(UserError, match=says):
        require_known(metric)


def test_a_report_compares_by_what_was_reached_or_spent(tmp_path):
    study = scores(tmp_path)
    first = next(run for run in collect(study).runs if run.finished)
    (step, value), *_ = sorted(first.curve("val/loss"), key=lambda point: point[1])
    report = assemble(collect(study), metric=f"steps_to:val/loss:{value + 1e-9}")
    assert step in report.baseline.values.values()
    never = assemble(collect(study), metric="steps_to:val/loss:0.001")
    assert set(never.baseline.values.values()) == {400.0}
    assert any("Never reached" in line and "baseline (5 of 5 runs)" in line for line in never.marks)
    costs = assemble(collect(study), metric="cost/seconds")
    assert (costs.mode, len(costs.baseline.values)) == ("min", 5)
    write(study, metric="steps_to:val/loss:0.001")
    (page,) = study.glob("report-*.html")
    assert "Never reached" in page.read_text()


def test_costs_and_what_was_reached_are_figures_of_every_result(tmp_path):
    run = next(run for run in collect(scores(tmp_path)).runs if run.finished)
    found = {name for name in COSTS if run.value(name) is not None}
    assert found >= {"cost/seconds", "cost/throughput", "cost/parameters", "cost/flops_per_step"}
    found = result_with(run.folder, "steps_to:val/loss:0.001")  # as tuning reads it
    assert found["metrics"] == {**run.result["metrics"], "steps_to:val/loss:0.001": 400.0}
    assert result_with(run.folder, "val/loss") == run.result
    assert result_with(tmp_path / "none", "val/loss") is None


def test_several_metrics_stand_in_one_table(tmp_path):
    """Each with the verdict that it has alone."""
    base, other = (
        arm([{"val/loss": loss, "val/accuracy": 0.5 + by} for loss in shifted(by)])
        for by in (0.0, 0.1)
    )
    root = make_study(tmp_path / "s", {"baseline": base, ADDITIVE: other})
    plan = json.loads((root / "plan.json").read_text())
    (root / "plan.json").write_text(json.dumps(plan | {"also": ["val/accuracy"]}))
    assert "Other metrics" in write(root).files[0].read_text()
    found = json.loads((root / "report.json").read_text())
    (also,) = [row for row in found["also"]["val/accuracy"] if row["name"] == ADDITIVE]
    assert (found["arms"][1]["verdict"], also["verdict"]) == ("worse", "better")
    assert "val/accuracy |" in (root / "report.md").read_text()
    assert assemble(collect(root), "val/accuracy").also == {}
