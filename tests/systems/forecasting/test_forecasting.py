"""task=forecasting: every measure against loops in numpy, and what is done with a finished run."""

import csv
import json

import numpy as np
import pytest
import torch
from tiny import four_steps, rows_of, trained

import ablate
from ablate import evaluate, generate
from ablate.errors import UserError

WITH_FIGURES = True  # tests/conftest.py

COUNT, WINDOW, HORIZON, PERIOD = 90, 8, 7, 3
ENDS = {"val": (60, 75), "test": (75, 90)}  # a sixth each
COLUMNS = ["load", "price"]


def write(path, *, seed=0, scale=1.0):
    """Two columns of different sizes: a period of three and noise; n c."""
    rng = np.random.default_rng(seed)
    wave = 3 * np.sin(np.arange(COUNT) * 2 * np.pi / PERIOD)[:, None]
    series = ((rng.normal(size=(COUNT, 2)) + wave) * [1.0, 40.0] + [5.0, -300.0]) * scale
    with open(path, "w", newline="", encoding="utf-8") as file:
        csv.writer(file).writerows([COLUMNS, *series.tolist()])
    return series


@pytest.fixture(scope="module", params=["rnn", pytest.param("transformer", marks=pytest.mark.slow)])
def finished(request, tmp_path_factory):
    """The series, n c, and the run that learned it, in a second."""
    folder = tmp_path_factory.mktemp(request.param)
    series = write(folder / "series.csv")
    attention = ["model.attention=additive"] if request.param == "rnn" else []
    run = trained(
        f"model={request.param}_forecaster",
        *(f"data.path={folder / 'series.csv'}", f"data.columns=[{','.join(COLUMNS)}]"),
        *(f"data.window={WINDOW}", f"data.horizon={HORIZON}", f"data.period={PERIOD}"),
        *(f"data.val_fraction={1 / 6}", f"data.test_fraction={1 / 6}", "data.batch_size=4"),
        *("model.dim=8", "model.depth=1", "trainer.log_every_n_steps=1", *four_steps(folder)),
        *attention,
    )
    return series, ablate.load(run)


def rolled(run, read, steps):
    """What the model says after the last of n c, each forecast read as a value; by hand."""
    mean, deviation = run.data.mean, run.data.deviation
    known = [*(read - mean) / deviation]
    for _ in range(steps):
        window = torch.tensor(np.array(known[-WINDOW:]), dtype=torch.float32)[None]
        with torch.no_grad():
            known.append(run.model(window)[0, -1].double().numpy())
    return np.array(known[len(read) :]) * deviation + mean


def by_hand(run, series, split, *, horizon=HORIZON, ends=None):
    """All measures of a split."""
    first, end = ends or ENDS[split]
    forecasts = {
        "": lambda now, steps: rolled(run, series[:now], steps),
        "naive_": lambda now, steps: series[[now - 1] * steps],
        "seasonal_": lambda now, steps: series[[now - PERIOD + s % PERIOD for s in range(steps)]],
    }
    found = {}
    for kind, forecast in forecasts.items():
        for name, steps in (("", 1), ("horizon_", horizon)):
            places = range(first, end - steps + 1)
            errors = [forecast(now, steps) - series[now : now + steps] for now in places]
            every = np.concatenate(errors)
            for measure, values in {
                "mae": np.abs(every).mean(0),
                "rmse": np.sqrt((every**2).mean(0)),
            }.items():
                key = f"{split}/{kind}{name}{measure}"
                found[key] = values.mean()
                found |= {f"{key}/{c}": value for c, value in zip(COLUMNS, values, strict=True)}
    return found


@pytest.mark.ci
def test_every_measure_is_what_loops_find(finished):
    series, run = finished
    measured = dict(run.result["metrics"])
    losses = {split: measured.pop(f"{split}/loss") for split in ENDS}
    expected = by_hand(run, series, "val") | by_hand(run, series, "test")
    assert measured == pytest.approx(expected, rel=1e-4)
    for split in ENDS:
        rmse = np.array([measured[f"{split}/rmse/{column}"] for column in COLUMNS])
        normalized = np.square(rmse / run.data.deviation).mean()
        assert losses[split] == pytest.approx(normalized, rel=1e-4)
    assert run.result["metric"]["name"] == "val/rmse"


@pytest.mark.ci
def test_during_training_only_one_step_is_measured(finished):
    _, run = finished
    rows = rows_of(run.path)
    measured = {name for name in rows[0] if name.startswith("val/")}
    parts = {f"val/{name}/{column}" for name in ("mae", "rmse") for column in COLUMNS}
    assert measured == {"val/loss", "val/mae", "val/rmse"} | parts
    best = min(float(row["val/rmse"]) for row in rows if row["val/rmse"])
    assert run.result["metrics"]["val/rmse"] == pytest.approx(best, rel=1e-5)


@pytest.mark.ci
def test_another_horizon_and_another_series(finished, tmp_path, printed):
    series, run = finished
    measured = evaluate.evaluate(run, {"data.horizon": 2})
    expected = by_hand(run, series, "test", horizon=2)
    assert {name: measured[name] for name in expected} == pytest.approx(expected, rel=1e-4)
    assert measured["test/rmse"] == pytest.approx(run.result["metrics"]["test/rmse"], rel=1e-5)

    path = tmp_path / "other.csv"
    other = write(path, seed=1, scale=3)
    path.write_text(path.read_text().replace("load,price", "a,b"))
    change = [f"data.path={path}", "data.columns=[a,b]", "--json"]
    row = json.loads(printed(evaluate, run.path, *change))
    # The whole of it, with the mean and deviation of the run.
    ends = (run.data.window, len(other))
    for name, value in by_hand(run, other, "val", ends=ends).items():
        if name.count("/") == 1:
            assert row[name] == pytest.approx(value, rel=1e-4), name


def test_the_forecast_continues_after_the_end(finished, tmp_path, monkeypatch, printed):
    series, run = finished

    lines = printed(generate, run.path, "--steps", "10").splitlines()
    header, *rows = (line.split("\t") for line in lines)
    assert header == ["time", *COLUMNS]
    assert [int(row[0]) for row in rows] == list(range(COUNT + 1, COUNT + 11))
    expected = rolled(run, series, 10)
    np.testing.assert_allclose([[*map(float, row[1:])] for row in rows], expected, rtol=1e-4)
    figures = {path.name for path in (run.path / "figures").glob("*.png")}
    assert {"forecast.png", "attention_layer_01.png"} <= figures
    assert (run.path / "sample.txt").read_text().splitlines() == lines[: HORIZON + 1]
    assert run.data.splits  # are read with the horizon of the run
    monkeypatch.setattr(run.data, "horizon", 70)  # more values than the training part has
    assert run.task.presenter(run.task).draw(tmp_path / "drawn.png").exists()
    with pytest.raises(UserError, match=r"--prompt: .*is a forecasting model.*--steps"):
        printed(generate, run.path, "--prompt", "The ")
    with pytest.raises(UserError, match=r"argument --steps: 0 must be an integer of at least 1"):
        printed(generate, run.path, "--steps", "0")


@pytest.mark.slow
@pytest.mark.parametrize("model", ["rnn_forecaster", "transformer_forecaster"])
def test_sunspots_are_forecast_better_than_naively(model, tmp_path):
    cfg = ablate.compose(f"model={model}", "logger=none", f"output_dir={tmp_path}")
    metrics = ablate.run(cfg)["metrics"]
    for naive in ("naive", "seasonal"):
        for measure in ("mae", "rmse"):
            assert metrics[f"test/{measure}"] < 0.8 * metrics[f"test/{naive}_{measure}"]
