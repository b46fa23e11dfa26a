"""Measures of a sequence-to-sequence model against those of a whole corpus, computed here."""

import math
from itertools import chain
from types import SimpleNamespace

import pytest
import sacrebleu
import torch
import torch.nn.functional as F
from make_model import random_parts
from tiny import built, pairs
from torchmetrics import Metric

import ablate
from ablate.config.composition import Composition
from ablate.data import IGNORED
from ablate.data.pairs import EOS, PAD
from ablate.decode.search import Hypothesis
from ablate.errors import UserError
from ablate.model.layers.multi_head import recording
from ablate.task.text_metrics import Written
from ablate.training.build import build_data, count_flops, make_task, model_on_meta

WITH_FIGURES = True  # tests/conftest.py

OUTPUTS = ["the cat sat on a mat", "a dog", "", "he saw it all , he said .", "yes"]
REFERENCES = ["the cat sat on the mat", "a dog", "no no", "he saw all of it, he said.", "Yes"]
LENGTHS = torch.tensor([6, 5, 10, 11, 60])


def written(*parts, item=None, lower=False):
    """After those outputs, some at a time."""
    measures = Written(item=item, lower=lower)
    for part in parts or (slice(2), slice(2, 5)):
        measures.update(OUTPUTS[part], REFERENCES[part], LENGTHS[part])
    return measures


def values(measures):
    return {name: float(value) for name, value in measures.compute().items()}


@pytest.mark.parametrize("lower", [False, True])
def test_corpus_scores_are_sacrebleus(lower):
    measures = written(lower=lower)
    found = values(measures)
    for name, kind in {"bleu": sacrebleu.BLEU, "chrf": sacrebleu.CHRF}.items():
        score = kind(lowercase=lower)
        whole = score.corpus_score(OUTPUTS, [REFERENCES])
        assert found[name] == pytest.approx(whole.score, abs=1e-4)
        assert measures.signatures()[name] == str(score.get_signature())


def test_words_lengths_and_matches():
    found = values(written())
    assert found["exact_match"] == pytest.approx(1 / 5)
    # the -> a; none; "no no" left out; "all of it, he said." of "it all , he said ."; yes -> Yes
    assert found["wer"] == pytest.approx((1 + 0 + 2 + 5 + 1) / (6 + 2 + 2 + 7 + 1))
    assert {name: value for name, value in found.items() if name.startswith("accuracy/")} == {
        "accuracy/length_1-5": 1.0,
        "accuracy/length_6-10": 0.0,
        "accuracy/length_11-15": 0.0,
        "accuracy/length_51+": 0.0,
    }
    assert values(written(lower=True))["exact_match"] == pytest.approx(2 / 5)
    phonemes = values(written(item="phoneme"))  # which make up a word
    assert phonemes["per"] == found["wer"]
    assert phonemes["wer"] == pytest.approx(1 - found["exact_match"])


def test_every_state_adds_up_over_processes():
    first, second = written(slice(2)), written(slice(2, 5))
    for mine, other in zip(first.modules(), second.modules(), strict=True):
        if isinstance(mine, Metric):
            for name, reduction in mine._reductions.items():
                both = torch.stack([getattr(mine, name), getattr(other, name)])
                setattr(mine, name, reduction(both))
    assert values(first) == pytest.approx(values(written()))


@pytest.fixture
def task(tmp_path):
    """Untrained; its decoder attends twice with the same layer."""
    model = ("model=transformer", "model.heads=2", "model.share_layers=true")
    made = built(*pairs(tmp_path, *model, "task.label_smoothing=0.1")).eval()
    random_parts(made.model)
    return made.float()


@torch.no_grad()
@pytest.mark.parametrize("split", ["val", "test"])
def test_measures_are_those_of_a_whole_split(task, split, monkeypatch):
    """Every second text is written as it should be; the loss is not smoothed."""
    task.trainer = SimpleNamespace(state=SimpleNamespace(fn=None), testing=split == "test")
    losses, right, same, wrong = [], [], [], []
    for batch in getattr(task.data, f"{split}_dataloader")():
        batch["targets"][0, -1] = IGNORED  # batches are of unlike sizes
        counted = batch["targets"] != IGNORED
        with recording(task.model):
            logits, targets = task(*task.inputs(batch))[counted], batch["targets"][counted]
            weights = task.model.cross[-1].recorded[-1].mean(1)
        losses.append(F.cross_entropy(logits, targets, reduction="none"))
        right.append(logits.argmax(-1) == targets)
        found = []
        for row, index in zip(weights, batch["index"].tolist(), strict=True):
            pair = task.data.texts[split][index]
            tokens = task.data.target_tokenizer.encode(pair.target if index % 2 else "0")
            found.append([Hypothesis(tokens, -1.0, -1.0)])
            same.append(index % 2)
            for target, source in task.data.alignment(split, index):
                wrong += [int(row[place].argmax()) not in source for place in target]
        monkeypatch.setattr(task, "search", lambda source, found=found: found)
        task.evaluate(batch)
    assert len(same) == task.data.length(split)
    assert 0 < sum(wrong) < len(wrong)
    found = {name: float(value) for name, value in task.measures(split).items()}
    expected = {
        "loss": float(torch.cat(losses).mean()),
        "token_accuracy": float(torch.cat(right).float().mean()),
        "exact_match": sum(same) / len(same),
        "accuracy/length_1-5": sum(same) / len(same),
        "aer": sum(wrong) / len(wrong),
    }
    assert {name: found[name] for name in expected} == pytest.approx(expected, rel=1e-5)
    assert found["perplexity"] == pytest.approx(math.exp(found["loss"]))


@torch.no_grad()
def test_the_loss_is_smoothed_over_real_target_tokens(task):
    task.trainer = SimpleNamespace(world_size=1)
    batch = next(iter(task.data.train_dataloader()))
    batch["targets"][0, -1] = IGNORED  # sentences of a batch are of like lengths
    counted = batch["targets"] != IGNORED
    log_probs = task(*task.inputs(batch)).log_softmax(-1)[counted]
    right = log_probs.gather(1, batch["targets"][counted][:, None])[:, 0]
    expected = -(0.9 * right + 0.1 * log_probs.mean(1)).mean()
    torch.testing.assert_close(task.losses(batch)["loss"], expected)
    assert int(task.units(batch)) == counted.sum()


def test_a_text_is_read_as_the_data_reads_it(task):
    batch = next(iter(task.data.val_dataloader()))
    texts = [task.data.texts["val"][index].source for index in batch["index"].tolist()]
    assert torch.equal(task.read(texts), batch["source"])
    pair, expected = task.data.texts["val"][3], task.data.example(3)
    ours = task.example(pair.source, task.data.target_tokenizer.encode(pair.target))
    for name, value in ours.items():
        if isinstance(value, torch.Tensor):
            assert torch.equal(value, expected[name])
        else:
            assert value == expected[name]


@pytest.mark.ci
def test_flops_are_those_of_pairs_of_mean_length(tmp_path):
    """The same for every seed, though batches of another seed are of other lengths."""

    def flops(*more):
        cfg = ablate.compose(*pairs(tmp_path, *more))
        data = build_data(cfg)
        model = model_on_meta(cfg, data)
        return count_flops(cfg, make_task(cfg, data, model), model)

    one = flops()
    assert flops("seed=1") == one
    assert flops("data.batch_size=8") == 2 * one
    assert flops("trainer.accumulate_grad_batches=3") == 3 * one
    assert flops("data.min_length=4") > one > 0


@pytest.mark.ci
def test_a_run_ends_with_all_measures(tmp_path):
    cfg = ablate.compose(*pairs(tmp_path))
    kept = ablate.run(cfg)
    assert {name.split("/", 1)[1] for name in kept["metrics"]} == {
        "loss", "perplexity", "token_accuracy", "exact_match", "bleu", "chrf", "wer", "aer",
        "accuracy/length_1-5",
    }  # fmt: skip
    assert kept["signatures"]["bleu"].startswith("nrefs:1|case:mixed|eff:no|tok:13a")
    assert kept["throughput"]["unit"] == "tokens/s"
    folder = Composition(cfg).folder
    header = (folder / "metrics.csv").read_text().splitlines()[0].split(",")
    assert "val/token_accuracy" in header
    assert "val/bleu" not in header, "it wrote in the course of training"
    task = ablate.load(folder).task
    for entry, pair in zip(
        (folder / "sample.txt").read_text().split("\n\n"), task.data.texts["val"], strict=False
    ):
        assert entry.startswith(f"source     {pair.source}\nreference  {pair.target}\noutput     ")
    read = next(iter(task.data.val_dataloader()))["source"]
    assert task.max_length == task.data.sizes.target_length
    task.max_length = 2
    tokens = [found[0].tokens for found in task.search(read)]
    assert max(map(len, tokens)) <= 2
    assert not {PAD, EOS} & set(chain.from_iterable(tokens))


@pytest.mark.ci
def test_no_attention_has_no_alignment_error_rate(tmp_path):
    cfg = ablate.compose(*pairs(tmp_path, "model.attention=none"))
    result = ablate.run(cfg)
    assert "val/bleu" in result["metrics"]
    assert "val/aer" not in result["metrics"]
    assert not (Composition(cfg).folder / "figures" / "alignment.png").exists()
    with pytest.raises(UserError, match=r"task\.max_length=99: no target .* more than 6 tokens"):
        ablate.run(ablate.compose(*pairs(tmp_path, "task.max_length=99")))
