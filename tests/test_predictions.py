"""Predictions of single examples, and differences over them."""

import csv
import math

import numpy as np
import pytest
import torch
from make_study import BASE, arm, make_study
from test_study_blocks import blocks
from tiny import built

import ablate
from ablate.errors import UserError
from ablate.study.analysis.collect import collect
from ablate.study.analysis.examples import over_examples
from ablate.study.report import write
from ablate.task.causal_lm import by_example
from ablate.task.presenter import Presenter
from ablate.training.load import load
from ablate.training.predictions import losses, write_predictions

ROTARY = "pos_enc=rotary"


@pytest.mark.parametrize(
    ("choices", "split"),
    [
        (["model=bert", "task.next_sentence=false"], "val"),
        pytest.param(["model=vit", "data=digits"], "test", marks=pytest.mark.slow),
        (["model=rnn_seq2seq", "data=reverse"], "test"),
    ],
)
def test_the_mean_over_examples_is_the_loss_of_the_run(choices, split, tmp_path):
    """Of sequences of several lengths the loss is a mean over tokens, and here one over pairs."""
    cfg = ablate.compose(*choices, "debug=fast", "logger=none", f"output_dir={tmp_path}")
    run = ablate.run(cfg, tmp_path / "run")
    rows = list(csv.DictReader(write_predictions(load(tmp_path / "run")).open()))
    assert [int(row["example"]) for row in rows] == list(range(len(rows)))
    found = [float(row["loss"]) for row in rows]
    tolerance = 0.1 if "data=reverse" in choices else 1e-3  # the last window of a text is shorter
    assert np.mean(found) == pytest.approx(run["metrics"][f"{split}/loss"], rel=tolerance)
    assert losses(tmp_path / "run") == found


def test_means_are_over_the_targets_of_each_example():
    logits = torch.log(torch.tensor([[[0.5, 0.5], [0.9, 0.1]], [[0.2, 0.8], [0.5, 0.5]]]))
    found = by_example(logits, torch.tensor([[1, 0], [1, -100]]))
    expected = [-(math.log(0.5) + math.log(0.9)) / 2, -math.log(0.8)]
    assert found["loss"].tolist() == pytest.approx(expected)
    assert found["right"].tolist() == [0.5, 1.0]


def test_a_task_without_losses_of_examples_refuses():
    with pytest.raises(UserError, match="CausalLM has no per-example loss"):
        Presenter(built()).predictions({})


@pytest.mark.ci
def test_the_interval_over_examples_is_that_of_their_differences(tmp_path):
    """Two seeds whose difference is the same in the mean; example by example it is not."""
    root = make_study(tmp_path / "s", {"baseline": arm([1.0, 1.1]), ROTARY: arm([1.2, 1.3])})
    rng = np.random.default_rng(0)
    easy, gap = rng.uniform(0, 3, 400), rng.normal(0.2, 1.0, 400)

    def read(run):
        return list(easy + (gap if "rotary" in run.folder.name else 0.0))

    (found,) = over_examples(collect(root), read)
    assert (found.arm, found.examples, found.seeds) == (ROTARY, 400, 2)
    assert found.difference == pytest.approx(gap.mean())
    wide = 1.966 * gap.std(ddof=1) / 20
    assert found.interval.high - found.difference == pytest.approx(wide, rel=1e-3)
    assert found.better == pytest.approx((gap < 0).mean())
    page = write(root, losses=read).files[0].read_text()
    assert "Over examples" in page
    for run in collect(root).runs:  # without being asked, if the runs have items of the metric
        rows = [f"val/loss,{n},{value}" for n, value in enumerate(read(run))]
        (run.folder / "items.csv").write_text("\n".join(["metric,item,value", *rows]))
    (of_items,) = write(root).report.examples
    assert of_items.difference == pytest.approx(found.difference)
    assert of_items.crossed.low == pytest.approx(found.crossed.low)
    of_sizes = collect(blocks(tmp_path / "b", {"16": 0.1, "32": 0.1}))
    (of_blocks,) = over_examples(of_sizes, read)  # a seed is one, of however many blocks
    assert (of_blocks.seeds, of_blocks.difference) == (len(BASE), pytest.approx(gap.mean()))
    few = lambda run: read(run)[: 9 if "rotary" in run.folder.name else 5]  # noqa: E731
    with pytest.raises(UserError, match="other examples"):
        over_examples(collect(root), few)
