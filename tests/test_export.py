"""A run in formats of other libraries: what they read has equal outputs; the rest is refused."""

import csv
import math
import re
from pathlib import Path
from textwrap import dedent

import numpy as np
import pytest
import torch
import torch.nn.functional as F
from make_model import random_parts
from tiny import SMALL, built, images, overrides
from ways import called

import ablate
from ablate import export as command
from ablate.config.composition import Composition, compose
from ablate.data import Request
from ablate.errors import UserError
from ablate.training.build import build, build_data
from ablate.training.pretrained.hugging_face import export as exported
from ablate.training.pretrained.hugging_face.export import network_of

transformers = pytest.importorskip("transformers")


def texts(root):
    """A classification of texts of several lengths, which end in the first token."""
    rows = [f"{'b' * (n % 7 + 1)}!,{'xy'[n % 2]}\n" for n in range(40)]
    (file := root / "texts.csv").write_text("text,label\n" + "".join(rows))
    typed = (f"data.root={file}", "task=classification", *SMALL)
    return ["data=text_files", *overrides(root, "data.tokenizer=char", *typed)[2:]]


@pytest.fixture(scope="module")
def folders(tmp_path_factory):
    """The folders of a GPT, with biases other than zero since training has moved them, and a ViT"""
    root = tmp_path_factory.mktemp("runs")
    cfgs = {
        "gpt": compose(*overrides(root, "trainer.max_steps=4", "trainer.val_check_interval=2")),
        "vit": compose(*images(root)),
        "classes": compose(*texts(root)),
    }
    for cfg in cfgs.values():
        ablate.run(cfg)
    return {name: Composition(cfg).folder for name, cfg in cfgs.items()}


@pytest.fixture
def export(folders, tmp_path, capsys):
    """`ablate export RUN tmp_path/OUT`; returns what it prints."""

    def written(name, out):
        called(command.main, folders[name], tmp_path / out)
        return capsys.readouterr().out

    return written


def compared(run, read, count=3):
    """Outputs for some validation examples, of the run and of what was read."""
    batch = run.data.splits["val"][Request(0, torch.arange(count))]
    inputs = run.task.inputs(batch)
    with torch.no_grad():
        return read(*inputs), run.model(*inputs)


@pytest.mark.parametrize(
    ("name", "kind"),
    [
        pytest.param("gpt", "AutoModelForCausalLM", marks=pytest.mark.ci),
        ("vit", "AutoModelForImageClassification"),
        pytest.param("classes", "AutoModelForSequenceClassification", marks=pytest.mark.ci),
    ],
)
def test_transformers_reads_an_equal_network(name, kind, folders, tmp_path, export):
    assert "outputs differ from the run's by at most" in export(name, "x")
    read = getattr(transformers, kind).from_pretrained(tmp_path / "x").eval()
    names = {"vit": "0123456789", "classes": "xy"}.get(name)
    assert names is None or read.config.id2label == dict(enumerate(names))
    pad = getattr(read.config, "pad_token_id", None)
    theirs, ours = compared(
        ablate.load(folders[name]),
        lambda x, *keep: read(x.where(keep[0], pad) if keep else x).logits,
    )
    torch.testing.assert_close(theirs, ours, rtol=1e-5, atol=1e-5)
    assert ours.std() > 0.01


def test_a_head_of_its_own_and_another_feed_forward_network_have_equals(tmp_path):
    typed = overrides(tmp_path, "model.tie_embeddings=false", "model.ffn=relu")
    task = built(*typed).eval()
    random_parts(task.model, std=0.2)
    theirs = network_of(task.model, compose(*typed), task.data).double().eval()
    tokens = task.data.example()["tokens"]
    torch.testing.assert_close(theirs(tokens).logits, task.model(tokens), rtol=1e-5, atol=1e-5)


@pytest.mark.parametrize(
    ("typed", "says"),
    [
        ("pos_enc=rotary", "a different architecture than this model: pos_enc=learned"),
        ("model.ffn=swiglu", "model.ffn=swiglu: transformers' networks have "),
        ("model=rnn_lm", "model=rnn_lm; gpt and vit can be written"),
    ],
)
def test_what_transformers_does_not_have_is_refused(typed, says):
    cfg = compose(typed)
    task = built(typed)
    with pytest.raises(UserError, match=says):
        network_of(task.model, cfg, task.data)


PAGE = Path(__file__).parents[1] / "docs" / "how-to" / "resume-evaluate-export.md"


@pytest.mark.ci
@pytest.mark.parametrize("name", ["gpt", "vit"])
def test_the_lines_of_the_page_write_a_program_and_a_file_of_onnx(
    name, folders, tmp_path, monkeypatch
):
    monkeypatch.chdir(tmp_path)
    export = PAGE.read_text().split("## Export")[1].split("\n## ")[0]
    _, program, onnx = re.findall(r"(?m)(?:^ {4}.*\n|^\n(?= {4}))+", export)
    names = {}
    exec(dedent(program).replace("RUN_DIR", str(folders[name])), names)
    read = torch.export.load("model.pt2").module()
    theirs, ours = compared(ablate.load(folders[name]), read, count=5)
    torch.testing.assert_close(theirs, ours, rtol=1e-5, atol=1e-5)
    pytest.importorskip("onnxscript")
    exec(dedent(onnx), names)
    reference = pytest.importorskip("onnx.reference").ReferenceEvaluator("model.onnx")
    theirs, ours = compared(
        names["run"], lambda x: reference.run(None, {reference.input_names[0]: x.numpy()})[0]
    )
    torch.testing.assert_close(torch.from_numpy(theirs), ours, rtol=1e-4, atol=1e-4)


def test_nothing_is_written_over_and_what_has_other_outputs_is_not_kept(
    monkeypatch, tmp_path, export
):
    (tmp_path / "mine").write_text("mine")
    with pytest.raises(UserError, match="exists; choose another name"):
        export("gpt", "mine")
    assert (tmp_path / "mine").read_text() == "mine"
    right = exported.network_of

    def wrong(*arguments):
        network = right(*arguments)
        with torch.no_grad():
            network.transformer.wpe.weight *= 3
        return network

    monkeypatch.setattr(exported, "network_of", wrong)
    with pytest.raises(UserError, match="the exported model disagrees with the original"):
        export("gpt", "x")
    assert not list(tmp_path.glob("*x*"))


@pytest.mark.ci
def test_twenty_steps_of_the_recipe_at_124m_have_the_losses_of_a_plain_loop(tmp_path):
    """At a tiny width: transformers' GPT-2 with equal weights and torch's AdamW, as nanoGPT's
    train.py has them. Biases are added, which transformers' network always has."""
    rng = np.random.default_rng(0)
    for split, count in (("train", 4000), ("val", 400)):
        rng.integers(0, 60, count).astype(np.uint16).tofile(tmp_path / f"{split}.bin")
    steps, warmup, accumulate = 20, 3, 2
    typed = f"""experiment=gpt2_124m data.root={tmp_path} data.vocab_size=60 data.seq_len=16
        data.batch_size=4 model.dim=32 model.depth=2 model.heads=2 model.bias=true compile=false
        trainer=cpu trainer.precision=32-true trainer.accumulate_grad_batches={accumulate}
        trainer.max_steps={steps} schedule.warmup={warmup} trainer.val_check_interval=40
        trainer.log_every_n_steps=1 logger=none output_dir={tmp_path / "outputs"}"""
    cfg = compose(*typed.split())
    data = build_data(cfg)
    network = network_of(build(cfg, data), cfg, data).train()
    decayed = [p for p in network.parameters() if p.dim() > 1]
    others = [p for p in network.parameters() if p.dim() < 2]
    groups = [{"params": decayed}, {"params": others, "weight_decay": 0.0}]
    optimizer = torch.optim.AdamW(groups, lr=6e-4, betas=(0.9, 0.95), weight_decay=0.1)
    batches, losses = iter(data.train_dataloader()), []
    for step in range(steps):
        if step < warmup:
            rate = (step + 1) / (warmup + 1)
        else:
            rate = 0.1 + 0.45 * (1 + math.cos(math.pi * (step - warmup) / (steps - warmup)))
        for group in optimizer.param_groups:
            group["lr"] = 6e-4 * rate
        optimizer.zero_grad()
        losses.append(0.0)
        for _ in range(accumulate):
            batch = next(batches)
            logits = network(batch["tokens"]).logits.flatten(0, 1)
            loss = F.cross_entropy(logits, batch["targets"].flatten()) / accumulate
            loss.backward()
            losses[-1] += loss.item()
        torch.nn.utils.clip_grad_norm_(network.parameters(), 1.0)
        optimizer.step()
    with open(Path(ablate.run(cfg)["folder"], "metrics.csv")) as file:
        found = [float(row["train/loss"]) for row in csv.DictReader(file) if row["train/loss"]]
    assert found == pytest.approx(losses, abs=1e-5)
    assert losses[-1] < losses[0]
