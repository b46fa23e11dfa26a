"""A run measured under several conditions (evaluate=): after training, and of a finished run."""

import json
from pathlib import Path

import pytest
from omegaconf import OmegaConf
from tiny import overrides

import ablate
from ablate.errors import UserError
from ablate.evaluate import evaluate
from ablate.training.load import load
from ablate.training.measure import measure_under

LONG = "evaluate={long: {data.seq_len: 8}}"
BOTH = "evaluate={long: {data.seq_len: 8}, short: {data.seq_len: 4}}"
STEPS = ("trainer.max_steps=4", "trainer.val_check_interval=4")


@pytest.mark.ci
def test_a_run_is_measured_under_each_condition_without_training_again(tmp_path: Path) -> None:
    cfg = ablate.compose(*overrides(tmp_path, *STEPS, LONG))
    OmegaConf.set_readonly(cfg, True)  # as that of a command
    result = ablate.run(cfg, tmp_path / "run")
    there = evaluate(load(tmp_path / "run"), {"data.seq_len": 8})
    assert {n: result["metrics"][f"{n}@long"] for n in there} == there
    assert there["val/loss"] != result["metrics"]["val/loss"]
    weights = next((tmp_path / "run/checkpoints").glob("best*"))
    written = weights.stat().st_mtime_ns
    both = ablate.compose(*overrides(tmp_path, *STEPS, BOTH))
    again = ablate.run(both, tmp_path / "run")
    assert again["run_id"] == result["run_id"]
    assert weights.stat().st_mtime_ns == written
    assert again["metrics"]["val/loss@short"] not in (None, result["metrics"]["val/loss"])
    assert again["metrics"]["val/loss@long"] == result["metrics"]["val/loss@long"]
    on_disk = json.loads((tmp_path / "run/result.json").read_text())
    assert on_disk["metrics"] == again["metrics"]
    assert on_disk["evaluated"] == {"long": {"data.seq_len": 8}, "short": {"data.seq_len": 4}}


def test_a_condition_may_have_the_name_of_a_split(tmp_path: Path) -> None:
    """What was measured by lm-evaluation-harness under that name is gone."""
    run = ablate.run(ablate.compose(*overrides(tmp_path, *STEPS)), tmp_path / "run")
    loaded = load(tmp_path / "run")
    run["metrics"] |= {"core/a/acc": 1.0}
    run["evaluated"] = {"core": "lm_eval:a"}
    short = {"data.seq_len": 4}
    measure_under(
        run, loaded.task, loaded.data, loaded.config, {"val": short, "core": short}, loaded.path
    )
    assert {"val/loss", "val/loss@val", "val/loss@core"} <= run["metrics"].keys()
    assert "core/a/acc" not in run["metrics"]


@pytest.mark.ci
@pytest.mark.parametrize(
    ("positions", "message"),
    [
        (["pos_enc=learned"], "pos_enc=learned was trained for 16"),
        (
            ["pos_enc=sinusoidal", "pos_enc.randomize=31"],
            "pos_enc.randomize=31: must be at least 32",
        ),
    ],
)
def test_what_the_model_cannot_read_is_said_and_nothing_is_lost(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], positions: list[str], message: str
) -> None:
    longer = "evaluate={long: {data.seq_len: 32}, short: {data.seq_len: 4}}"
    cfg = ablate.compose(*overrides(tmp_path, *STEPS, longer, *positions))
    result = ablate.run(cfg, tmp_path / "run")
    assert f"evaluate.long: {message}" in capsys.readouterr().out
    assert result["status"] == "finished"
    assert "val/loss@short" in result["metrics"]
    assert "val/loss@long" not in result["metrics"]
    assert [*result["evaluated"]] == ["short"]
    assert [*result["not_evaluated"]] == ["long"]
    fits = ablate.compose(*overrides(tmp_path, *STEPS, LONG, *positions))
    again = ablate.run(fits, tmp_path / "run")
    assert ("val/loss@long" in again["metrics"], again.get("not_evaluated")) == (True, None)
    again = ablate.run(cfg, tmp_path / "run")
    assert ("val/loss@long" in again["metrics"], [*again["not_evaluated"]]) == (False, ["long"])


@pytest.mark.parametrize(
    ("given", "says"),
    [
        ("evaluate={x: {model.dim: 8}}", r"model\.dim=8: a finished run can be measured"),
        (
            "evaluate={x: {data.tokenizer: byte}}",
            "byte: changes nothing that is measured; .* other data.path, ",
        ),
        (
            "evaluate={x: {data.val_fraction: 0.5}}",
            "would measure examples .* trained on; .* other",
        ),
        ("evaluate={x: {data.seq_len: 0}}", r"data\.seq_len=0"),
        ("evaluate={x: 5}", r"evaluate\.x: must be a name"),
        ("evaluate={128: {data.seq_len: 128}}", "with names that are not numbers"),
    ],
)
def test_what_cannot_be_measured_is_refused_before_training(
    tmp_path: Path, given: str, says: str
) -> None:
    with pytest.raises(UserError, match=says):
        ablate.run(ablate.compose(*overrides(tmp_path, *STEPS, given)), tmp_path / "run")
    assert not (tmp_path / "run/checkpoints/last.ckpt").exists()
