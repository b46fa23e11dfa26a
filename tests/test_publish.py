"""The report at W&B: what is sent, to a server of our own, and what is said where none is."""

import json
import os
import shutil
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import replace
from pathlib import Path
from typing import Any
from unittest import mock

import pytest
from make_study import ADDITIVE, BASE, scores, shifted
from wandb_server import KEY, Server, running

from ablate import report as command_line
from ablate.errors import RunFailed, UserError
from ablate.study.analysis.collect import collect
from ablate.study.publish import publish, require_workspaces
from ablate.study.publish.offline import sync_command
from ablate.study.publish.specification import specification, title
from ablate.study.publish.views import _filters, _literal
from ablate.study.report import Written, write

COSINE = "model.attention=cosine"
GENERAL = "model.attention=general"
LOGGER = "logger:\n  _target_: ablate.logger.wandb.WandB\n  project: ablate\n  entity: null\n"
KEY_OF = "difference/val/loss"


def logged(study: Path) -> Path:
    """As if its runs had been logged to W&B."""
    for folder in study.glob("*/"):
        if (folder / "result.json").exists():
            result = json.loads((folder / "result.json").read_text())
            result["logged_to"] = "https://wandb.ai/me/ablate/runs/x"
            (folder / "result.json").write_text(json.dumps(result))
            with open(folder / "config.yaml", "a") as file:
                file.write(LOGGER)
    return study


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
def made(tmp_path_factory: pytest.TempPathFactory) -> Written:
    """A study whose runs were logged, and its report."""
    return write(logged(scores(tmp_path_factory.mktemp("made"))))


@pytest.fixture
def written(made: Written, tmp_path: Path) -> Written:
    """The same in an empty folder, without files."""
    return moved(made, folder=tmp_path)


def moved(made: Written, **changes: Any) -> Written:
    """The same report of another study."""
    study = replace(made.report.study, **changes)
    return replace(made, report=replace(made.report, study=study), files=())


def runs_of(written: Written, arm: str) -> list[str]:
    """Run ids by seed."""
    return [run.run_id for run in written.report.study.runs_of(arm).values()]


def test_every_run_has_its_difference_from_the_run_of_its_seed(made: Written) -> None:
    found = specification(made)["summaries"]
    values = {arm: [found[name][KEY_OF] for name in runs_of(made, arm)]
              for arm in ("baseline", ADDITIVE, GENERAL)}  # fmt: skip
    assert values["baseline"] == [0.0] * 5
    pairs = zip(shifted(0.1), BASE, strict=True)
    assert values[ADDITIVE] == pytest.approx([own - base for own, base in pairs])
    assert values[GENERAL] == [None] * 5  # it is not compared


def test_the_specification_is_plain(made: Written) -> None:
    spec = specification(made)
    assert json.loads(json.dumps(spec)) == spec
    assert (spec["project"], spec["entity"]) == ("ablate", None)
    lines = [
        dict(zip(spec["run"]["table"]["columns"], row, strict=True))
        for row in spec["run"]["table"]["rows"]
    ]
    assert [line["arm"] for line in lines] == ["baseline", ADDITIVE, COSINE, GENERAL]
    assert lines[1]["difference"] == pytest.approx(0.1, abs=0.01)
    assert lines[1]["low"] < lines[1]["difference"] < lines[1]["high"]
    assert spec["views"]["runs"]["baseline_run"] == runs_of(made, "baseline")[0]
    assert "| " + COSINE in spec["report"]["text"]
    assert "](figures/" not in spec["report"]["text"]  # W&B could not show them


def test_the_report_goes_where_the_runs_are(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Their config.yaml holds what they took from the environment of that time."""
    study = logged(scores(tmp_path))
    for file in study.glob("*/config.yaml"):
        text = file.read_text().replace("project: ablate", "project: theirs\n  job_type: a job")
        file.write_text(text)
    monkeypatch.setenv("WANDB_PROJECT", "another")
    spec = specification(write(study))
    assert (spec["project"], spec["job_type"]) == ("theirs", "a job")
    assert _literal("a job") in _filters(spec)


def test_a_study_that_was_logged_elsewhere_is_refused(made: Written, tmp_path: Path) -> None:
    runs = tuple(
        replace(run, result={**run.result, "logged_to": None}) for run in made.report.study.runs
    )
    with pytest.raises(UserError, match="no run of scores was logged to W&B"):
        publish(moved(made, folder=tmp_path, runs=runs))
    assert not list(tmp_path.iterdir())


def test_names_are_those_that_wandb_takes() -> None:
    assert title("model.attention+seed=3 | ü") == "model.attention-seed-3 - ü"
    long = [title("x" * 200 + end) for end in "ab"]
    assert long[0] != long[1]
    assert max(map(len, long)) == 128


def test_a_name_in_a_filter_is_taken_as_it_is() -> None:
    from wandb_workspaces import expr

    name = """a=b <c> 'd' "e" within_last \\ ü 🙂"""
    (leaf,) = expr.filters_tree_to_v2(expr.expr_to_filters(f'Config("a") == {_literal(name)}'))[
        "filters"
    ]
    assert leaf["value"] == name


class Sent:
    """Everything on the server after the report was sent twice."""

    def __init__(self, server: Server, written: Written):
        self.server, self.written = server, written
        self.where = json.loads((written.report.study.folder / "wandb.json").read_text())["where"]

    def view(self, end: str) -> dict[str, Any]:
        """The section of a workspace, or the spec of a report."""
        (found,) = [v for v in self.server.views.values() if v["displayName"].endswith(end)]
        spec: dict[str, Any] = json.loads(found["spec"])
        return spec.get("section", spec)


@pytest.fixture(scope="module")
def sent(made: Written) -> Iterator[Sent]:
    with running() as server, here(server.environment):
        for arm in ("baseline", ADDITIVE, GENERAL):
            for name in runs_of(made, arm):
                server.run(name)["summaryMetrics"] = json.dumps({"val/loss": 1.5, KEY_OF: 7})
        with pytest.raises(RunFailed, match="/me/ablate lacks 5 of 20 runs of scores"):
            publish(made)
        for name in runs_of(made, COSINE):
            server.run(name)
        publish(made)
        yield Sent(server, made)


@pytest.mark.slow
def test_differences_are_in_the_summaries(sent: Sent) -> None:
    assert not sent.server.unknown
    names = runs_of(sent.written, ADDITIVE)
    wanted = specification(sent.written)["summaries"]
    assert [sent.server.summary(n)[KEY_OF] for n in names] == [wanted[n][KEY_OF] for n in names]
    assert sent.server.summary(names[0])["val/loss"] == 1.5  # what was there stays
    assert KEY_OF not in sent.server.summary(runs_of(sent.written, GENERAL)[0])
    assert KEY_OF in sent.server.summary(runs_of(sent.written, COSINE)[0])  # came later


def test_the_report_is_one_run(sent: Sent) -> None:
    (name,) = [name for name in sent.server.runs if name.startswith("report-")]
    run = sent.server.runs[name]
    assert (run["group"], run["jobType"]) == ("scores", "report")
    assert sent.server.config(name)["ablate"] == {"study": "scores"}
    (line,) = run["history"]  # the second time there was nothing new
    assert line["report/table"]["nrows"] == 4
    assert line["report/forest"]["_type"] == "image-file"
    table = json.loads(run["files"][line["report/table"]["path"]])
    assert table["data"][1][0] == ADDITIVE
    folder = sent.written.report.study.folder
    for file in ("report.html", "report.md", "table.tex", "runs.csv", "figures/forest.png"):
        assert run["files"][file] == (folder / file).read_bytes()
    assert sent.where["run"].endswith(f"/me/ablate/runs/{name}")


def test_one_view_has_the_arms_with_the_baseline_coloured(sent: Sent) -> None:
    section = sent.view(": arms")
    (runs,) = section["runSets"]
    assert runs["grouping"] == [{"section": "config", "name": "ablate.value.arm"}]
    conditions = {f["key"]["name"]: f["value"] for f in runs["filters"]["filters"]}
    wanted = {"ablate.value.study": "scores", "jobType": "train", "state": "finished"}
    assert conditions == wanted
    colours = {
        key.partition("value%22%3A%22")[2]: v for key, v in section["customRunColors"].items()
    }
    assert colours["baseline%22%7D%5D"] == "#808080"
    assert len(set(colours.values())) == 4
    charts = section["panelBankConfig"]["sections"][0]["panels"]
    metrics = [(c["config"]["metrics"], c["config"]["groupBy"]) for c in charts]
    by = "ablate.value.arm"
    assert metrics == [(["val/loss"], by), (["val/loss"], by), ([KEY_OF], by)]


def test_one_view_holds_the_runs_against_the_baseline(sent: Sent) -> None:
    import base64

    section = sent.view(": runs against the baseline")
    (runs,) = section["runSets"]
    assert runs["grouping"] == []
    base = runs_of(sent.written, "baseline")
    assert base64.b64decode(runs["baselineRunId"]).decode() == f"Run:v1:{base[0]}:ablate:me"
    assert section["customRunColors"] == dict.fromkeys(base, "#808080")
    assert f"summary:{KEY_OF}" in runs["runFeed"]["columnOrder"]


def test_the_report_of_wandb_has_text_charts_and_the_figures(sent: Sent) -> None:
    blocks = sent.view(": ablation report")["blocks"]
    text, arms, figures = [b for b in blocks if b["type"] != "paragraph"]
    assert "## What came out" in text["content"]
    (runs,) = arms["metadata"]["runSets"]
    assert runs["grouping"] == [{"section": "config", "name": "ablate.value.arm"}]
    assert f"{runs['id']}-config:ablate.value.arm:baseline" in arms["metadata"]["customRunColors"]
    table, media = figures["metadata"]["panelBankSectionConfig"]["panels"]
    assert "report/table" in json.dumps(table)
    assert "report/forest" in media["config"]["mediaKeys"]


def test_nothing_piles_up(sent: Sent) -> None:
    assert len(sent.server.views) == 3
    assert len({sent.where[key] for key in ("arms", "runs", "report")}) == 3
    for name in ("UpsertView2", "upsertView"):
        first, again = (w for w in [sent.server.written(name)[0], sent.server.written(name)[-1]])
        assert again["id"] in sent.server.views
        assert not first.get("id")


def test_what_was_removed_there_is_made_anew(
    sent: Sent, capsys: pytest.CaptureFixture[str]
) -> None:
    sent.server.views.clear()
    publish(sent.written)
    assert len(sent.server.views) == 3
    shown = capsys.readouterr().out
    assert all(line.startswith("  http") for line in shown.splitlines()[1:])


@pytest.mark.parametrize(
    ("environment", "words"),
    [
        ({}, "there is no API key; give it by `wandb login`"),
        (
            {"WANDB_API_KEY": KEY, "WANDB_MODE": "offline"},
            r"switched off here \(WANDB_MODE=offline",
        ),
    ],
)
def test_without_network_the_specification_is_left(
    written: Written, environment: dict[str, str], words: str
) -> None:
    with here(environment), pytest.raises(RunFailed, match=words) as error:
        publish(written)
    left = written.report.study.folder / "wandb.json"
    assert f"{left} holds what belongs there, and the same command sends it" in str(error.value)
    assert json.loads(left.read_text())["summaries"] == specification(written)["summaries"]


def test_a_server_that_refuses_the_key_is_one_line(written: Written) -> None:
    refused = pytest.raises(RunFailed, match=r"refuses the API key \(HTTP 401\)")
    with running(refuse=401) as server, here(server.environment), refused:
        publish(written)
    assert (written.report.study.folder / "wandb.json").exists()


LOGIN = {"Viewer", "ServerFeaturesQuery", "GetDefaultEntity"}
OPEN = LOGIN | {"RunResumeStatus", "UpsertBucket"}


@pytest.mark.slow
@pytest.mark.parametrize(
    "knows", [None, set(), LOGIN, OPEN], ids=["dead", "silent", "login", "open"]
)
def test_a_server_that_falls_silent_is_given_up(
    made: Written, tmp_path: Path, knows: set[str] | None, capfd: pytest.CaptureFixture[str]
) -> None:
    """It is not there; it never answers; only up to the login; only until the run is open."""
    written = write(shutil.copytree(made.report.study.folder, tmp_path / "scores"))
    with running(knows=knows) as server:
        environment = server.environment
        if knows is None:
            environment["WANDB_BASE_URL"] = "http://127.0.0.1:9"
        with here(environment), pytest.raises(RunFailed, match="W&B was not brought up to date"):
            publish(written)
    assert capfd.readouterr() == ("", "")


def test_without_the_extra_it_says_what_to_install(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("ablate.study.publish.find_spec", lambda name: None)
    with pytest.raises(UserError, match=r"pip install 'ablate-attention\[wandb\]'"):
        require_workspaces()


def test_status_and_wandb_do_not_go_together(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("sys.argv", ["report", "x", "--status", "--wandb"])
    with pytest.raises(UserError, match="--wandb: not allowed with argument --status"):
        command_line.main()


def test_one_command_syncs_offline_runs(made: Written, tmp_path: Path) -> None:
    study = made.report.study
    assert sync_command(study) is None
    place = study.runs[3].folder / "wandb" / "offline-run-20261120_160000-x"
    place.mkdir(parents=True)
    (place / "run-x.wandb").touch()
    assert sync_command(study) == f"wandb sync {study.folder}/*/wandb"
    (place / "run-x.wandb.synced").touch()
    assert sync_command(study) is None
    shutil.rmtree(place)


def test_one_command_syncs_offline_runs_of_another_folder(tmp_path: Path) -> None:
    folder = logged(scores(tmp_path))
    for file in folder.glob("*/config.yaml"):
        file.write_text(file.read_text() + f"  dir: {tmp_path / 'all'}\n")
    study = collect(folder)
    for name in ("of another study", study.runs[3].run_id):
        assert sync_command(study) is None
        place = tmp_path / "all" / "wandb" / f"offline-run-20261120_160000-{name}"
        place.mkdir(parents=True)
        (place / f"run-{name}.wandb").touch()
    assert sync_command(study) == f"wandb sync {tmp_path / 'all' / 'wandb'}"
