"""trainer.context_parallel: processes that share each sequence compute what one process does.

sharing.py starts two or four of them once for all cases, and compares losses and all gradients.
"""

import json
import os
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch
from make_model import CONF, options
from refusals import refused
from tiny import write_text

from ablate.config.composition import Composition, compose
from ablate.config.keys import option_content
from ablate.config.stated import Unreadable, stated
from ablate.errors import UserError
from ablate.kernel.context_parallel import Part
from ablate.model.mask.causal import Causal

HERE = Path(__file__).parent


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


def every_pair(encoding: str) -> list[str]:
    """A layer for each pair of a score and a mask, with one encoding."""
    scores = together(encoding)
    pairs = [(score, MASK_KEYS.get(mask, mask)) for score in scores for mask in MASKS]
    attention, mask = map(list, zip(*pairs, strict=True))
    return [
        f"pos_enc={encoding}", f"model.depth={len(pairs)}",
        *of_layers(attention=attention, mask=mask),
    ]  # fmt: skip


def each(**values: list[Any]) -> list[str]:
    """A layer for each value of every key, as many as the longest list has."""
    return [f"model.depth={max(map(len, values.values()))}", *of_layers(**values)]


BERT = ["model=bert", "task.mask_rate=0.3"]
CASES: dict[str, list[str]] = {
    **{f"scores and masks, pos_enc={name}": every_pair(name) for name in ENCODINGS},
    "normalizers": each(normalizer=options("model.normalizer")),
    "mixers": [*each(mixer=[m for m in options("model.mixer") if states("model.mixer", m, "splits")
                            and m != "none"]), "pos_enc=rotary"],
    "networks": each(
        ffn=[name for name in options("model.ffn") if name != "moe"],
        norm_type=["layer", "rms", "dyt"],
        norm=["pre", "post", "sandwich", "output"],
        parallel=[False, True],
    ),
    "around scores": each(
        kv_heads=[None, 1],
        qk_norm=[None, "l2", "rms", "layer"],
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
    "triton": ["kernel=triton", "model.attention=additive", "pos_enc=alibi"],
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
    groups = [o for o in case if "." not in o.partition("=")[0] or "=" in o and o in ()]
    return [*groups, *read, *SIZES, *processes(number), *(o for o in case if o not in groups)]


def measured(folder: Path, number: int) -> dict[str, tuple[float, float]]:
    text = write_text(folder / "tiny.txt")
    cases = {name: typed(case, text, number) for name, case in CASES.items()}
    ended = subprocess.run(
        [sys.executable, str(HERE / "sharing.py"), str(number)],
        input=json.dumps(cases),
        stdout=subprocess.PIPE,
        text=True,
        check=True,
        timeout=900,
        env=os.environ | {"OMP_NUM_THREADS": "1"},
    )
    return dict(json.loads(ended.stdout.splitlines()[-1]))


@pytest.fixture(scope="module")
def by_two(tmp_path_factory: pytest.TempPathFactory) -> dict[str, tuple[float, float]]:
    return measured(tmp_path_factory.mktemp("two"), 2)


@pytest.fixture(scope="module")
def by_four(tmp_path_factory: pytest.TempPathFactory) -> dict[str, tuple[float, float]]:
    return measured(tmp_path_factory.mktemp("four"), 4)


@pytest.mark.parametrize("name", CASES)
def test_two_processes_have_the_loss_and_gradients_of_one(
    name: str, by_two: dict[str, tuple[float, float]]
) -> None:
    assert max(by_two[name]) < 1e-9


@pytest.mark.slow
@pytest.mark.parametrize("name", CASES)
def test_four_processes_have_the_loss_and_gradients_of_one(
    name: str, by_four: dict[str, tuple[float, float]]
) -> None:
    assert max(by_four[name]) < 1e-9
