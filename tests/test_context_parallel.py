"""trainer.context_parallel: processes that share each sequence compute what one process does.

Losses and all gradients; sharing.py starts two or four of them once for all cases.
"""

import json
import subprocess
import sys
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
import torch
from make_model import CONF, options
from refusals import refused
from sharing import differences
from tiny import overrides, write_text

import ablate
from ablate.config.composition import Composition, compose
from ablate.config.keys import option_content
from ablate.config.make import make_data
from ablate.config.stated import Unreadable, stated
from ablate.kernel.context_parallel import Chunks
from ablate.model.mask.causal import Causal
from ablate.run_files.sealed import read_state


def states(group: str, option: str, attribute: str) -> Any:
    try:
        return stated(option_content(CONF / group / f"{option}.yaml")[0]["_target_"], attribute)
    except Unreadable:
        return None


def of_layers(**values: list[Any]) -> list[str]:
    """Keys whose values the layers take in turns."""
    return [
        f"model.layers.{key}=[{','.join('null' if v is None else str(v) for v in of_key)}]"
        for key, of_key in values.items()
    ]


SCORES = [name for name in options("model.attention") if name != "none"]
MASKS = [m for m in options("model.mask") if m not in ("source", "neighbours")]  # of other models
MASK_KEYS = {"window": "{window: {size: 5}}", "prefix": "{prefix: {size: 3}}"}
ENCODINGS = [name for name in options("pos_enc") if not name.endswith("_2d")]  # of images


def together(encoding: str) -> list[str]:
    """The scores that an encoding goes with."""
    reads = states("pos_enc", encoding, "compares") or encoding == "relative"
    both = ("query", "key") if states("pos_enc", encoding, "compares") else ("query",)
    return [s for s in SCORES if not reads or all(states("model.attention", s, w) for w in both)]


KEYED = [MASK_KEYS.get(mask, mask) for mask in MASKS]


def every_pair(encoding: str) -> list[str]:
    """A layer for each pair of a score and a mask, with one encoding."""
    pairs = [(score, mask) for score in together(encoding) for mask in KEYED]
    attention, mask = map(list, zip(*pairs, strict=True))
    return [f"pos_enc={encoding}", *each(attention=attention, mask=mask)]


def each(**values: list[Any]) -> list[str]:
    """A layer for each value of every key, as many as the longest list has."""
    return [f"model.depth={max(map(len, values.values()))}", *of_layers(**values)]


MIXERS = [m for m in options("model.mixer") if states("model.mixer", m, "in_parts") and m != "none"]
BERT = ["model=bert", "task.mask_rate=0.3"]
CASES: dict[str, list[str]] = {
    **{f"scores and masks, pos_enc={name}": every_pair(name) for name in ENCODINGS},
    "normalizers": each(normalizer=options("model.normalizer")),
    "mixers": [*each(mixer=MIXERS), "pos_enc=rotary"],
    "networks": each(
        ffn=[name for name in options("model.ffn") if name != "moe"],
        norm_type=["layer", "rms", "dyt"],
        norm=["pre", "post", "sandwich", "output"],
        parallel=[False, True],
    ),
    "around scores": each(
        kv_heads=[None, 1],
        qk_norm=[None, "l2", "rms", "rms_all", "layer"],
        softcap=[None, 2.0, None],
        sink=[None, "zero", "learned"],
        output_gate=[None, "head", "element"],
    ),
    **{f"connection={name}": [f"model.connection={name}"] for name in options("model.connection")},
    "depth": ["model.depth=3", "model.drop_path=0.3", "model.share_layers=true", "pos_enc=t5"],
    "recomputed": ["model.activation_checkpointing=true", "pos_enc=relative"],
    "exclusive": ["model.mixer.exclusive=true", "model.mixer.value_residual=true"],
    "random positions": ["pos_enc=rotary", "pos_enc.randomise=40"],
    "loss": ["task.label_smoothing=0.1", "task.z_loss=0.01", "model.tie_embeddings=false"],
    "reference": ["kernel=reference", "model.attention=additive"],
    "chunked": ["kernel=chunked", "kernel.chunk=3", "model.attention=additive"],
    "sdpa": ["kernel=sdpa", "model.dropout=0", "model.mask=window", "model.mask.size=3"],
    "triton": ["kernel=triton", "model.attention=additive", "pos_enc=alibi", "model.depth=1"],
    "bert": BERT,
    "bert without pairs": [*BERT, "task.next_sentence=false"],
    "bert, causal": [*BERT, "model.mask=causal", "pos_enc=learned"],
    "recall": ["task=recall", "data=recall", "data.vocab_size=16", "data.pairs=[2]"],
    "forecaster": ["model=transformer_forecaster", "data.window=16"],
}  # fmt: skip
SHARED = ["trainer=ddp", "trainer.accelerator=cpu"]
SIZES = ["model.dim=8", "model.depth=2", "model.heads=2", "model.dropout=0.2", "logger=none"]


def processes(number: int) -> list[str]:
    return [*SHARED, f"trainer.devices={number}", f"trainer.context_parallel={number}"]


def typed(case: list[str], text: Path, number: int) -> list[str]:
    chosen = " ".join(case)
    read = ["data.batch_size=4"]
    if "forecaster" not in chosen:
        read.append("data.seq_len=16")
    if "forecaster" not in chosen and "recall" not in chosen:
        read += ["data=text", f"data.path={text}"]
    return [*read, *SIZES, *processes(number), *case]  # the last of two values holds


def measured(folder: Path, number: int, cases: dict[str, list[str]]) -> dict[str, list[float]]:
    text = write_text(folder / "tiny.txt")
    whole = {name: typed(case, text, number) for name, case in cases.items()}
    (found,) = differences("sequence", (number, whole))
    return found


# Each score and mask once, with the encodings that act at the input, on queries and keys, and as a
# bias.
BRIEF = {
    f"scores and masks, pos_enc={name}": [
        f"pos_enc={name}", *each(attention=together(name), mask=KEYED)
    ]
    for name in ("learned", "rotary", "t5")
} | {
    name: case
    for name, case in CASES.items()
    if not name.startswith(("connection=", "scores and masks")) or name == "connection=hyper"
}  # fmt: skip


@pytest.fixture(scope="module")
def by_two(tmp_path_factory: pytest.TempPathFactory) -> dict[str, list[float]]:
    return measured(tmp_path_factory.mktemp("two"), 2, BRIEF)


@pytest.fixture(scope="module")
def by_four(tmp_path_factory: pytest.TempPathFactory) -> dict[str, list[float]]:
    return measured(tmp_path_factory.mktemp("four"), 4, CASES)


def require_equal(found: list[float]) -> None:
    loss, gradient = found
    assert loss < 1e-8  # task.z_loss is summed in float32
    assert gradient < 1e-9


@pytest.mark.ci
@pytest.mark.parametrize("name", BRIEF)
def test_two_processes_have_the_loss_and_gradients_of_one(
    name: str, by_two: dict[str, list[float]]
) -> None:
    require_equal(by_two[name])


@pytest.mark.slow
@pytest.mark.parametrize("name", CASES)
def test_four_processes_have_the_loss_and_gradients_of_one(
    name: str, by_four: dict[str, list[float]]
) -> None:
    require_equal(by_four[name])


@pytest.mark.parametrize("size", [2, 3, 4])
def test_every_process_has_as_many_positions_and_as_much_causal_work(size: int) -> None:
    length = 12 * size
    parts = [Chunks(rank, size, length, None) for rank in range(size)]
    places = [part.positions(torch.device("cpu")) for part in parts]
    assert torch.cat(places).sort().values.tolist() == list(range(length))
    assert {int((place + 1).sum()) for place in places} == {length * (length + 1) // 2 // size}
    # And what a kernel is given to skip leaves as many keys for each.
    spans = [[Causal(causal=True).span(s, s + p.chunk, length) for s in p.starts] for p in parts]
    assert len({sum(end - begin for begin, end in chunks) for chunks in spans}) == 1


def test_a_process_knows_where_its_positions_are() -> None:
    part = Chunks(1, 2, 16, None)
    whole = torch.arange(32).view(1, 16, 2)
    own = part.of(whole)
    assert own[0, :, 0].tolist() == [8, 10, 12, 14, 16, 18, 20, 22]
    place, here = part.places(torch.tensor([[3, 4, 11, 12]]))
    assert here.tolist() == [[False, True, True, False]]
    assert own[0, place[here]].equal(whole[0, [4, 11]])


def test_a_length_that_cannot_be_cut_is_refused() -> None:
    """Data of one's own, of which the check does not know the length."""
    with refused("trainer.context_parallel=2", "18 positions", "multiple of 4"):
        Chunks(0, 2, 18, None)


def test_the_key_at_null_changes_no_id(tmp_path: Path) -> None:
    text = write_text(tmp_path / "tiny.txt")
    cfg = compose("data=text", f"data.path={text}")
    with_key = Composition(cfg).id
    del cfg.trainer.context_parallel
    assert Composition(cfg).id == with_key


def test_the_share_of_a_process_is_that_of_all_with_its_sequence() -> None:
    data: Any = make_data(compose("data=recall", "task=recall", "data.batch_size=6"))
    data.trainer, data.context_parallel = (
        SimpleNamespace(global_rank=5, world_size=6, strategy=None),
        2,
    )
    assert data.training_share() == (2, 3)
    data.context_parallel = 4  # where their number is known as they start: trainer.devices=auto
    with refused("trainer.context_parallel=4", "there are 6"):
        data.training_share()


# Runs with the processes, how many share a sequence, and what is changed.
RUNS = {
    "two": (2, 2, ["trainer=ddp", "model.attention=additive", "pos_enc=rotary"]),
    "two pairs": (4, 2, ["trainer=ddp", "trainer.accumulate_grad_batches=2"]),
    "four": (4, 4, ["model=bert", "trainer=ddp"]),
    "split": (2, 2, ["trainer=fsdp", "model.activation_checkpointing=true"]),
}


@pytest.mark.slow
@pytest.mark.parametrize("name", RUNS)
def test_a_run_ends_as_that_of_one_process(name: str, tmp_path: Path) -> None:
    number, size, chosen = RUNS[name]
    precision = "32-true" if name == "split" else "64-true"  # fsdp has no float64
    own = [*overrides(tmp_path), "model.depth=2", f"trainer.precision={precision}"]
    alone = [*own, *(o for o in chosen if not o.startswith("trainer="))]
    one = ablate.run(ablate.compose(*alone), tmp_path / "one")
    several = [
        *own, *chosen, f"trainer.precision={precision}", "trainer.accelerator=cpu",
        f"trainer.devices={number}", f"trainer.context_parallel={size}",
        f"hydra.run.dir={tmp_path / name}",
    ]  # fmt: skip
    ended = subprocess.run(
        [sys.executable, "-m", "ablate", *several], capture_output=True, text=True, timeout=600
    )
    assert ended.returncode == 0, ended.stderr
    result = json.loads((tmp_path / name / "result.json").read_text())
    assert result["metrics"] == pytest.approx(one["metrics"], abs=2e-5)
    ours, theirs = (
        read_state(tmp_path / run / "checkpoints" / "last.ckpt")["state_dict"]
        for run in (name, "one")
    )
    for parameter, value in theirs.items():
        if not parameter.endswith("key.bias"):  # its gradient is rounding alone
            torch.testing.assert_close(ours[parameter], value, atol=2e-5, rtol=0, msg=parameter)
    # The losses of training, which several processes log together, and their number of tokens.
    curves = [(tmp_path / run / "metrics.csv").read_text().splitlines() for run in (name, "one")]
    assert len(curves[0]) == len(curves[1])
    for shared, whole in zip(*(lines[1:] for lines in curves), strict=True):
        assert float(shared.split(",")[1]) == pytest.approx(float(whole.split(",")[1]), abs=1e-5)
