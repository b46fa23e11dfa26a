"""Loggers: what they write can be read back, and no server can stop a run."""

import csv
import json
import os
import re
import shutil
import sys
from pathlib import Path
from subprocess import CompletedProcess
from textwrap import dedent
from types import SimpleNamespace
from typing import Any
from unittest import mock

import accident
import offline_wandb
import pytest
import yaml
from make_logger import CONFIG, RESULT, ROOT, make
from matplotlib.image import imsave
from omegaconf import OmegaConf
from tiny import SMALL, images, in_a_process, overrides, rows_of
from wandb_server import KEY, running
from ways import called

import ablate
from ablate import report
from ablate.config.composition import compose
from ablate.config.short_name import short_name
from ablate.errors import Interrupted, UserError
from ablate.logger.role import Role
from ablate.logger.wandb import VARIABLES, WandB
from ablate.task.causal_lm import CausalLM
from ablate.task.presenter import Presenter
from ablate.training.logged_extras import require_extras

TESTS = os.pathsep.join([str(ROOT / "src"), str(ROOT / "tests")])  # for PYTHONPATH


def png(folder: Path) -> Path:
    imsave(folder / "map.png", [[0.0, 1.0]])
    return folder / "map.png"


def only_run(folder: Path) -> offline_wandb.OfflineRun:
    """The one run that W&B wrote in a folder."""
    (found,) = offline_wandb.run_folders(folder)
    return offline_wandb.read(found)


@pytest.mark.ci
def test_offline_runs_of_one_process_hold_everything_of_their_own(tmp_path):
    everywhere = str(tmp_path / "all")
    loggers = [make("wandb", tmp_path / n, run_id=n * 12, dir=everywhere) for n in "ab"]
    for number, logger in enumerate(loggers):  # both are open at the same time
        for step in range(3):
            logger.loggers[0].log_metrics({"train/loss": 4.0 - step + number}, step=10 * step)
        logger.figure("map", png(tmp_path))
    for number, (name, logger) in enumerate(zip("ab", loggers, strict=True)):
        logger.finish(RESULT)
        logger.finish({"status": "failed"})  # it has ended
        assert "wandb sync" in logger.where
        (folder,) = tmp_path.glob(logger.where.rpartition(f"{tmp_path}/")[2])
        run = offline_wandb.read(folder)
        assert (run.run_id, run.group, run.project) == (name * 12, "a_study", "ablate")
        assert run.name == "gpt attention=dot pos_enc=none data=text dim=16 seed 3"
        assert all(run.config[key] == CONFIG[key] for key in ("model", "choices"))
        assert run.config["data"] == {
            "path": "https://example.org/text.txt",
            "others": ["https://host.org/a@b", "from s3://bucket/x or ?", "data.path=C:/x/y?z"],
        }
        assert run.series("train/loss") == [(10 * step, 4.0 - step + number) for step in range(3)]
        assert run.summary["val/loss"] == 1.5
        assert run.summary["result"]["parameters"]["total"] == 1234
        assert run.exit_code == 0
        (image,) = (r["figures/map"] for r in run.history if "figures/map" in r)
        assert (folder / "files" / image["path"]).read_bytes()[1:4] == b"PNG"


def test_a_run_is_named_by_what_differs_from_its_models_defaults():
    for typed, name in {
        "": "gpt seed 0",
        "optimizer.lr=3e-3 seed=2 logger=none": "gpt lr=0.003 seed 2",
        "model=vit model.norm=post": "vit norm=post seed 0",
        "model.attention=additive pos_enc=rotary": "gpt attention=additive pos_enc=rotary seed 0",
        "data=shakespeare data.seq_len=32": "gpt data=shakespeare seq_len=32 seed 0",
        "experiment=recall model.depth=3": "gpt experiment=recall depth=3 seed 0",
    }.items():
        assert short_name(OmegaConf.to_container(compose(*typed.split()), resolve=True)) == name


def test_a_failed_run_is_marked(tmp_path):
    failed = {"status": "failed", "error": "the loss is nan at step 3"}
    make("wandb", tmp_path).finish(failed)
    run = only_run(tmp_path)
    assert (run.exit_code, run.summary["result"]) == (1, failed)


VALUES = ("theirs", "team", "a name", "a group", "a job", "a,b", "some notes", "theirs")


@pytest.fixture
def environment(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> dict[str, str]:
    """All variables of W&B that are defaults of our keys are set; their values by our keys."""
    monkeypatch.chdir(tmp_path)
    values = dict(zip(VARIABLES, VALUES, strict=True))
    for key, value in values.items():
        monkeypatch.setenv(VARIABLES[key], value)
    return values


@pytest.mark.parametrize(
    "given", [{}, {"project": "mine", "job_type": "my job", "tags": ["c"], "notes": "my notes"}]
)
def test_wandbs_environment_is_respected_and_named_where_a_person_gives_nothing(
    tmp_path, environment, capsys, given
):
    make("wandb", tmp_path / "run", role=Role("a_study", "an_arm"), **given).finish(RESULT)
    run = vars(only_run(tmp_path / "theirs")) | {"dir": "theirs"}
    tags = ["a_study", "an_arm", *given.get("tags", ["a", "b"])]
    expected = environment | given | {"tags": tags}
    assert {key: run[key] for key in expected} == expected
    used = [f"{VARIABLES[key]}={value}" for key, value in environment.items() if key not in given]
    said = capsys.readouterr().out
    assert said == f"ablate: W&B takes {', '.join(used)} from the environment\n"


@pytest.mark.usefixtures("environment")
def test_the_command_line_counts_more_than_the_environment_and_an_empty_variable_is_none(
    monkeypatch,
):
    cfg = compose("logger.tags=[c]", "logger.name=null")
    assert (cfg.logger.project, cfg.logger.tags, cfg.logger.name) == ("theirs", ["c"], None)
    for variable in VARIABLES.values():
        monkeypatch.setenv(variable, "")
    assert [compose().logger[key] for key in VARIABLES] == ["ablate", *[None] * 7]


def test_a_folder_that_cannot_be_written_is_refused(tmp_path):
    (tmp_path / "file").touch()
    with pytest.raises(UserError, match=r"logger.dir=.*/file: cannot be written"):
        make("wandb", tmp_path / "run", dir=str(tmp_path / "file"))


def test_a_run_of_a_wandb_sweep_stays_in_its_project(tmp_path, monkeypatch):
    """The agent sets it, and W&B would ignore ours."""
    monkeypatch.setenv("WANDB_SWEEP_ID", "x")
    monkeypatch.setenv("WANDB_PROJECT", "theirs")
    make("wandb", tmp_path)
    with pytest.raises(UserError, match=r"logger\.project=mine: .* belong to its project, theirs"):
        make("wandb", tmp_path, project="mine")


@pytest.mark.parametrize("reached", [True, False])
def test_a_resumed_run_continues_its_wandb_run_and_offline_where_no_server_is(
    tmp_path, monkeypatch, caplog, reached
):
    """W&B continues a run where one of its id is there, and begins it where none is."""
    opened: list[tuple[str, str, str]] = []

    def init(**given: Any) -> SimpleNamespace:
        opened.append((given["id"], given["resume"], given["mode"]))
        if given["mode"] == "online" and not reached:
            raise ConnectionError("no route to host")
        return SimpleNamespace(define_metric=lambda *names, **how: None)

    monkeypatch.setattr("wandb.init", init)
    monkeypatch.setattr("ablate.logger.wandb.has_key", lambda: True)
    for _ in range(2):
        assert make("wandb", tmp_path, mode="online").run
    modes = ["online"] if reached else ["online", "offline"]
    assert opened == [("0123456789ab", "allow", mode) for mode in modes] * 2
    assert caplog.text.count("writing offline (no route to host)") == (0 if reached else 2)


def test_a_dead_wandb_process_does_not_stop_the_run(tmp_path, caplog):
    import wandb

    logger = make("wandb", tmp_path)
    logger.loggers[0].log_metrics({"train/loss": 1.0}, step=0)
    wandb.teardown()
    for step in (1, 2):
        logger.loggers[0].log_metrics({"train/loss": 1.0}, step=step)
    logger.figure("map", png(tmp_path))
    logger.finish(RESULT)
    assert caplog.text.count("W&B has stopped; the run continues without it") == 1


CSV = {"_target_": "lightning.pytorch.loggers.CSVLogger", "name": "mine", "version": 3}


def tensorboard(run_dir: Path) -> Any:
    """What TensorBoard reads in the folder of a run."""
    events = pytest.importorskip("tensorboard.backend.event_processing.event_accumulator")
    read = events.EventAccumulator(str(run_dir / "tensorboard"))
    read.Reload()
    return read


def test_several_loggers_hold_the_same(tmp_path):
    logger = make("many", tmp_path)
    wandb, events = logger.loggers
    for each in (wandb, events):
        each.log_metrics({"train/loss": 2.5}, step=4)
    logger.figure("map", png(tmp_path))
    (tmp_path / "sample.txt").write_text("a < b")  # what a model writes
    logger.finish(RESULT)
    read = tensorboard(tmp_path)
    assert [(e.step, e.value) for e in read.Scalars("train/loss")] == [(4, 2.5)]
    assert [e.value for e in read.Scalars("test/accuracy")] == [0.75]
    assert "figures/map" in read.Tags()["images"]
    text = read.Tensors("result/text_summary")[0].tensor_proto.string_val[0].decode()
    assert '"total": 1234' in text
    run = only_run(tmp_path)
    assert (run.summary["train/loss"], run.summary["test/accuracy"]) == (2.5, 0.75)
    (sample,) = (row["sample"] for row in run.history if "sample" in row)
    (file,) = tmp_path.rglob(sample["path"])
    assert "<pre>a &lt; b</pre>" in file.read_text()
    assert "wandb sync" in logger.where
    assert "tensorboard --logdir" in logger.where


def test_a_logger_of_lightning_holds_metrics_config_and_result(tmp_path):
    logger = make("lightning", tmp_path, instance={**CSV, "save_dir": str(tmp_path)})
    logger.loggers[0].log_metrics({"train/loss": 2.5}, step=4)
    logger.finish(RESULT | {"steps": 5})
    folder = tmp_path / "mine/version_3"
    first, *rows = (folder / "metrics.csv").read_text().splitlines()
    values = [dict(zip(first.split(","), row.split(","), strict=True)) for row in rows]
    assert values[0]["train/loss"] == "2.5"
    assert (values[-1]["step"], values[-1]["test/accuracy"]) == ("5", "0.75")
    config = yaml.safe_load((folder / "hparams.yaml").read_text())
    assert config["model"]["dim"] == 16
    assert "pa55word" not in (folder / "hparams.yaml").read_text()
    assert logger.where == "CSVLogger mine 3"


@pytest.mark.parametrize(
    ("node", "says"),
    [
        (3, "needs _target_"),
        ({"_target_": "torch.nn.ReLU"}, "is not a Lightning logger"),
        ({**CSV, "save_dirr": "x"}, "unexpected keyword argument 'save_dirr'"),
    ],
)
def test_what_is_no_logger_is_refused(tmp_path, node, says):
    with pytest.raises(UserError, match=says):
        _ = make("lightning", tmp_path, instance=node).loggers


STEPS = ("trainer.max_steps=6", "trainer.val_check_interval=3", "trainer.log_every_n_steps=2")


def logged(folder, name):
    """Of metrics.csv, as the series of W&B."""
    return [(int(row["step"]), float(row[name])) for row in rows_of(folder) if row[name]]


@pytest.fixture(scope="module")
def plain(tmp_path_factory):
    """A command, the folder of its run without a logger, and the result."""
    place = tmp_path_factory.mktemp("plain")
    typed = [text for text in overrides(place, *STEPS) if text != "logger=none"]
    return typed, place / "run", ablate.run(compose(*typed, "logger=none"), place / "run")


@pytest.fixture
def finished(plain, tmp_path):
    return Path(shutil.copytree(plain[1], tmp_path / "run"))


MAP = "figures/attention_layer_01"
OFFLINE = ("logger=wandb", "logger.mode=offline", "logger.log_model=true", "logger.log_maps=true",
           "logger.log_predictions=true")  # fmt: skip


@pytest.mark.parametrize("later", [False, True])
def test_wandb_has_the_steps_of_metrics_csv_and_what_is_asked_for(
    plain, tmp_path, capsys, request, later
):
    """later: the run was finished without W&B, and the same command with it sends what there is."""
    typed, _, without = plain
    folder = request.getfixturevalue("finished") if later else tmp_path / "run"
    done = ablate.run(compose(*typed, *OFFLINE), folder)
    assert without["logged_to"] is None
    assert "wandb sync" in done["logged_to"]
    assert done["metrics"] == without["metrics"]
    run = only_run(folder)
    assert run.run_id == done["run_id"]
    for name, steps in {"train/loss": [2, 4, 6], "train/lr": [2, 4, 6], "val/loss": [3, 6]}.items():
        assert [step for step, _ in logged(folder, name)] == steps
        assert run.series(name) == logged(folder, name)
    assert run.summary["result"]["steps"] == 6
    assert run.summary["val/loss"] == done["metrics"]["val/loss"]
    rows = list(csv.DictReader((folder / "predictions.csv").open()))
    (table,) = (row["predictions"] for row in run.history if "predictions" in row)
    assert (table["nrows"], table["ncols"]) == (len(rows), len(rows[0]))
    files = [*("checkpoints/best.safetensors", "checkpoints/checksums.json"), "config.yaml"]
    files += ["result.json"]
    assert sorted(run.artifacts[f"run-{done['run_id']}"]) == files
    steps = [row["trainer/global_step"] for row in run.history if MAP in row]
    assert steps == ([] if later else [3, 6])  # figures of the end are not drawn here
    assert ablate.run(compose(*typed, *OFFLINE), folder) == done
    assert only_run(folder)  # and no second one
    said = capsys.readouterr().out
    assert said.count("logged the finished run") == said.count("only during training") == later


def history(folder, name):
    """Of all attempts together, as `wandb sync` sends them."""
    *earlier, last = offline_wandb.run_folders(folder)
    # A killed attempt never ends; `struck` has waited for a stopped one.
    runs = [*(offline_wandb.read(each, seconds=0) for each in earlier), offline_wandb.read(last)]
    return [point for run in runs for point in run.series(name)]


def struck(folder, *typed, by, monkeypatch):
    """The config of a run that was stopped at step 4, or killed there in a process of its own."""
    typed = [*typed, accident.OVERRIDE]
    if by == "stop":
        with monkeypatch.context() as patch:
            patch.setenv("ACCIDENT", "stop 0 4")
            with pytest.raises(Interrupted):
                ablate.run(compose(*typed), folder)
        for each in offline_wandb.run_folders(folder):
            offline_wandb.read(each)
        return typed
    line = ("-m", "ablate", *typed, f"hydra.run.dir={folder}")
    # With W&B's service of its own, as a command has.
    done = in_a_process(*line, PYTHONPATH=TESTS, ACCIDENT="die 0 4", WANDB_SERVICE="")
    assert done.returncode == -9, done.stderr
    return typed


@pytest.mark.usefixtures("no_figures")
@pytest.mark.parametrize(
    ("before", "by"),
    [
        pytest.param("wandb", "die", marks=pytest.mark.ci),
        ("wandb", "stop"),
        ("tensorboard", "stop"),
    ],
)
def test_a_resumed_run_is_whole_in_wandb(plain, tmp_path, monkeypatch, before, by):
    """Whatever the attempt before lost, or logged elsewhere."""
    offline = ("logger=wandb", "logger.mode=offline")
    first = offline if before == "wandb" else (f"logger={before}",)
    typed = struck(folder := tmp_path / "run", *plain[0], *first, by=by, monkeypatch=monkeypatch)
    assert ablate.run(compose(*typed, *offline), folder)["logged_to"]
    for name in ("train/loss", "val/loss"):
        found = history(folder, name)
        assert sorted(set(found)) == logged(folder, name)
        assert by == "die" or found == logged(folder, name)


@pytest.mark.slow
@pytest.mark.usefixtures("no_figures")
def test_a_killed_run_is_whole_in_tensorboard(plain, tmp_path, monkeypatch):
    typed = [*plain[0], "logger=tensorboard"]
    typed = struck(tmp_path / "run", *typed, by="die", monkeypatch=monkeypatch)
    ablate.run(compose(*typed), tmp_path / "run")
    found = {event.step: event.value for event in tensorboard(tmp_path / "run").Scalars("train/lr")}
    assert found == pytest.approx(dict(logged(tmp_path / "run", "train/lr")))


def test_what_was_lost_is_not_said_to_be_logged(plain, finished, monkeypatch, capsys):
    """As in a run that is killed while it closes its logger."""
    typed = [*plain[0], "logger=wandb", "logger.mode=offline"]
    original = WandB.close

    def close(*given):
        original(*given)
        raise OSError("lost")

    with monkeypatch.context() as patch:
        patch.setattr(WandB, "close", close)
        assert ablate.run(compose(*typed), finished)["logged_to"] is None
    monkeypatch.setenv("WANDB_MODE", "offline")
    called(report.main, finished, "--wandb")
    assert "logged the finished run: W&B offline" in capsys.readouterr().out
    newest = offline_wandb.run_folders(finished)[-1]
    assert offline_wandb.read(newest).series("val/loss") == logged(finished, "val/loss")


def test_a_run_in_tensorboard_was_not_logged_to_wandb(plain, tmp_path, monkeypatch, capsys):
    ablate.run(compose(*plain[0], "logger=tensorboard"), tmp_path)
    monkeypatch.setenv("WANDB_MODE", "offline")
    called(report.main, tmp_path, "--wandb")
    assert only_run(tmp_path).series("val/loss") == logged(tmp_path, "val/loss")
    assert "was logged" not in capsys.readouterr().out


def test_a_finished_run_is_not_said_to_be_logged_where_wandb_is_off(
    plain, finished, capsys, monkeypatch
):
    monkeypatch.setattr("ablate.logger.wandb._auto_mode", lambda: "disabled")
    ablate.run(compose(*plain[0], "logger=wandb"), finished)
    out = capsys.readouterr().out
    assert "not logged: W&B is switched off (WANDB_MODE)" in out
    assert "logged the finished run" not in out


def test_a_finished_run_is_sent_when_asked(plain, finished, monkeypatch, capsys):
    monkeypatch.setenv("WANDB_MODE", "offline")
    for _ in range(2):
        called(report.main, finished, "--wandb")
    run = only_run(finished)
    assert run.series("val/loss") == logged(finished, "val/loss")
    assert run.summary["val/loss"] == plain[2]["metrics"]["val/loss"]
    assert capsys.readouterr().out.count("run was logged: W&B offline") == 1


@pytest.mark.ci
def test_tensorboard_has_the_maps_of_every_validation(plain, tmp_path):
    many = ("logger=many", "logger.tensorboard.log_maps=true", "logger.wandb.mode=offline")
    ablate.run(compose(*plain[0], *many), tmp_path)
    assert [image.step for image in tensorboard(tmp_path).Images(MAP)] == [3, 6]
    assert not any(MAP in row for row in only_run(tmp_path).history)


@pytest.mark.parametrize(
    ("key", "typed", "says"),
    [
        ("log_maps", ["model.mixer=convolution"], "this model has no attention maps"),
        ("log_predictions", [], "CausalLM has no per-example loss"),
    ],
)
def test_what_a_run_does_not_have_is_not_logged(tmp_path, monkeypatch, key, typed, says):
    monkeypatch.setattr(CausalLM, "presenter", Presenter)
    typed = [*typed, "logger=wandb", "logger.mode=offline", f"logger.{key}=true", *STEPS[:2]]
    with pytest.raises(UserError, match=f"logger.{key}=true: {says}"):
        ablate.run(compose(*typed), tmp_path)
    assert not offline_wandb.run_folders(tmp_path)
    asked = SimpleNamespace(**dict.fromkeys(("log_maps", "log_predictions"), False) | {key: True})
    with pytest.raises(UserError, match=f"{key}=true: works in one process, not in 2"):
        require_extras(asked, None, SimpleNamespace(world_size=2))


# With and without a key and a server: never a prompt, never a failed run

SCRIPT = """
import json, sys
from pathlib import Path
from make_logger import RESULT, make
logger = make("wandb", Path(sys.argv[1]), **json.loads(sys.argv[2]))
logger.run.log({"train/loss": 2.0, "trainer/global_step": 7})
print(logger.where)
logger.finish(RESULT)
"""

CATCHES_UP = SCRIPT.replace("logger.run.log", "logger.catch_up(ROWS, {}) #").replace(
    "import json", "ROWS = [{'step': n, 'train/loss': 1.0} for n in (2, 4, 6)]\nimport json"
)


def unset(folder: Path, *argv: object, **environment: str) -> CompletedProcess[str]:
    """`python ARGV` in that folder, of a person without any setting of W&B."""
    around = offline_wandb.without_settings(folder, **environment)
    with mock.patch.dict(os.environ, around, clear=True):
        done = in_a_process(*argv, folder=folder, PYTHONPATH=TESTS)
    assert done.returncode == 0, done.stderr
    return done


def alone(
    folder: Path, *, environment: dict[str, str], script: str = SCRIPT, **changes: Any
) -> tuple[str, str]:
    """A run in a process of its own, without a terminal: where it is, and stderr."""
    done = unset(folder, "-c", script, folder, json.dumps(changes), **environment)
    return done.stdout.strip(), done.stderr


@pytest.mark.ci
def test_without_a_key_it_is_offline_and_asks_nothing(tmp_path: Path) -> None:
    where, errors = alone(tmp_path, environment={})
    assert ("offline" in where, errors) == (True, "")
    assert only_run(tmp_path).series("train/loss") == [(7, 2.0)]


@pytest.mark.slow
def test_wandb_mode_is_honored_and_online_without_a_key_refused(tmp_path: Path) -> None:
    environment = {"WANDB_API_KEY": KEY, "WANDB_MODE": "disabled"}
    where, errors = alone(tmp_path, environment=environment)
    assert ("switched off" in where, errors) == (True, "")
    assert not offline_wandb.run_folders(tmp_path)
    with pytest.raises(AssertionError, match=r"UserError.*logger.mode=online needs a W&B API key"):
        alone(tmp_path, environment={}, mode="online")


@pytest.mark.ci
def test_a_run_with_a_key_arrives(tmp_path: Path) -> None:
    with running() as server:
        where, errors = alone(tmp_path, environment=server.environment)
        run = server.runs["0123456789ab"]
        assert server.unknown == []
    assert (where, errors) == (f"{server.url}/me/ablate/runs/0123456789ab", "")
    assert (run["group"], run["jobType"], run["exit_code"]) == ("a_study", "train", 0)
    assert [line.get("train/loss") for line in run["history"]] == [2.0]
    assert server.summary("0123456789ab")["test/accuracy"] == 0.75
    assert not offline_wandb.run_folders(tmp_path)


@pytest.mark.ci
def test_a_run_that_was_killed_sends_the_rows_that_the_server_lacks(tmp_path: Path) -> None:
    with running() as server:
        for _ in range(2):
            alone(tmp_path, environment=server.environment, script=CATCHES_UP)
        steps = [line["trainer/global_step"] for line in server.runs["0123456789ab"]["history"]]
    assert steps == [2, 4, 6, 6]  # of the last row the server might have a part


@pytest.mark.slow
@pytest.mark.parametrize("refused", [True, False])
def test_a_server_that_refuses_a_key_of_netrc_or_is_not_there_does_not_stop_the_run(
    tmp_path: Path, refused: bool
) -> None:
    environment = {"WANDB_BASE_URL": "http://127.0.0.1:9", "WANDB_API_KEY": KEY}
    with running(refuse=401) as server:
        if refused:
            host = server.url.removeprefix("http://")
            (tmp_path / ".netrc").write_text(f"machine {host} login user password {KEY}\n")
            environment = {"WANDB_BASE_URL": server.url}
        where, errors = alone(tmp_path, environment=environment)
    assert "offline" in where
    assert errors.count("\n") == 1
    assert "W&B cannot be reached, writing offline" in errors
    assert only_run(tmp_path).series("train/loss") == [(7, 2.0)]


@pytest.mark.slow
def test_an_agent_trains_the_sweep_of_the_documentation(tmp_path: Path) -> None:
    """The command of docs/how-to/wandb.md, run by `wandb agent`; a trial given again is logged."""
    page = (ROOT / "docs/how-to/wandb.md").read_text()
    block = re.search(r"^    program:.*\n(?:    .*\n)+", page, re.MULTILINE)
    assert block is not None
    sweep = yaml.safe_load(dedent(block[0]))
    tiny = [text for text in overrides(tmp_path, *SMALL) if text != "logger=none"]
    path = f"{Path(sys.executable).parent}:{os.environ['PATH']}"
    scores = sweep["parameters"]["model.attention"]["values"]
    with running() as server:
        server.sweep = sweep | {"command": [*sweep["command"], *tiny]}
        server.trials = [{"model.attention": score, "seed": 1} for score in (*scores, scores[0])]
        agent = ("-m", "wandb", "agent", "me/ablate/sweep")
        unset(tmp_path, *agent, PATH=path, **server.environment)
        configs = {name: json.loads(run["config"]) for name, run in server.runs.items()}
        losses = [server.summary(f"trial{n}")["val/loss"] for n in range(3)]
    chosen = [configs[f"trial{n}"]["choices"]["value"]["model.attention"] for n in (2, 1, 0)]
    assert chosen == [*scores, scores[0]]
    assert losses[2] == losses[0] != losses[1]
    assert len(list((tmp_path / "outputs" / "runs").iterdir())) == 2


@pytest.mark.ci
def test_maps_of_images_are_logged_in_double_precision_and_of_the_average(tmp_path):
    typed = images(tmp_path, "trainer.precision=64-true", "task.ema=0.5", "logger=tensorboard")
    ablate.run(compose(*typed, "logger.log_maps=true"), tmp_path / "run")
    assert tensorboard(tmp_path / "run").Images(MAP)
