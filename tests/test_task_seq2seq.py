"""Measures of a sequence-to-sequence model against those of a whole corpus, computed here."""

import json
import math
from itertools import chain
from types import SimpleNamespace

import pytest
import sacrebleu
import torch
import torch.nn.functional as F
from make_data import ready
from tiny import pairs
from torch import nn
from torchmetrics import Metric

import ablate
from ablate.config.composition import Composition
from ablate.data import IGNORED
from ablate.data.pairs import EOS, PAD
from ablate.decode.search import Hypothesis
from ablate.errors import UserError
from ablate.model.base import Seq2Seq
from ablate.task.seq2seq import SequenceToSequence
from ablate.task.text_metrics import ByLength, Corpus, Written, right_links
from ablate.training.build import build, build_data, count_flops, make_task

WITH_FIGURES = True  # tests/conftest.py

OUTPUTS = ["the cat sat on a mat", "a dog", "", "he saw it all , he said .", "yes"]
REFERENCES = ["the cat sat on the mat", "a dog", "no no", "he saw all of it, he said.", "Yes"]
LENGTHS = torch.tensor([6, 2, 10, 11, 60])


def written(*parts, item=None, lower=False):
    """After those outputs, some at a time."""
    measures = Written(item=item, lower=lower)
    for part in parts or (slice(2), slice(2, 4), slice(4, 5)):
        measures.update(OUTPUTS[part], REFERENCES[part], LENGTHS[part])
    return measures


def values(measures):
    return {name: float(value) for name, value in measures.compute().items()}


@pytest.mark.parametrize("lower", [False, True])
@pytest.mark.parametrize("parts", [(), (slice(5),)], ids=len)
def test_corpus_scores_are_sacrebleus(lower, parts):
    measures = written(*parts, lower=lower)
    found = values(measures)
    for name, kind in {"bleu": sacrebleu.BLEU, "chrf": sacrebleu.CHRF}.items():
        score = kind(lowercase=lower)
        whole = score.corpus_score(OUTPUTS, [REFERENCES])
        assert found[name] == pytest.approx(whole.score, abs=1e-4)
        assert measures.signatures()[name] == str(score.get_signature())
    assert ("case:lc" in measures.signatures()["bleu"]) == lower


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


def test_reset_forgets():
    for metric, arguments in (
        (Corpus(sacrebleu.BLEU()), (["a b"], ["a b"])),
        (ByLength(), (torch.tensor([True]), torch.tensor([3]))),
    ):
        before = [state.clone() for state in metric.metric_state.values()]
        metric.update(*arguments)
        metric.reset()
        assert all(map(torch.equal, metric.metric_state.values(), before))


def test_links_point_at_the_field_of_the_token():
    links = [(range(0, 2), range(3, 5)), (range(3, 4), range(0, 1))]
    weights = torch.zeros(5, 6)
    weights[range(5), [3, 5, 0, 0, 1]] = 0.6
    assert right_links(weights, links) == (2, 3)  # the second token looks beside its field


class Attention(nn.Module):
    recorded = None


class Stub(Seq2Seq):
    """Says and looks at what the test wants: `logits` and `weights`."""

    applications = 1  # of its last layer: those before look elsewhere

    def __init__(self):
        super().__init__()
        self.parameter = nn.Parameter(torch.zeros(()))
        self.attention = Attention()

    @property
    def cross(self):
        return [Attention(), self.attention]

    def forward(self, source, target_in):
        if self.attention.recorded is not None:
            self.attention.recorded += [self.weights.flip(3)] * (self.applications - 1)
            self.attention.recorded += self.weights.split(1, dim=2)
        return self.logits

    def encode(self, source):
        raise NotImplementedError

    def step(self, tokens, state):
        raise NotImplementedError


DATES = {"train_examples": 30, "val_examples": 9, "test_examples": 8, "batch_size": 4}
KEYS = {"label_smoothing": 0.0, "beam": 1, "length_penalty": 0.0, "max_length": None}


def stub(fn="validate"):
    """On dates, as a Trainer would hold it that does `fn`."""
    model, data = Stub(), ready("dates", **DATES)
    task = SequenceToSequence(model, data=data, optimizer=None, schedule=None, seed=0, **KEYS)
    state, testing = SimpleNamespace(fn=fn), fn == "test"
    task.trainer = SimpleNamespace(state=state, testing=testing, world_size=1)
    return model, task


def random_logits(task, batch):
    batch["targets"][0, -3:] = IGNORED  # dates are all of one length
    task.model.logits = torch.randn(*batch["targets"].shape, task.data.sizes["target_vocab"])


def look(data, split, batch, *, shift=0):
    """b h i j; the mean of two heads looks `shift` tokens beside the field, each head elsewhere."""
    size = (len(batch["source"]), 2, batch["targets"].shape[1], batch["source"].shape[1])
    weights = torch.full(size, 0.01)
    for row, index in zip(weights, batch["index"].tolist(), strict=True):
        for target, source in data.alignment(split, index):
            for head, elsewhere in enumerate((-1, -2)):
                row[head, list(target), elsewhere] = 0.5
                row[head, list(target), (source.start + shift) % (size[3] - 2)] = 0.4
    return weights


@pytest.mark.parametrize(("split", "applications"), [("test", 1), ("val", 3)])
def test_teacher_forcing_alignment_and_texts_of_a_whole_split(split, applications, monkeypatch):
    model, task = stub("test" if split == "test" else "validate")
    model.applications = applications
    task.label_smoothing = 0.3  # of training alone
    data = task.data
    everything = data.alignment  # of which sentences have more or less here
    monkeypatch.setattr(data, "alignment", lambda *of: everything(*of)[: 1 + of[1] % 3])
    total = right = count = 0.0
    outputs, references, lengths, wrong, linked = [], [], [], 0, 0
    for number, batch in enumerate(getattr(data, f"{split}_dataloader")()):
        torch.manual_seed(number)
        random_logits(task, batch)
        targets, counted = batch["targets"], batch["targets"] != IGNORED
        model.weights = look(data, split, batch, shift=-40 if number == 0 else 0)
        indices = batch["index"].tolist()
        picked = [data.texts[split][index].target for index in indices]
        lengths += [len(data.source_tokenizer.encode(data.texts[split][n].source)) for n in indices]
        said = [text if n % 2 else text[:-1] for n, text in enumerate(picked)]
        tokens = [data.target_tokenizer.encode(text) for text in said]
        found = [[Hypothesis(one, -1.0, -1.0)] for one in tokens]
        monkeypatch.setattr(task, "search", lambda source, found=found: found)
        task.evaluate(batch)
        losses = F.cross_entropy(model.logits[counted].double(), targets[counted], reduction="none")
        total, count = total + float(losses.sum()), count + float(counted.sum())
        right += float((model.logits.argmax(-1) == targets)[counted].sum())
        outputs, references = [*outputs, *said], [*references, *picked]
        for row, index in zip(model.weights.mean(1), indices, strict=True):
            for target, source in data.alignment(split, index):
                wrong += sum(int(row[place].argmax()) not in source for place in target)
                linked += len(target)
    assert len(outputs) == data.length(split)
    same = [one == other for one, other in zip(outputs, references, strict=True)]
    short = [one for one, length in zip(same, lengths, strict=True) if 5 < length <= 10]
    assert 10 in lengths, "no source is as long as a bin: the test shows less"
    assert wrong > 0
    expected = {
        "loss": total / count,
        "perplexity": math.exp(total / count),
        "token_accuracy": right / count,
        "exact_match": sum(same) / len(same),
        "accuracy/length_6-10": sum(short) / len(short),
        "bleu": sacrebleu.corpus_bleu(outputs, [references]).score,
        "aer": wrong / linked,
    }
    found = {name: float(value) for name, value in task.measures(split).items()}
    assert {name: found[name] for name in expected} == pytest.approx(expected, rel=1e-5)


def test_while_it_trains_it_does_not_write():
    _, task = stub("fit")
    batch = next(iter(task.data.val_dataloader()))
    random_logits(task, batch)
    task.evaluate(batch)  # neither searches nor looks: the stub can do neither
    assert set(task.measures("val")) == {"loss", "perplexity", "token_accuracy"}


def test_the_loss_is_smoothed_over_real_target_tokens():
    model, task = stub("fit")
    task.label_smoothing = 0.1
    batch = next(iter(task.data.train_dataloader()))
    random_logits(task, batch)
    expected = [
        -(0.9 * log_probs[target] + 0.1 * log_probs.mean())
        for row, targets in zip(model.logits.log_softmax(-1), batch["targets"], strict=True)
        for log_probs, target in zip(row, targets.tolist(), strict=True)
        if target != IGNORED
    ]
    assert float(task.loss(batch)) == pytest.approx(float(torch.stack(expected).mean()), rel=1e-5)
    assert int(task.units(batch)) == len(expected)


def test_a_text_is_read_as_the_data_reads_it():
    _, task = stub()
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


def test_flops_are_those_of_pairs_of_mean_length(tmp_path):
    """The same for every seed, though batches of another seed are of other lengths."""

    def flops(*more):
        cfg = ablate.compose(*pairs(tmp_path, *more))
        data = build_data(cfg)
        return count_flops(cfg, make_task(cfg, data, build(cfg, data)))

    one = flops()
    assert one > 0
    assert {flops(f"seed={seed}") for seed in (1, 2)} == {one}
    assert flops("data.batch_size=8") == 2 * one
    assert flops("trainer.accumulate_grad_batches=3") == 3 * one
    assert flops("data.min_length=4") > one


def test_a_run_ends_with_all_measures(tmp_path):
    cfg = ablate.compose(*pairs(tmp_path))
    ablate.run(cfg)
    folder = Composition(cfg).folder
    kept = json.loads((folder / "result.json").read_text())
    assert {name.split("/", 1)[1] for name in kept["metrics"]} == {
        "loss", "perplexity", "token_accuracy", "exact_match", "bleu", "chrf", "wer", "aer",
        "accuracy/length_1-5",
    }  # fmt: skip
    assert kept["signatures"]["bleu"].startswith("nrefs:1|case:mixed|eff:no|tok:13a")
    assert kept["throughput"]["unit"] == "tokens/s"
    assert kept["flops_per_step"] > 0
    header = (folder / "metrics.csv").read_text().splitlines()[0].split(",")
    assert "val/token_accuracy" in header
    assert "val/bleu" not in header, "it wrote in the course of training"
    run = ablate.load(folder)
    sample = (folder / "sample.txt").read_text().split("\n\n")
    for entry, pair in zip(sample, run.data.texts["val"], strict=False):
        source, reference, output = entry.split("\n")
        assert source == f"source     {pair.source}"
        assert reference == f"reference  {pair.target}"
        assert output.startswith("output     ")
    read = next(iter(run.data.val_dataloader()))["source"]
    assert run.task.max_length == run.data.sizes["target_length"]
    run.task.max_length = 2
    tokens = [found[0].tokens for found in run.task.search(read)]
    assert max(map(len, tokens)) <= 2
    assert not {PAD, EOS} & set(chain.from_iterable(tokens))


def test_no_attention_has_no_alignment_error_rate(tmp_path):
    cfg = ablate.compose(*pairs(tmp_path, "model.attention=none"))
    result = ablate.run(cfg)
    assert "val/bleu" in result["metrics"]
    assert "val/aer" not in result["metrics"]
    assert not (Composition(cfg).folder / "figures" / "alignment.png").exists()
    with pytest.raises(UserError, match=r"task\.max_length=99: no target .* more than 6 tokens"):
        ablate.run(ablate.compose(*pairs(tmp_path, "task.max_length=99")))
