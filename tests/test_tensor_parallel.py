"""trainer.tensor_parallel: processes that share out heads and hidden units are as one."""

import csv
import json
import subprocess
import sys
from functools import cache
from typing import Any

import accident
import held
import pytest
import torch
from make_launch import environment
from make_model import CONF, options
from refusals import refused
from sharing import differences
from tiny import images, overrides, pairs

import ablate
from ablate.config.keys import option_content
from ablate.config.stated import stated
from ablate.evaluate import evaluate
from ablate.interface.splits import Part
from ablate.model.layers.split import split
from ablate.run_files.sealed import read_state

BLOCK: dict[str, dict[str, Any]] = {
    "plain": {},
    **{
        name: {"attention": name}
        for name in ("dot", "general", "additive", "cosine", "location", "uniform", "gatv2", "gat")
    },
    "in chunks": {"attention": "additive", "kernel": "chunked"},
    **{name: {"pos_enc": name} for name in ("t5", "alibi", "rotary", "relative", "learned")},
    "grouped": {"heads": 8, "kv_heads": 4, "kernel": "sdpa"},
    **{f"qk {name}": {"qk_norm": name} for name in ("l2", "rms", "layer")},
    "sink": {"sink": "learned", "softcap": 5.0},
    "gate of heads": {"output_gate": "head"},
    "gate of elements": {"output_gate": "element", "norm": "post"},
    **{name: {"mixer": name} for name in ("fixed", "gla", "retention", "delta", "gated_delta")},
    "latent": {"mixer": "latent", "pos_enc": "rotary"},
    "differential": {"mixer": "differential"},
    "no mixer": {"mixer": "none"},
    "around attention": {
        "mixer": {"short_conv": 3, "key_shift": True, "exclusive": True, "value_residual": True}
    },
    **{name: {"ffn": name} for name in ("swiglu", "moe", "none")},
    "parallel": {"parallel": True, "norm_type": "rms"},
    "shared": {"share_layers": True, "activation_checkpointing": True},
    "sparsemax": {"normalizer": "sparsemax", "attention": "cosine"},
}
CASES = {
    **{name: ("gpt", keys) for name, keys in BLOCK.items()},
    **{name: (name, {}) for name in ("bert", "vit", "transformer", "gpt_seq2seq")},
    "images": ("vit", {"pos_enc": "relative_2d"}),
    "pairs": ("transformer", {"attention": "additive", "cross_attention": "general"}),
}


# By four processes, too: parameters of a head, groups of heads, what is not attention, two stacks.
BRIEF = ("t5", "grouped", "gla", "moe", "transformer")


def require_equal(by_name, share):
    """In float64, with dropout; and what is left of the gradients when their norm is clipped."""
    for name, found in by_name.items():
        wrong = {path: error for path, error in found["gradients"].items() if error > 1e-12}
        assert (found["output"] < 1e-12, wrong, found["clipped"] < 1e-12) == (True, {}, True), name
        assert found["kept"] < share, name


@pytest.mark.ci
def test_values_and_gradients_are_those_of_one_process():
    two, four = differences("model", (2, CASES), (4, {name: CASES[name] for name in BRIEF}))
    require_equal(two, share=0.6)
    require_equal(four, share=0.4)


@pytest.mark.slow
def test_values_and_gradients_of_four_processes_are_those_of_one():
    require_equal(*differences("model", (4, CASES)), share=0.4)


@pytest.mark.parametrize("slot", ["attention", "mixer", "pos_enc"])
def test_every_option_that_can_be_shared_out_is_tried(slot):
    group = "pos_enc" if slot == "pos_enc" else f"model.{slot}"
    targets = {
        name: option_content(CONF / group / f"{name}.yaml")[0]["_target_"]
        for name in options(group)
    }
    states = {name for name, part in targets.items() if stated(part, "splits") is not None}
    usual = {"attention": "scaled_dot", "mixer": "attention", "pos_enc": "none"}[slot]
    tried = {str(keys.get(slot, usual)) for _, keys in CASES.values()}
    assert states <= tried


# Whole runs: the tiny one, how it is shared out, and the error that is left

TWO = ("trainer=ddp", "trainer.accelerator=cpu", "trainer.devices=2", "trainer.tensor_parallel=2")
FOUR = (*TWO, "trainer.devices=4")
COPIES = ("trainer=fsdp", *TWO[1:3], "trainer.devices=4", "trainer.shards=2")
SHARDS = ("trainer=fsdp", *FOUR[1:], "trainer.precision=32-true")
EXACT = "trainer.precision=64-true"


def texts(folder, *more):
    return overrides(folder, "model.depth=2", "pos_enc=t5", "model.attention=additive", *more)


def translations(folder, *more):
    """Two batches a step, which hold different numbers of targets."""
    more = ("model=transformer", "model.heads=2", "trainer.accumulate_grad_batches=2", *more)
    return pairs(folder, *more)


RUNS = {
    "text": (texts, TWO, EXACT, 1e-11),
    "text of both": (texts, FOUR, EXACT, 1e-11),
    "images": (images, FOUR, EXACT, 1e-11),
    "pairs": (translations, FOUR, EXACT, 1e-11),
    "shards": (texts, (*SHARDS, held.OVERRIDE), "trainer.precision=32-true", 2e-5),
    "copies": (texts, (*COPIES, held.OVERRIDE), "trainer.precision=32-true", 2e-5),
}


def train(line, folder, disaster=""):
    """As a terminal does, in a process group of its own, which accidents interrupt."""
    done = subprocess.run(
        [sys.executable, "-m", "ablate", *line, f"hydra.run.dir={folder}"],
        env=environment(disaster),
        capture_output=True,
        text=True,
        timeout=600,
        start_new_session=True,
    )
    return done.returncode, done.stderr


@pytest.fixture(scope="module")
def started(tmp_path_factory):
    """The name of a run -> its folder, and that of the same in one process."""
    place = tmp_path_factory.mktemp("runs")
    overrides(place)  # writes the text

    @cache
    def pair(name):
        tiny, more, precision, _ = RUNS[name]
        line = ("model.dropout=0.1", "checkpoint_every=1", precision)
        code, errors = train(tiny(place, *more, *line), place / name)
        assert code == 0, errors
        ablate.run(ablate.compose(*tiny(place, *line)), place / f"{name} in one")
        return place / name, place / f"{name} in one"

    return pair


def curves(folder):
    with (folder / "metrics.csv").open() as file:
        return [{key: float(x) for key, x in row.items() if x} for row in csv.DictReader(file)]


def last(folder):
    return read_state(folder / "checkpoints" / "last.ckpt")


def moments(folder):
    """What the optimizer of one process makes of a checkpoint: both of Adam's, by name."""
    task = ablate.load(folder, allow=["held"]).task
    optimizer = task.make_optimizer(task.parameter_groups())
    optimizer.load_state_dict(last(folder)["optimizer_states"][0])
    return {
        (name, key): optimizer.state[parameter][key]
        for name, parameter in task.model.named_parameters()
        for key in ("exp_avg", "exp_avg_sq")
    }


@pytest.mark.slow
@pytest.mark.parametrize("name", RUNS)
def test_a_run_is_that_of_one_process(started, name):
    """Losses and measures of every step, weights, and the state of the optimizer."""
    error = RUNS[name][-1]
    ours, theirs = started(name)
    for mine, row in zip(curves(ours), curves(theirs), strict=True):
        assert mine.keys() == row.keys()
        for key, value in row.items():  # torchmetrics sums in float32
            least = error if key.startswith("train/") else 2e-5
            assert mine[key] == pytest.approx(value, rel=least, abs=least), (row["step"], key)
    weights = last(theirs)["state_dict"]
    assert weights.keys() == last(ours)["state_dict"].keys()
    for path, value in last(ours)["state_dict"].items():
        if not path.endswith("key.bias"):  # its gradient is rounding alone, which Adam scales up
            assert torch.allclose(value, weights[path], atol=10 * error, rtol=0), path
    of_one = moments(theirs)
    for key, value in moments(ours).items():
        torch.testing.assert_close(value, of_one[key], atol=error, rtol=1e-3)


@pytest.mark.slow
def test_what_was_shared_out_is_read_by_one_process(started):
    """The best weights, and what is measured of them again."""
    folder, _ = started("shards")
    said = json.loads((folder / "result.json").read_text())["metrics"]
    assert evaluate(ablate.load(folder, allow=["held"]), {}) == pytest.approx(said, abs=2e-5)


@pytest.mark.slow
@pytest.mark.parametrize(("name", "share"), [("shards", 0.4), ("copies", 0.55)])
def test_each_process_holds_its_part(started, name, share):
    """Of four processes: half of a half, or a half, of which another has a copy."""
    folder, _ = started(name)
    total = json.loads((folder / "result.json").read_text())["parameters"]["total"]
    each = [json.loads((folder / f"HELD_{rank}.json").read_text()) for rank in range(4)]
    assert max(one["parameters"] for one in each) < share * total
    assert max(one["state"] for one in each) < 2 * share * total  # both moments of Adam


@pytest.mark.slow
@pytest.mark.parametrize(
    ("name", "files", "share"),
    [("text of both", 2, 0.5), ("shards", 4, 0.35), ("copies", 2, 0.55)],
)
def test_each_process_writes_its_part_of_a_state(started, name, files, share):
    """Of what several have, one writes; together they write every number once."""
    folder, _ = started(name)
    places = folder / "checkpoints"
    state = torch.load(places / "last.ckpt")
    whole = sum(x.nbytes for x in last(folder)["state_dict"].values())
    sizes = [
        sum(piece.nbytes for _, piece in torch.load(places / name)["pieces"].values())
        for name in state["shards"]["files"]
    ]
    assert len(sizes) == files
    in_state = sum(x.nbytes for x in state["state_dict"].values() if x is not None)
    assert in_state < 0.3 * whole
    assert sum(sizes) == 3 * (whole - in_state)  # and both moments of Adam
    assert max(sizes) <= share * sum(sizes)


@pytest.mark.slow
@pytest.mark.parametrize(("begins", "resumes"), [(SHARDS, ()), ((), SHARDS), (SHARDS, TWO)])
def test_a_run_resumes_in_another_number_of_processes(started, tmp_path, begins, resumes):
    _, straight = started("shards")
    common = ("model.dropout=0.1", "checkpoint_every=1", "trainer.precision=32-true")
    line = texts(straight.parent, *common, accident.OVERRIDE)
    code, errors = train([*line, *begins], tmp_path / "run", "interrupt 0 5")
    assert code == 130, errors
    code, errors = train([*line, *resumes], tmp_path / "run")
    assert code == 0, errors
    ours, theirs = (last(folder)["state_dict"] for folder in (tmp_path / "run", straight))
    for path, value in theirs.items():
        assert torch.allclose(value, ours[path], atol=2e-5) or path.endswith("key.bias"), path


@pytest.mark.slow
@pytest.mark.parametrize("more", [(*TWO, EXACT), SHARDS], ids=["parts", "shards"])
def test_a_run_that_was_stopped_ends_as_one_that_was_not(tmp_path, more):
    """To the last bit."""
    line = texts(tmp_path, *more, accident.OVERRIDE)
    assert train(line, tmp_path / "straight")[0] == 0
    code, errors = train(line, tmp_path / "stopped", "interrupt 0 5")
    assert (code, last(tmp_path / "stopped")["global_step"]) == (130, 6), errors
    code, errors = train(line, tmp_path / "stopped")
    assert code == 0, errors
    assert curves(tmp_path / "stopped") == curves(tmp_path / "straight")
    ours, theirs = (last(tmp_path / name)["state_dict"] for name in ("stopped", "straight"))
    assert all(torch.equal(ours[name], theirs[name]) for name in theirs)


# Refusals

PAIR = "trainer=ddp trainer.accelerator=cpu trainer.devices=2 trainer.tensor_parallel=2"


@pytest.mark.parametrize(
    ("line", "says"),
    [
        ("trainer.tensor_parallel=2", "use trainer=ddp or trainer=fsdp"),
        (f"{PAIR} trainer.shards=2", "trainer.shards=2 has no effect"),
        (f"{PAIR} trainer=fsdp trainer.shards=2", "does not divide the number of processes"),
        (f"{PAIR} trainer.devices=3", "does not divide the number of processes"),
        (f"{PAIR} model.heads=1", "does not divide model.heads=1"),
        (f"{PAIR} model.qk_norm=rms_all", "model.qk_norm=rms_all norms all heads together"),
        (f"{PAIR} model.kv_heads=1", "does not divide model.kv_heads=1"),
        (f"{PAIR} model.mixer=mamba2 pos_enc=learned", "model.mixer=mamba2 does not state"),
        (f"{PAIR} model.mixer=convolution pos_enc=none", "model.mixer=convolution does not state"),
        (f"{PAIR} model=rnn_lm", "model=rnn_lm does not state"),
        (f"{PAIR} model=captioner", "model=captioner does not state"),
        (f"{PAIR} model.normalizer=hard", "model.normalizer=hard"),
        (f"{PAIR} optimizer=muon", "optimizer=muon"),
        (f"{PAIR} compile=true", "compile=true"),
        (f"{PAIR} trainer.accelerator=gpu trainer.precision=16-mixed", "scale their losses apart"),
    ],
)
def test_what_cannot_be_shared_out_is_refused(line, says):
    with refused(says):
        ablate.compose(*line.split())


def test_hidden_units_that_processes_cannot_share_are_refused(tmp_path):
    model = ablate.build(ablate.compose(*overrides(tmp_path, "model.ffn_dim=33")))
    with pytest.raises(ablate.UserError, match=r"tensor_parallel=2 does not divide .*up\.weight"):
        split(model, Part(0, 2), dry=True)
