"""What forbids to compare an arm with the baseline, and what is recorded for it."""

import json
import os
import shutil
import subprocess

import pytest
from make_study import BASE, arm, change, make_study, scores, shifted

from ablate.study.analysis.collect import collect
from ablate.study.analysis.comparable import RULES, lines, objections
from ablate.study.analysis.rows import assemble
from ablate.training.record import CODE, code, provenance


def against(study):
    """(Arm, rule) -> reason."""
    found = objections(collect(study), "val/loss")
    return {(one.arm, one.rule): one.reason for one in found}


def test_arms_that_break_a_rule_are_refused_until_it_is_allowed(tmp_path):
    arms = {
        "baseline": arm(BASE),
        "a=none": arm(shifted(0.1)),
        "a=seeds": arm([*BASE[:4], "failed: out of memory"]),
        "a=data": arm(shifted(0.1), fingerprint="0123"),
        "a=code": arm(shifted(0.1), commit="0123"),
        "a=budget": arm(shifted(0.1), parameters=900_000),
        "a=leakage": arm(shifted(-0.1), caution="label leakage"),
    }
    match = {"budget": "parameters", "by": "model.ffn_dim"}
    study = collect(make_study(tmp_path / "s", arms, match=match))
    report = assemble(study)
    assert [row.arm.name for row in report.compared] == ["a=none"]
    for rule, said in zip(RULES, lines(report.objections), strict=True):
        assert said.startswith(f"not compared (rule {rule}): a={rule}: ")
        assert f"--allow {rule}" in said
        allowed = assemble(study, allow=[rule])
        assert {row.arm.name for row in allowed.compared} == {"a=none", f"a={rule}"}
        assert len(lines(allowed.objections)) == len(RULES) - 1
    assert not [o for o in objections(study, "cost/throughput") if o.rule == "leakage"]
    found = objections(study.rebased("a=leakage"), "val/loss")
    assert "the baseline: label leakage" in {o.reason for o in found if o.arm == "a=none"}


def test_data_that_depend_on_the_seed_are_compared_seed_by_seed(tmp_path):
    study = scores(tmp_path)
    for run in study.glob("*/provenance.json"):
        seed = json.loads((run.parent / "result.json").read_text())["seed"]
        change(run, data_fingerprint=f"of seed {seed}")
    assert {rule for _, rule in against(study)} == {"seeds"}


def test_a_baseline_without_a_seed_stops_every_arm(tmp_path):
    arms = {"baseline": arm([*BASE[:4], "failed: x"]), "a=1": arm(BASE), "a=2": arm(BASE)}
    report = assemble(collect(make_study(tmp_path / "s", arms)))
    assert [row.kind for row in report.rows] == ["baseline", "excluded", "excluded"]
    assert len(lines(report.objections)) == 1


@pytest.mark.parametrize("origin", [{"dirty": True}, {"commit": None}], ids=["changed", "no git"])
def test_uncommitted_code_is_distinguished_by_its_source(tmp_path, origin):
    sources = {"baseline": {}, "a=1": {}, "a=2": {"source": "0123"}, "a=3": {"source": None}}
    arms = {name: arm(BASE, **origin, **source) for name, source in sources.items()}
    found = against(make_study(tmp_path / "s", arms))
    assert list(found) == [("a=2", "code"), ("a=3", "code")]
    assert "(source 0123)" in found["a=2", "code"]
    assert found["a=3", "code"] == "its code was not recorded"


def test_a_part_that_was_edited_between_two_seeds_is_not_compared(tmp_path):
    study = make_study(tmp_path / "s", {"baseline": arm(BASE), "a=1": arm(BASE), "a=2": arm(BASE)})
    for file in study.glob("a=*/provenance.json"):
        seed = json.loads((file.parent / "result.json").read_text())["seed"]
        parts = {"my.l2": "edited" if file.parent.name.startswith("a=1") and seed > 2 else "first"}
        change(file, custom_code=parts)
    found = against(study)
    assert list(found) == [("a=1", "code")]
    assert found["a=1", "code"].startswith(
        "my.l2 was edited between runs of seeds 0 and 3 (study.rerun"
    )


@pytest.mark.parametrize("whose", ["*", "baseline-*"])
def test_runs_without_a_record_are_not_compared(tmp_path, whose):
    study = make_study(tmp_path / "s", {"baseline": arm(BASE), "a=1": arm(BASE)})
    for file in study.glob(f"{whose}/provenance.json"):
        file.unlink()
    assert list(against(study)) == [("a=1", "data"), ("a=1", "code")]
    assert "was not recorded" in against(study)["a=1", "data"]


def test_what_training_reads_is_a_budget(tmp_path):
    arms = {
        "baseline": arm(BASE),
        "a=1": arm(BASE, tokens=2048),  # batches or windows of another size
        "a=2": arm(BASE, tokens=1034),  # processes that share texts count their own ones
        "a=3": arm(BASE, steps=800),
        "a=4": arm(BASE, steps=200, tokens=2048),
        "a=5": arm(BASE, parameters=900_000, seconds=91.7),  # nothing was matched
    }
    found = against(make_study(tmp_path / "s", arms))
    assert list(found) == [(f"a={n}", "budget") for n in (1, 3, 4)]
    reason = "819,200 tokens in training, +100.0% of the baseline's 409,600"
    assert found["a=1", "budget"] == reason


def test_the_best_of_more_validations_is_not_compared(tmp_path):
    """Of one training, validated at every second step."""
    study = make_study(tmp_path / "s", {"baseline": arm(BASE), "a=1": arm(BASE), "a=2": arm(BASE)})
    for file in study.glob("a=1-*/metrics.csv"):
        head, *rows = file.read_text().splitlines()
        file.write_text("\n".join([head, *(row for row in rows if not row.endswith(","))][::2]))
    assert list(against(study)) == [("a=1", "budget")]
    assert "validations, the baseline" in against(study)["a=1", "budget"]


@pytest.mark.skipif(shutil.which("git") is None, reason="git is not installed")
def test_the_record_of_the_code(tmp_path, monkeypatch):
    package = tmp_path / "package"
    file = package / "part" / "one.py"
    file.parent.mkdir(parents=True)
    file.write_text("a = 1")
    assert code(package)["git"] is None
    for command in ("init", "add .", "-c user.name=x -c user.email=x@y.z commit -m first"):
        subprocess.run(["git", *command.split()], cwd=tmp_path, check=True, capture_output=True)
    (tmp_path / "notes.txt").write_text("of the person, and results")
    (file.parent / ".#one.py").symlink_to("nobody@nowhere")  # an editor's mark, ignored by most
    (tmp_path / ".gitignore").write_text(".#*")
    clean = code(package)
    assert (len(clean["git"]["commit"]), clean["git"]["dirty"]) == (40, False)

    found = [clean]
    for number in (2, 3, 1):
        file.write_text(f"a = {number}")
        if number == 1:
            (package / "two.py").touch()
        found.append(code(package))
    assert [one["git"] for one in found[1:]] == [clean["git"] | {"dirty": True}] * 3
    assert len({one["source"] for one in found}) == 4
    (package / "two.py").unlink()
    monkeypatch.setenv("PATH", os.devnull)
    assert code(package) == {"git": None, "source": clean["source"]}


def test_a_run_records_the_code_that_its_process_has_read():
    assert provenance("of some data", []).items() >= CODE.items()
    assert len(CODE["source"]) == 16
