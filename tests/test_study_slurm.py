"""hydra/launcher=slurm on a real Slurm, private to these tests."""

import signal
import sys
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from types import SimpleNamespace
from unittest.mock import Mock

import make_slurm
import pytest
import yaml
from make_launch import (
    ended,
    environment,
    folders,
    goes_on,
    met,
    metrics,
    printed,
    process_of,
    require_as_locally,
    run_here,
    runs,
    study_line,
    tries,
    until,
)
from make_slurm import ask, job_of, submitted
from omegaconf import OmegaConf
from refusals import refusal, refused

from ablate.config.tree import config_dir
from ablate.study.launch import slurm as slurm_module
from ablate.study.launch import state as state_module
from ablate.study.launch.run import ScheduledRun
from ablate.study.launch.slurm import Jobs, executor, executors, processes
from ablate.study.launch.state import state

pytest_plugins = ["command_line", "make_launch"]
URGENT = ["--partition=urgent", f"--ntasks={make_slurm.CPUS}", "--wrap=sleep 1"]
TWO = ("trainer=ddp", "trainer.accelerator=cpu", "trainer.devices=2", "model.dropout=0.0")


@pytest.fixture(scope="module")
def conf(tmp_path_factory):
    if reason := make_slurm.missing():
        pytest.skip(reason)
    with make_slurm.slurm(tmp_path_factory.mktemp("slurm")) as conf:
        yield conf


@pytest.fixture
def slurm(conf, monkeypatch):
    """This process belongs to it, and its jobs meet the accidents that the function is told."""
    monkeypatch.setenv("SLURM_CONF", str(conf))
    monkeypatch.setenv("PYTHONPATH", environment()["PYTHONPATH"])
    state_module._slurm_jobs.cache_clear()
    yield lambda accident: monkeypatch.setenv("ACCIDENT", accident)
    ask("scancel", "--user=root")
    until(lambda: not ask("squeue", "-h"))


def struck(wanted, place, strike, **own):
    """Train them while `strike` happens beside; a strike that fails ends them."""
    with ThreadPoolExecutor(1) as pool:
        striking = pool.submit(strike)
        striking.add_done_callback(lambda it: it.exception() and ask("scancel", "--user=root"))
        found = submitted(wanted, place, **own)
        striking.result()
    return found


def require_straight(run, folder):
    """The run was tried twice, and measures what it does where nothing happens to it."""
    assert tries(run.folder) == 2
    run_here(run, folder)
    assert metrics(run.folder) == metrics(folder)


@pytest.mark.slow
def test_a_cancelled_run_and_dead_ones_have_failed_and_run_again(slurm, tmp_path, capfd):
    """The run alone dies, as where memory is short; or the whole job, which can say nothing."""
    _, with_its_job, calm, cancelled = wanted = runs(tmp_path, [0, 1, 2, 3])
    slurm("die 0 5 0;kill 0 5 1")

    def strike():
        until(lambda: "PENDING" in state(cancelled.folder).detail)
        ask("scancel", job_of(cancelled.folder))  # it has not begun

    found = struck(wanted, tmp_path, strike, array_parallelism=1)
    assert [one.name for one in found] == ["failed", "failed", "finished", "failed"], found
    assert "killed by SIGKILL (perhaps out of memory); last lines: " in found[0].detail
    assert all("Slurm ended job" in found[n].detail for n in (1, 3))
    assert "cancelled" in found[3].detail.lower()  # Slurm forgets it at once, or somewhat later
    assert "[4/4]" in capfd.readouterr().out
    slurm("")
    again = submitted(runs(tmp_path, [0, 1, 2, 3]), tmp_path)
    assert [one.name for one in again] == ["finished"] * 4
    assert [tries(run.folder) for run in (calm, cancelled)] == [1, 1]
    require_straight(with_its_job, tmp_path / "straight")
    assert not list(tmp_path.rglob("queued.json"))


@pytest.mark.slow
@pytest.mark.parametrize("how", ["low", "slow_to_go", "time", "requeue"])
def test_a_run_that_gives_way_resumes(slurm, tmp_path, how):
    """It is preempted, at once or after a time of grace; its own time is over; or it is requeued, a
    run of two processes, which has two tasks and stops both after the same step."""
    (run,) = wanted = runs(tmp_path, [0], *(TWO if how == "requeue" else ()))
    slurm("pause-once 0 5 0")

    def strike():
        until(met(run.folder))
        if how == "requeue":
            ask("scontrol", "requeue", job_of(run.folder))
        elif how != "time":
            ask("sbatch", "--output=/dev/null", *URGENT)

    own = {"partition": how} if how in ("low", "slow_to_go") else {}
    own |= {"timeout_min": 3, "signal_delay_s": 30} if how == "time" else {}
    (found,) = struck(wanted, tmp_path, strike, **own)
    assert found.name == "finished", found
    # Slurm says SIGTERM more than once: the first leaves a checkpoint all the same.
    assert "stopped by SIGTERM after step 6" in printed(run.folder)
    assert goes_on(run.folder)
    require_straight(run, tmp_path / "straight")


@pytest.mark.slow
def test_a_run_whose_time_is_over_too_often_has_failed(slurm, tmp_path):
    (run,) = wanted = runs(tmp_path, [0])
    slurm("pause 0 5 0")

    def strike():
        process_of(run.folder)
        until(lambda: "step 4/12" in printed(run.folder))
        ask("scancel", "--signal=USR2", job_of(run.folder))

    (found,) = struck(wanted, tmp_path, strike, timeout_min=5, max_num_timeout=0)
    assert found.name == "failed"
    assert "hydra.launcher.timeout_min=5" in found.detail
    assert "last lines" in found.detail
    assert not (run.folder / "queued.json").exists()


# Whole studies, by the command that a person types


@pytest.fixture
def begun(slurm, command, tmp_path):
    """Of a study: the command, its process, the folders of two runs that pause, and of others."""
    line = study_line(tmp_path, "slurm", "hydra/launcher=slurm")
    first = command(*line, accident="pause-once 0 5 0")
    found = folders(tmp_path / "slurm" / "mine")
    paused = [folder for name, folder in found.items() if name.endswith(" 0")]
    assert (len(found), len(paused)) == (4, 2)
    for folder in paused:
        until(met(folder))
    return line, first, paused, [folder for folder in found.values() if folder not in paused]


@pytest.mark.slow
def test_a_study_killed_and_resumed_measures_what_it_does_locally(begun, command, tmp_path):
    """Its controller is killed, two others join it, and its jobs are preempted."""
    line, first, paused, others = begun
    first.kill()
    first.wait()
    assert len({job_of(folder) for folder in paused}) == 2
    assert [state(folder).name for folder in paused] == ["running"] * 2
    both = [command(*line), command(*line)]
    for each in both:
        until(lambda each=each: "4 runs" in each.stdout.readline())
    ask("sbatch", "--output=/dev/null", *URGENT)
    for each in both:
        code, said = ended(each)
        assert code == 0, said
        assert "[4/4] finished: " in said
    assert [tries(folder) for folder in (*paused, *others)] == [2, 2, 1, 1]
    study = tmp_path / "slurm" / "mine"
    assert len([*(study / ".submitit").glob("[0-9]*_[0-9]*")]) == 4  # no job a second time
    assert (study / "report.html").exists()
    require_as_locally(command, tmp_path, study)


@pytest.mark.slow
def test_a_controller_that_is_stopped_leaves_its_jobs_in_the_queue(begun):
    """Without it, what became of them is seen all the same."""
    _, first, paused, others = begun
    for folder in others:
        until((folder / "result.json").exists)
    first.send_signal(signal.SIGTERM)
    code, said = ended(first)
    assert code == 130, said
    assert "queued Slurm jobs continue" in said.splitlines()[-1]
    assert {state(folder).name for folder in paused} == {"running"}
    ask("scancel", job_of(paused[0]))
    until(lambda: state(paused[0]).name == "failed")
    assert "was cancelled or lost; stopped by SIGTERM after step 6" in state(paused[0]).detail
    ask("scontrol", "requeue", job_of(paused[1]))
    until(lambda: state(paused[1]).name == "finished")


@pytest.mark.slow
@pytest.mark.usefixtures("slurm")
def test_jobs_that_slurm_refuses_are_one_line_and_leave_nothing(command, tmp_path):
    line = study_line(tmp_path, "slurm", "hydra/launcher=slurm")
    code, said = ended(command(*line, "hydra.launcher.partition=nowhere"))
    assert code == 2, said
    assert "Traceback" not in said
    last = said.splitlines()[-1]
    assert last.startswith("ablate: hydra/launcher=slurm: ")
    assert "invalid partition specified: nowhere" in last
    assert not (tmp_path / "slurm").exists()


# Without a Slurm


def settings(**own):
    file = yaml.safe_load((config_dir() / "hydra/launcher/slurm.yaml").read_text())
    return {**file, "name": "x", "submitit_folder": "nowhere/%j", **own}


def trainer(**own):
    return OmegaConf.create({"devices": 1, "num_nodes": 1, "accelerator": "gpu"} | own)


@pytest.mark.parametrize(
    ("own", "part"),
    [
        ({"tasks_per_node": 2}, "tasks_per_node=2: trainer.devices=1 needs 1"),
        ({"timeout_min": "soon"}, "hydra.launcher.timeout_min: "),
        ({"partitoin": "gpu"}, "hydra.launcher.partitoin: "),
        ({"signal_delay_s": 300, "timeout_min": 5}, "signal_delay_s=300: must be"),
    ],
)
def test_settings_are_those_of_hydra_submitit_launcher(own, part):
    """And others are refused."""
    config = pytest.importorskip("hydra_plugins.hydra_submitit_launcher.config")
    assert set(settings()) == set(OmegaConf.structured(config.SlurmQueueConf))
    with refused(part):
        executor(settings(**own), trainer())


@pytest.mark.parametrize(
    ("own", "of_trainer", "tasks", "nodes"),
    [
        ({}, {"devices": 4, "num_nodes": 2}, 4, 2),
        ({}, {"devices": [0, 2]}, 2, 1),
        ({"gpus_per_node": 8}, {"devices": "auto"}, 8, 1),
        ({"gpus_per_node": 8}, {"devices": "auto", "accelerator": "cpu"}, 1, 1),
        ({"gres": "gpu:2", "tasks_per_node": 2}, {"devices": "auto"}, 2, 1),
    ],
)
def test_a_task_for_every_device(own, of_trainer, tasks, nodes):
    found = processes(settings(**own), trainer(**of_trainer))
    assert found == {"tasks_per_node": tasks, "nodes": nodes}


def test_runs_with_other_numbers_of_processes_are_other_arrays(tmp_path, monkeypatch):
    pytest.importorskip("submitit")
    monkeypatch.setattr(ScheduledRun, "prepare", lambda _: Mock(folder="."))
    planned = [SimpleNamespace(trainer=trainer(devices=number)) for number in (1, 2, 1)]
    wanted = [ScheduledRun(tmp_path / f"{n}", run) for n, run in enumerate(planned)]
    arrays = []

    def make(_, trainer):
        made = Mock(folder=tmp_path / "%j", parameters={"time": 1})
        made.submit_array.side_effect = lambda jobs: [
            Mock(job_id=arrays.append(trainer.devices)) for _ in jobs
        ]
        return made

    monkeypatch.setattr(slurm_module, "executor", make)
    jobs = Jobs(executors(settings(), wanted), Mock(), Mock())
    jobs._submit([(run, Mock()) for run in wanted])
    assert (arrays, len(jobs._seen)) == ([1, 1, 2], 3)


def test_a_job_leaves_a_run_that_names_another(tmp_path, monkeypatch, capsys):
    """As when its launcher was killed before it could write down what it had submitted."""
    pytest.importorskip("submitit")
    from ablate.study.launch.forks import Start
    from ablate.study.launch.slurm_job import Job

    monkeypatch.setenv("SUBMITIT_EXECUTOR", "slurm")
    monkeypatch.setenv("SLURM_JOB_ID", "17")
    monkeypatch.delenv("SLURM_ARRAY_JOB_ID", raising=False)
    (tmp_path / "queued.json").write_text('{"launcher": "slurm", "job": "18"}')
    Job(Start([], "", str(tmp_path)), "")()
    assert "another job has this run" in capsys.readouterr().out
    assert [path.name for path in tmp_path.iterdir()] == ["queued.json"]


def test_what_is_missing_is_one_line(ablate_command, tmp_path, monkeypatch):
    line = study_line(tmp_path, "outputs", "hydra/launcher=slurm")
    monkeypatch.setenv("PATH", str(Path(sys.executable).parent))
    err = refusal(ablate_command(*line), "ablate: hydra/launcher=slurm")
    assert "sbatch" in err or "pip install hydra-submitit-launcher" in err
    assert not (tmp_path / "outputs").exists()
