"""A model family, its task and its kind of data from a folder of one's own, with their refusals."""

import sys
from pathlib import Path
from textwrap import dedent

import pytest

from ablate import compose, load, run
from ablate.errors import UserError
from ablate.evaluate import evaluate

FILES = {
    "own/data/bags.yaml": """
        # Bags of words of two topics.
        _target_: bags.Bags
        words: 20
        batch_size: 8""",
    "own/model/bag.yaml": """
        # @package _global_
        # A linear classifier of bags of words.
        defaults:
          - override /data: bags
          - override /task: topics
          - override /pos_enc: none
        model:
          _target_: bags.Bag
          hidden: 8
          activation: relu""",
    "own/task/topics.yaml": """
        # The topic of a bag.
        _target_: bags.Topics
        smoothing: 0.0""",
    "bags.py": """
        from typing import Literal

        import torch
        import torch.nn.functional as F
        from torch import nn
        from torchmetrics.aggregation import MeanMetric

        from ablate.config.rules import Count, Share
        from ablate.data import Data
        from ablate.errors import UserError
        from ablate.model.base import Model
        from ablate.task import Task


        class Counts(torch.utils.data.Dataset):
            def __init__(self, words, seed):
                draw = torch.Generator().manual_seed(seed)
                self.topics = torch.randint(2, (64,), generator=draw)
                rates = torch.ones(2, words)
                rates[0, : words // 2] = rates[1, words // 2 :] = 4
                self.counts = torch.poisson(rates[self.topics], generator=draw)

            def __len__(self):
                return len(self.topics)

            def __getitem__(self, request):
                rows = request.indices
                return {"counts": self.counts[rows], "targets": self.topics[rows]}


        class Bags(Data):
            kind = "bags of words"

            def __init__(self, *, words: Count, batch_size: Count, seed: int):
                super().__init__(batch_size=batch_size, seed=seed)
                if words % 2:
                    raise UserError(f"data.words={words}: must be even, half for each topic")
                self.words, self.sizes = words, {"words": words}

            def load(self):
                names = ("train", "val", "test")
                self.splits = {name: Counts(self.words, seed) for seed, name in enumerate(names)}

            def fingerprint(self):
                return f"{self.words:016x}"


        class Bag(Model):
            kinds = ("bags of words",)

            def __init__(self, *, words: int, hidden: Count, activation: Literal["relu", "tanh"]):
                super().__init__()
                self.embedding = nn.Linear(words, hidden)
                self.head = nn.Linear(hidden, 2)
                self.activation = getattr(torch, activation)

            def forward(self, counts):
                return self.head(self.activation(self.embedding(counts)))


        class Topics(Task):
            kinds = ("bags of words",)
            metric, mode, unit = "val/accuracy", "max", "bags"

            def __init__(self, *args, smoothing: Share, **kwargs):
                super().__init__(*args, **kwargs)
                self.smoothing, self.accuracy = smoothing, MeanMetric()

            def inputs(self, batch):
                return (batch["counts"],)

            def units(self, batch):
                return len(batch["targets"])

            def loss(self, batch):
                logits = self.model(batch["counts"])
                return F.cross_entropy(logits, batch["targets"], label_smoothing=self.smoothing)

            def evaluate(self, batch):
                right = self.model(batch["counts"]).argmax(-1) == batch["targets"]
                self.accuracy.update(right.float())

            def measures(self, split):
                return {"accuracy": self.accuracy.compute()}
        """,
}


@pytest.fixture
def folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    for name, text in FILES.items():
        file = tmp_path / name
        file.parent.mkdir(parents=True, exist_ok=True)
        file.write_text(dedent(text).lstrip("\n") + "\n")
    monkeypatch.syspath_prepend(tmp_path)
    monkeypatch.delitem(sys.modules, "bags", raising=False)
    return tmp_path


def test_a_family_of_ones_own_trains_and_is_measured_again(folder: Path) -> None:
    typed = ["model=bag", "trainer.max_epochs=null", "trainer.max_steps=60", "optimizer.lr=0.01"]
    small = ["trainer.val_check_interval=30", "trainer.check_val_every_n_epoch=null", "logger=none"]
    result = run(compose(*typed, *small, config_dir=folder / "own"), folder / "run")
    assert result["metrics"]["test/accuracy"] > 0.9
    again = evaluate(load(folder / "run", allow=["bags"]), {})
    assert again["test/accuracy"] == result["metrics"]["test/accuracy"]
    with pytest.raises(UserError, match="words=21: must be even"):
        run(compose(*typed, *small, "data.words=21", config_dir=folder / "own"), folder / "odd")


@pytest.mark.parametrize(
    ("typed", "line"),
    [
        ("model=bag model.hidden=0", "model.hidden=0: must be a whole number of at least 1"),
        ("model=bag model.activation=tan", "must be relu or tanh; did you mean 'tanh'?"),
        ("model=bag task.smoothing=1", "task.smoothing=1: must be a number of at least 0 and"),
        ("model=bag data=digits", "task=topics needs bags of words, and data=digits is images"),
        ("model=bag task=causal_lm", "task=causal_lm needs text, and data=bags is bags of words"),
        (
            "data=bags",
            "model=gpt reads text, texts with classes, preferences between texts or keys and values"
            " to recall, and data=bags is bags of words; use data=preferences, pydoc, recall,",
        ),
    ],
)
def test_it_is_refused_like_ours(typed: str, line: str, folder: Path) -> None:
    with pytest.raises(UserError) as refused:
        compose(*typed.split(), config_dir=folder / "own")
    assert line in str(refused.value)


@pytest.mark.parametrize(
    ("key", "base"),
    [
        ("model.attention", "ablate.model.attention.Score"),
        ("model", "ablate.model.base.Model"),
        ("data", "ablate.data.Data"),
        ("task", "ablate.task.Task"),
        ("model.layers.attention", "ablate.model.attention.Score"),
    ],
)
def test_a_class_without_the_base_of_its_group_is_refused(key, base, folder: Path) -> None:
    (folder / "bags.py").write_text("class Plain:\n    def forward(self, q, k): ...\n")
    option = folder / "own/model.attention/plain.yaml"
    option.parent.mkdir()
    option.write_text("_target_: bags.Plain\n_partial_: true\n")
    layers = ["model.layers.attention=[plain,dot]", "model.depth=2"]
    typed = layers if "layers" in key else [f"{key}._target_=bags.Plain"]
    with pytest.raises(UserError) as refused:
        compose(*typed, config_dir=folder / "own")
    assert f"_target_=bags.Plain: must be a subclass of {base} (docs/" in str(refused.value)
