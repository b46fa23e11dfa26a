"""The report at W&B: what is sent, to a server of our own, and what is said where none is."""

import base64
import json
import os
import shutil
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import replace
from typing import Any
from unittest import mock

import pytest
from make_study import ADDITIVE, BASE, change, scores, shifted
from wandb_server import KEY, Server, running

from ablate.errors import RunFailed, UserError
from ablate.study.analysis.offline import sync_command
from ablate.study.publish import publish, require_workspaces, summaries
from ablate.study.publish.views import title
from ablate.study.report import WrittenReport, write

COSINE, GENERAL = "model.attention=cosine", "model.attention=general"
LOGGER = """logger:
  _target_: ablate.logger.wandb.WandB
  project: ablate
  entity: null
  job_type: null
"""
KEY_OF = "difference/val/loss"


@contextmanager
def here(environment: dict[str, str]) -> Iterator[None]:
    """W&B in this process with these settings and no others."""
    import wandb

    kept = {k: v for k, v in os.environ.items() if not k.startswith("WANDB_")}
    wandb.teardown()
    with mock.patch.dict(os.environ, {**kept, "NETRC": "/nowhere", **environment}, clear=True):
        yield
    wandb.teardown()


@pytest.fixture(scope="module")
def made(tmp_path_factory: pytest.TempPathFactory) -> WrittenReport:
    """A study whose runs were logged, and its report."""
    study = scores(tmp_path_factory.mktemp("made"))
    for file in study.glob("*/result.json"):
        change(file, logged_to="https://wandb.ai/me/ablate/runs/x")
        with open(file.parent / "config.yaml", "a") as config:
            config.write(LOGGER)
    return write(study)


def moved(made: WrittenReport, **changes: Any) -> WrittenReport:
    """The same report of another study, without files."""
    study = replace(made.report.study, **changes)
    return replace(made, report=replace(made.report, study=study), files=())


def runs_of(written: WrittenReport, arm: str) -> list[str]:
    """Run ids by seed."""
    return [run.run_id for run in written.report.study.runs_of(arm).values()]


def test_every_run_has_its_difference_from_the_run_of_its_seed(made):
    values = summaries(made.report)
    arms = ("baseline", ADDITIVE, GENERAL)
    base, other, refused = ([values[run][KEY_OF] for run in runs_of(made, arm)] for arm in arms)
    assert base == [0.0] * 5
    assert other == pytest.approx([a - b for a, b in zip(shifted(0.1), BASE, strict=True)])
    assert refused == [None] * 5  # it is not compared


def test_names_are_those_that_wandb_takes():
    assert title("model.attention+seed=3 | ü") == "model.attention-seed-3 - ü"
    long = [title("x" * 200 + end) for end in "ab"]
    assert long[0] != long[1]
    assert max(map(len, long)) == 128


@pytest.fixture(scope="module")
def server(made: WrittenReport) -> Iterator[Server]:
    """Everything there after the report was sent twice."""
    with running() as server, here(server.environment):
        for arm in ("baseline", ADDITIVE, GENERAL):
            for name in runs_of(made, arm):
                server.run(name)["summaryMetrics"] = json.dumps({"val/loss": 1.5, KEY_OF: 7})
        with pytest.raises(RunFailed, match="/me/ablate lacks 5 of 20 runs of scores"):
            publish(made)
        for name in runs_of(made, COSINE):
            server.run(name)
        publish(made)
        yield server


@pytest.mark.ci
def test_the_report_is_one_run_and_three_views_beside_differences(server, made):
    assert not server.unknown
    values = summaries(made.report)
    for arm in (ADDITIVE, COSINE):  # the second came later
        for name in runs_of(made, arm):
            assert server.summary(name)[KEY_OF] == values[name][KEY_OF]
    assert server.summary(runs_of(made, ADDITIVE)[0])["val/loss"] == 1.5  # what was there stays
    assert KEY_OF not in server.summary(runs_of(made, GENERAL)[0])
    (name,) = [name for name in server.runs if name.startswith("report-")]
    run = server.runs[name]
    assert (run["group"], run["jobType"]) == ("scores", "report")
    (line,) = run["history"]  # the second time there was nothing new
    table = json.loads(run["files"][line["report/table"]["path"]])
    assert [row[0] for row in table["data"]] == ["baseline", COSINE, ADDITIVE, GENERAL]
    folder = made.report.study.folder
    for file in ("report.html", "report.md", "table.tex", "runs.csv", "figures/forest.png"):
        assert run["files"][file] == (folder / file).read_bytes()
    views = {v["displayName"].rpartition(": ")[2]: v["spec"] for v in server.views.values()}
    assert views.keys() == {"arms", "runs against the baseline", "ablation report"}
    (arms,) = json.loads(views["arms"])["section"]["runSets"]
    assert arms["grouping"] == [{"section": "config", "name": "ablate.value.arm"}]
    conditions = {one["key"]["name"]: one["value"] for one in arms["filters"]["filters"]}
    wanted = {"ablate.value.study": "scores", "jobType": "train", "state": "finished"}
    assert conditions == wanted
    (runs,) = json.loads(views["runs against the baseline"])["section"]["runSets"]
    against = base64.b64decode(runs["baselineRunId"]).decode()
    assert against == f"Run:v1:{runs_of(made, 'baseline')[0]}:ablate:me"
    assert "| " + COSINE in views["ablation report"]
    server.views.clear()  # what was removed there is made anew
    publish(made)
    assert len(server.views) == 3


@pytest.mark.ci
@pytest.mark.parametrize(
    ("environment", "words"),
    [
        ({}, "no API key; set it by `wandb login`"),
        ({"WANDB_API_KEY": KEY, "WANDB_MODE": "offline"}, r"switched off here \(WANDB_MODE=off"),
    ],
)
def test_without_network_the_command_is_to_be_repeated(made, tmp_path, environment, words):
    with here(environment), pytest.raises(RunFailed, match=words) as error:
        publish(moved(made, folder=tmp_path))
    assert "the same command sends the report" in str(error.value)


def test_what_cannot_be_published_is_refused(made, tmp_path, monkeypatch):
    runs = tuple(replace(r, result={**r.result, "logged_to": None}) for r in made.report.study.runs)
    with pytest.raises(UserError, match="no run of scores was logged to W&B"):
        publish(moved(made, folder=tmp_path, runs=runs))
    assert not list(tmp_path.iterdir())
    refused = pytest.raises(RunFailed, match=r"rejects the API key \(HTTP 401\)")
    with running(refuse=401) as server, here(server.environment), refused:
        publish(moved(made, folder=tmp_path))
    monkeypatch.setattr("ablate.study.publish.find_spec", lambda name: None)
    with pytest.raises(UserError, match=r"pip install 'ablate-attention\[wandb\]'"):
        require_workspaces()


def test_one_command_syncs_offline_runs(made):
    study = made.report.study
    assert sync_command(study) is None
    place = study.runs[3].folder / "wandb" / "offline-run-20261120_160000-x"
    place.mkdir(parents=True)
    (place / "run-x.wandb").touch()
    assert sync_command(study) == f"wandb sync {study.folder}/*/wandb"
    (place / "run-x.wandb.synced").touch()
    assert sync_command(study) is None
    shutil.rmtree(place)
