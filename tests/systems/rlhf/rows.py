"""Rows of the tables of tests for RLHF; see tests/make_systems.py."""

import json
import random
from math import log
from pathlib import Path
from typing import Any

import torch
from make_systems import COUNTS
from torch import Tensor

from ablate.systems.rlhf.dpo import dpo_loss
from ablate.systems.rlhf.policy import leave_one_out
from ablate.systems.rlhf.reward import unlikelihood
from ablate.systems.rlhf.rlhf import clipped, policy_gradient

FILES = {"preferences": COUNTS | {"seq_len": 8, "batch_size": 2, "prompt": 3}}
NEEDS = {
    "data=preferences": ["task=dpo"],
    **{f"task={name}": ["data=preferences"] for name in ("reward", "dpo", "rlhf")},
}
DATA_OTHERS = {"temperature": 100.0}
DATA_OF_ONE = {"preferences": {"path": "preferences.jsonl"}}
DATA_SILENT = ["policy_run"]  # which writes the pairs: test_rlhf.py
NO_AXIS = {"task.algorithm": "needs the run of a reward model: test_rlhf.py"}
SWEEPS = ["rlhf"]
# Keys of the tasks that change what is learned: the task, the key, another value.
KNOBS = [
    ("dpo", "task.beta", "0.5"),
    ("dpo", "task.reward", "a run"),
    ("rlhf", "task.reward", "a run"),
    ("rlhf", "task.algorithm", "ppo"),
    ("rlhf", "task.samples", "3"),
    ("rlhf", "task.kl", "5.0"),
    ("rlhf", "task.clip", "0.001"),
    ("rlhf", "task.minibatches", "2"),
]
REFUSED = """
2 data=preferences task=reward model.tie_embeddings=false data.path=pairs data.temperature=2
4 data=preferences task=rlhf debug=overfit task.clip=0.1 task.minibatches=2 data.path=pairs
2 data=preferences task=reward data.prompt=64 data.seq_len=64 data.path=pairs data.policy_run=RUN
3 data=preferences task=rlhf model.mask=none model.dropout=0.1 model.drop_path=0.1
3 data=preferences task=rlhf model.mask=prefix model.mask.size=60 model.norm_type=batch
1 data=preferences task=rlhf model.normalizer=hard
1 data=preferences task=rlhf pos_enc=rotary pos_enc.randomize=64
2 model.qk_norm=l2 model.attention=cosine task=rlhf data=text data.path=pairs model.mask=prefix
"""


def tensor(row: Any) -> Tensor:
    return torch.tensor([row], dtype=torch.float64)


EXAMPLES = {
    "reward model": lambda: unlikelihood(tensor(log(3))),
    "DPO": lambda: dpo_loss(tensor(log(3)), tensor(-log(3)), 0.5),
    "RLOO": lambda: leave_one_out(tensor([1, 2, 6])),
    "policy gradient": lambda: policy_gradient(tensor([log(1 / 2), log(1 / 2)]), tensor(2)),
    "PPO's clipped ratio": lambda: clipped(
        tensor([log(1.5), log(0.5)]), tensor([0, 0]), tensor(2), 0.2
    ),
}
NAMES = ("prompt", "chosen", "rejected")  # of a pair
LETTERS = "abcdefghijklmnopqrstuvwxyz     "


def accepted() -> dict[str, dict[str, list[Any]]]:
    return {}


def write(folder: Path) -> None:
    write_preferences(folder / "preferences.jsonl")


def write_preferences(path: Path, count: int = 40) -> None:
    """Pairs whose prompts differ in length."""
    rng = random.Random(0)
    with path.open("w") as file:
        for n in range(count):
            words = ["".join(rng.choices(LETTERS, k=1 + (n + m) % 9)) for m in range(3)]
            file.write(json.dumps(dict(zip(NAMES, words, strict=True))) + "\n")
