"""Two processes on the CPU: as one for the same global batch, and after an accident as without.

trainer=ddp, whose processes have a whole model each, and trainer=fsdp, which split one.
"""

import json
import os
import signal
import socket
import subprocess
import sys
from contextlib import suppress
from functools import cache
from pathlib import Path
from typing import NamedTuple

import accident
import held
import pytest
import torch
from tiny import images, overrides, pairs, write_text

import ablate
from ablate.data.documents import Corpus
from ablate.data.preparation import prepare
from ablate.evaluate import evaluate
from ablate.run_files.checkpoint_io import read_state
from ablate.task.optimizing import groups_of

pytestmark = pytest.mark.slow

TWO = ("trainer=ddp", "trainer.accelerator=cpu", "trainer.devices=2")
PLAIN = (*TWO, "model.dropout=0.1")
SPLIT = ("trainer=fsdp", *TWO[1:], "trainer.precision=32-true")
COPIES = ("trainer.devices=4", "trainer.shards=2")  # each half of the model in two processes
PRONE = (*TWO, "checkpoint_every=1", accident.OVERRIDE)
WRITTEN = 13  # validation examples of `copies`, which batches of 16 share out as 7 and 6


def copies(folder, *more):
    """Pairs, some of which the model has learned to write after this many steps, in float64: where
    rounding turned one choice of a search, its text would be another."""
    own = f"""model.attention=location model.dim=16 data.symbols=2 data.val_examples={WRITTEN}
        data.train_examples=200 data.batch_size=16 trainer.max_steps=60 task.beam=2
        trainer.val_check_interval=20 trainer.precision=64-true optimizer.lr=0.03
        task.label_smoothing=0.1"""
    return pairs(folder, *own.split(), *more)


def deep(folder, *more):
    """Blocks that read one table beside them."""
    return overrides(folder, "model.depth=2", "pos_enc=t5", *more)


def shared(folder, *more):
    """One block, used three times."""
    return overrides(folder, "model.depth=3", "model.share_layers=true", *more)


def translations(folder, *more):
    """Two batches a step, which hold different numbers of targets."""
    more = ("model=transformer", "model.heads=2", "trainer.accumulate_grad_batches=2", *more)
    return pairs(folder, *more)


def mixed(folder, *more):
    """Two sources, whose weights change at a step; rows do not attend across documents."""
    text = write_text(folder / "documents.txt").read_text()
    for name, size in (("a", 50), ("b", 90)):
        if not (folder / name).exists():
            lines = [text[n : n + size] for n in range(0, len(text) - size, size)]
            (folder / f"{name}.jsonl").write_text("".join(f'{{"text": "{it}"}}\n' for it in lines))
            corpus = Corpus([folder / f"{name}.jsonl"], val_share=0.2)
            prepare(corpus, folder / name, tokenizer="byte")
    own = f"""data=mixture data.root={{a:{folder}/a,b:{folder}/b}} data.weights={{a:1,b:2}}
        data.phases={{7:{{b:1}}}} data.documents=mask data.seq_len=16 data.batch_size=4"""
    return [*own.split(), *overrides(folder, *more)[3:]]


# What is started: the model, what is changed, and the accident of one try after the other.
ACCIDENTS = ("kill 1 4", "nan 1 6", "interrupt 0 8", "none")
SAVING = "model.activation_checkpointing=true"
# Runs that end as one process does.
EQUAL = {
    "text": (overrides, PLAIN),
    "images": (images, PLAIN),
    "mixture": (mixed, PLAIN),
    "pairs": (copies, PLAIN),
    "checkpoints": (shared, (*PLAIN, SAVING)),
    "uneven": (translations, PLAIN),
    "split": (deep, (*SPLIT, "model.dropout=0.1", SAVING, held.OVERRIDE)),
    "split pairs": (translations, (*SPLIT, "model.dropout=0.1")),
    "split and shared": (shared, (*SPLIT, "model.dropout=0.1")),
    "split in two copies": (deep, (*SPLIT, *COPIES, "model.dropout=0.1")),
}
OTHERS = {
    "straight": (overrides, PRONE),
    "split straight": (overrides, (*SPLIT, accident.OVERRIDE)),
    "refused": (overrides, (*TWO, "data.batch_size=3")),
}
RUNS = {name: (*run, ["none"]) for name, run in (EQUAL | OTHERS).items()} | {
    "accidents": (*OTHERS["straight"], ACCIDENTS),
    "split stopped": (*OTHERS["split straight"], ["interrupt 0 5", "none"]),
}


class Try(NamedTuple):
    """How a command ended, and what it left."""

    code: int
    errors: str
    result: dict | None
    step: int | None  # of the last checkpoint


def environment(disaster):
    """The variables of a process that can import `accident`, and meets this one."""
    path = [str(Path(__file__).parent), os.environ.get("PYTHONPATH", "")]
    found = os.environ | {"PYTHONPATH": os.pathsep.join(filter(None, path))}
    return found if disaster == "none" else found | {"ACCIDENT": disaster}


def command(line, folder, disaster):
    """Runs it in a process group of its own, until nobody holds its standard error any more."""
    process = subprocess.Popen(
        [sys.executable, "-m", "ablate", *line, f"hydra.run.dir={folder}"],
        stdout=subprocess.DEVNULL,
        stderr=subprocess.PIPE,
        text=True,
        start_new_session=True,
        env=environment(disaster),
    )
    _, errors = process.communicate(timeout=300)
    result, saved = folder / "result.json", (folder / "checkpoints" / "last.ckpt").exists()
    return Try(
        process.returncode,
        errors,
        json.loads(result.read_text()) if result.exists() else None,
        last(folder)["global_step"] if saved else None,
    )


@pytest.fixture(scope="module")
def started(tmp_path_factory):
    """Starts a run by its name, once -> its folder, and how each of its tries ended."""
    place = tmp_path_factory.mktemp("ddp")
    overrides(place)  # writes the text

    @cache
    def tries(name):
        tiny, more, disasters = RUNS[name]
        ended = [command(tiny(place, *more), place / name, disaster) for disaster in disasters]
        return place / name, ended

    return tries


def last(folder):
    return read_state(folder / "checkpoints" / "last.ckpt")


def weights(folder):
    return last(folder)["state_dict"]


def close(ended, metrics):
    theirs = ended.result["metrics"]
    return {name: theirs[name] for name in metrics} == pytest.approx(metrics, abs=2e-5)


@pytest.mark.parametrize("name", EQUAL)
def test_two_processes_equal_one(started, tmp_path, name):
    tiny, _ = EQUAL[name]
    folder, (ended,) = started(name)
    assert ended.code == 0, ended.errors
    one = ablate.run(ablate.compose(*tiny(tmp_path, "model.dropout=0.1")), tmp_path / "one")
    assert ended.result["steps"] == one["steps"]
    assert close(ended, one["metrics"])
    ours, theirs = weights(folder), weights(tmp_path / "one")
    for parameter, value in theirs.items():
        if parameter.endswith("key.bias"):  # the softmax cancels it: its gradient is rounding alone
            continue
        assert torch.allclose(value, ours[parameter], atol=2e-5), parameter


def moments(folder):
    """What the optimizer of one process makes of a checkpoint: both of Adam's, by name."""
    task = ablate.load(folder, allow=["held"]).task
    optimizer = task.make_optimizer(groups_of(task))
    optimizer.load_state_dict(last(folder)["optimizer_states"][0])
    return {
        (name, key): optimizer.state[parameter][key]
        for name, parameter in task.model.named_parameters()
        for key in ("exp_avg", "exp_avg_sq")
    }


def test_what_was_split_is_loaded_by_one_process(started, tmp_path):
    """The best weights, what is measured of them again, and the state of the optimizer."""
    folder, (ended,) = started("split")
    run = ablate.load(folder, allow=["held"])
    assert close(ended, evaluate(run, {}))
    ablate.run(ablate.compose(*deep(tmp_path, "model.dropout=0.1")), tmp_path / "one")
    mine, theirs = moments(folder), moments(tmp_path / "one")
    assert mine.keys() == theirs.keys()
    for name, value in theirs.items():
        torch.testing.assert_close(mine[name], value, atol=2e-5, rtol=1e-3)


def test_each_process_holds_half_of_what_is_split(started):
    folder, (ended,) = started("split")
    total = ended.result["parameters"]["total"]
    both = [json.loads((folder / f"HELD_{rank}.json").read_text()) for rank in (0, 1)]
    assert sum(one["parameters"] for one in both) == total
    assert sum(one["state"] for one in both) == 2 * total  # both moments of Adam
    assert max(one["parameters"] for one in both) < 0.55 * total


def require_same_to_the_last_bit(one, other):
    """Curves and weights."""
    assert (one / "metrics.csv").read_text() == (other / "metrics.csv").read_text()
    ours, theirs = weights(one), weights(other)
    assert all(torch.equal(ours[name], theirs[name]) for name in theirs)


def test_what_was_split_and_stopped_ends_as_what_was_not(started):
    folder, (stopped, ended) = started("split stopped")
    straight, (whole,) = started("split straight")
    assert stopped.code == 130, stopped.errors
    assert stopped.step == 6
    assert ended.code == whole.code == 0, whole.errors + ended.errors
    assert ended.result["metrics"] == whole.result["metrics"]
    require_same_to_the_last_bit(folder, straight)


def test_each_process_writes_its_shards(started):
    """Of the last two states, and no others; what one process reads of them: see above."""
    folder, _ = started("split straight")
    places = folder / "checkpoints"
    states = [torch.load(places / f"{name}.ckpt") for name in ("last", "previous")]
    files = [name for state in states for name in state["shards"]["files"]]
    assert sorted(files) == sorted(path.name for path in places.glob("*.shard"))
    assert len(files) == 4
    assert not [name for name, x in states[0]["state_dict"].items() if x is not None]
    whole = 3 * sum(x.nbytes for x in weights(folder).values())  # and both moments of Adam
    sizes = [
        sum(y.nbytes for _, y in torch.load(places / name)["pieces"].values()) for name in files
    ]
    assert sum(sizes) == 2 * whole
    assert max(sizes) < 0.55 * whole


def test_one_of_the_copies_of_a_shard_is_written(started):
    folder, _ = started("split in two copies")
    state = torch.load(folder / "checkpoints" / "last.ckpt")
    assert len(state["shards"]["files"]) == 2


ONE = ("trainer.devices=1",)


@pytest.mark.parametrize(("begins", "resumes"), [(SPLIT, ONE), (ONE, SPLIT), (SPLIT, TWO)])
def test_a_run_resumes_in_another_number_of_processes(started, tmp_path, begins, resumes):
    straight, _ = started("split straight")
    line, folder = overrides(tmp_path, accident.OVERRIDE), tmp_path / "run"
    stopped = command([*line, *begins], folder, "interrupt 0 5")
    assert (stopped.code, stopped.step) == (130, 6), stopped.errors
    before = (folder / "config.yaml").read_text()
    ended = command([*line, *resumes], folder, "none")
    assert ended.code == 0, ended.errors
    assert ended.result["run_id"] == stopped.result["run_id"]
    assert (folder / "config.yaml").read_text() == before
    ours, theirs = weights(folder), weights(straight)
    for name, value in theirs.items():
        assert torch.allclose(value, ours[name], atol=2e-5) or name.endswith("key.bias"), name
    assert bool([*(folder / "checkpoints").glob("*.shard")]) == (resumes is SPLIT)


def test_what_two_processes_write_is_measured_once_and_together(started):
    """Their measures are those of one process (above); here, that these are no zeros and ones."""
    _, (ended,) = started("pairs")
    values = ended.result["metrics"]
    right = values["val/exact_match"] * WRITTEN
    assert right == pytest.approx(round(right), abs=1e-5)
    assert 0 < right < WRITTEN
    for name, most in {"bleu": 100, "chrf": 100, "wer": 1, "aer": 1, "token_accuracy": 1}.items():
        assert 0 < values[f"val/{name}"] < most, name
        assert 0 < values[f"test/{name}"] < most, name


def test_what_processes_cannot_share_is_refused(started):
    _, (ended,) = started("refused")
    assert (ended.code, "Traceback" in ended.errors) == (2, False)
    assert "data.batch_size=3" in ended.errors


def test_a_run_that_was_stopped_ends_as_one_that_was_not(started):
    """Bit for bit: a sum of two numbers is the same in either order."""
    folder, (killed, failed, interrupted, ended) = started("accidents")
    straight, (whole,) = started("straight")
    assert (killed.code, killed.result["status"]) == (-9, "running")
    assert killed.step in (3, 4)  # process 1 goes on while process 0 still writes
    assert (failed.code, failed.step, failed.result["status"]) == (1, 6, "failed")
    assert "nan at step 6" in failed.result["error"]
    assert (interrupted.code, interrupted.step) == (130, 9)
    assert "stopped by SIGINT after step 9" in interrupted.errors
    assert "Traceback" not in failed.errors + interrupted.errors
    assert whole.code == ended.code == 0, whole.errors + ended.errors
    assert ended.result["metrics"] == whole.result["metrics"]
    require_same_to_the_last_bit(folder, straight)


@pytest.mark.parametrize(
    ("disaster", "code", "line"),
    [
        ("die 0 6", -9, "the first process of this run was killed"),
        ("die 1 6", 1, "process 1 of 2 was killed by SIGKILL"),
        ("start 0", -9, "the first process of this run was killed"),
        ("start 1", 1, "process 1 of 2 was killed by SIGKILL"),
    ],
)
def test_when_one_process_dies_the_other_says_so(started, tmp_path, disaster, code, line):
    """And does not wait for ever; while the processes start, too."""
    straight, _ = started("straight")
    said = f"{line} (perhaps out of memory); the same command resumes"
    line = overrides(straight.parent, *PRONE)
    died = command(line, tmp_path, disaster)
    assert (died.code, died.errors) == (code, f"ablate: {said}\n")
    assert (died.result["status"], died.result["error"]) == ("failed", said)
    ended = command(line, tmp_path, "none")
    assert ended.code == 0, ended.errors
    assert (tmp_path / "metrics.csv").read_text() == (straight / "metrics.csv").read_text()


def test_a_stop_of_one_process_in_a_validation_stops_both(started, tmp_path):
    """Before the validation is over; and the run ends as one that was not stopped."""
    straight, _ = started("straight")
    line = overrides(straight.parent, *PRONE)
    stopped = command(line, tmp_path, "validation 1 8")
    assert (stopped.code, stopped.step) == (130, 8), stopped.errors
    # By the signal, or because the other process was stopped by it.
    assert "after step 8" in stopped.errors
    assert "Traceback" not in stopped.errors
    assert "\n8," not in (tmp_path / "metrics.csv").read_text()  # written after a validation
    ended = command(line, tmp_path, "none")
    assert ended.code == 0, ended.errors
    require_same_to_the_last_bit(tmp_path, straight)


# Else torch 2.15 gives a worker that is started again the addresses of those before it, from the
# store that its agent keeps, and it waits for them, or is refused.
OWN_STORE = {"TORCH_DISABLE_SHARE_RDZV_TCP_STORE": "1"}


def torchrun(line, folder, *options, disaster="none", nodes=1):
    """The same started by torchrun, an agent for each node: their exit codes, and their errors."""
    agents = [
        subprocess.Popen(
            [sys.executable, "-m", "torch.distributed.run", *options,
             *([f"--node-rank={rank}"] if nodes > 1 else []), f"--nproc-per-node={2 // nodes}",
             "-m", "ablate", *line, f"hydra.run.dir={folder}"],
            stdout=subprocess.DEVNULL, stderr=subprocess.PIPE, text=True,
            start_new_session=True, env=environment(disaster) | OWN_STORE,
        )
        for rank in range(nodes)
    ]  # fmt: skip
    try:
        errors = [agent.communicate(timeout=300)[1] for agent in agents]
    finally:
        for agent in agents:
            with suppress(ProcessLookupError):
                os.killpg(agent.pid, signal.SIGKILL)
    # Not the lines of a traceback, among which a reason would be lost.
    said = [line for line in "".join(errors).splitlines() if not line.startswith(" ")]
    return [agent.returncode for agent in agents], "\n".join(said)


# One for the accident, and one for what torch may add: CI saw a worker that had been started again
# end by SIGABRT, once. Whatever ends a worker, the run has to be the same.
RESTARTS = 2


@pytest.mark.parametrize(
    ("name", "restarts", "disaster"),
    [
        ("straight", 0, "none"),
        ("straight", RESTARTS, "die-once 1 6"),
        ("split straight", RESTARTS, "die-once 1 6"),
    ],
)
def test_torchrun_starts_the_same_run_and_restarts_it(started, tmp_path, name, restarts, disaster):
    straight, _ = started(name)
    tiny, more, _ = RUNS[name]
    options = ("--standalone", f"--max-restarts={restarts}")
    codes, errors = torchrun(
        tiny(straight.parent, *more), tmp_path / "run", *options, disaster=disaster
    )
    assert codes == [0], errors
    assert (tmp_path / "run" / "met").exists() == (restarts > 0)
    require_same_to_the_last_bit(tmp_path / "run", straight)


def test_two_nodes_train_as_one_does(started, tmp_path):
    straight, _ = started("straight")
    line = overrides(straight.parent, *PRONE, "trainer.devices=1", "trainer.num_nodes=2")
    with socket.socket() as free:
        free.bind(("127.0.0.1", 0))
        port = free.getsockname()[1]
    options = ("--nnodes=2", "--master-addr=127.0.0.1", f"--master-port={port}")
    codes, errors = torchrun(line, tmp_path / "run", *options, nodes=2)
    assert codes == [0, 0], errors
    require_same_to_the_last_bit(tmp_path / "run", straight)
