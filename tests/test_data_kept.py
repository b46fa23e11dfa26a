"""What a run needs of its data is in its folder: it works when the files change or are gone."""

import json

import make_files
import pytest
import torch
from make_data import make, ready
from make_files import FILES
from make_systems import list_of_systems, rows_of_systems
from tiny import SMALL, four_steps, overrides, trained, write_text
from ways import called

import ablate
from ablate import evaluate, export, generate, show
from ablate.config.overrides import value_text
from ablate.errors import UserError
from ablate.run_files.checkpoint_io import read_plain, write_plain
from ablate.training.build import STATE

TOKENIZERS = [
    "char",
    pytest.param("byte", marks=pytest.mark.slow),
    pytest.param("bpe", marks=pytest.mark.ci),
]


@pytest.fixture(params=TOKENIZERS)
def run(request, tmp_path):
    size = ["data.vocab_size=260"] if request.param == "bpe" else []
    return trained(*overrides(tmp_path, *SMALL, f"data.tokenizer={request.param}", *size))


@pytest.mark.ci
def test_a_run_has_its_tokenizer_whatever_becomes_of_its_file(run, tmp_path, capsys):
    text = tmp_path / "tiny.txt"
    called(generate.main, run, "--prompt", "the", "--tokens", "20")
    before = capsys.readouterr().out
    other = write_text(tmp_path / "other.txt", 700)
    for change in (lambda: text.write_text("zyxwv " * 600), text.unlink):
        change()
        capsys.readouterr()
        called(generate.main, run, "--prompt", "the", "--tokens", "20")
        assert capsys.readouterr().out == before
        called(show.main, run)
        assert evaluate.evaluate(ablate.load(run), {"data.path": str(other)})["val/loss"] < 6
    with pytest.raises(UserError, match=r"tiny.txt: no such file"):
        evaluate.evaluate(ablate.load(run), {})


def test_another_content_is_not_measured_as_that_of_the_run(run, tmp_path):
    (tmp_path / "tiny.txt").write_text("zyxwv " * 600)
    for changes in ({}, {"data.seq_len": 8}):
        with pytest.raises(UserError, match=r"tiny.txt: its content is not that which the run was"):
            evaluate.evaluate(ablate.load(run), changes)


@pytest.mark.ci
def test_the_exported_tokenizer_is_that_of_the_run(run, tmp_path, capsys):
    transformers = pytest.importorskip("transformers")
    (tmp_path / "tiny.txt").unlink()
    called(export.main, run, tmp_path / "hf")
    theirs = transformers.AutoTokenizer.from_pretrained(tmp_path / "hf")
    ours = ablate.load(run).data.tokenizer
    for text in ("the cat sat on a mat", " well and all", "a  cat"):
        assert theirs(text)["input_ids"] == ours.encode(text)
        assert theirs.decode(ours.encode(text)) == text
    network = transformers.AutoModelForCausalLM.from_pretrained(tmp_path / "hf")
    ids = torch.tensor([ours.encode("the ")])
    asked = {"attention_mask": torch.ones_like(ids), "max_new_tokens": 8, "do_sample": False}
    written = network.generate(ids, **asked)[0]
    capsys.readouterr()
    called(generate.main, run, "--prompt", "the ", "--tokens", "8", "--temperature", "0")
    assert theirs.decode(written) == capsys.readouterr().out.removesuffix("\n")


def test_another_file_is_measured_whole(tmp_path, capsys):
    run = ablate.load(trained(*overrides(tmp_path, *SMALL)))
    other = write_text(tmp_path / "other.txt", 300)
    measured = evaluate.evaluate(run, {"data.path": str(other)})
    tokens = torch.tensor(run.data.tokenizer.encode(other.read_text()))
    assert f"measured on {len(tokens):,} tokens of val" in capsys.readouterr().err
    losses = []
    for start in range(0, len(tokens) - 1, 16):
        window = tokens[start : start + 17]
        logits = run.model(window[None, :-1])[0]
        losses += torch.nn.functional.cross_entropy(logits, window[1:], reduction="none").tolist()
    assert len(losses) == len(tokens) - 1
    assert measured["val/loss"] == pytest.approx(sum(losses) / len(losses), abs=1e-5)
    with pytest.raises(UserError, match=r"data.val_fraction=0.5: would measure examples that"):
        evaluate.evaluate(run, {"data.val_fraction": 0.5})


# Every data set

ONE_FILE = ("text", "parallel", "image_folder", *list_of_systems("ONE_FILE"))


@pytest.mark.ci
@pytest.mark.usefixtures("small_files")
@pytest.mark.parametrize("name", sorted(FILES))
def test_what_a_run_keeps_of_its_data_is_enough_without_them(name, tmp_path, monkeypatch):
    data = ready(name, **FILES[name])
    if (state := data.run_state()) is None:
        # Nothing is fitted to these, or they are part of a package: they are read again.
        assert name in ("digit_strings", "recall", *rows_of_systems("UNKEPT"))
        again = make(name, **FILES[name])
        again.trained_on = data.fingerprint()
        again.setup()
        return
    write_plain(tmp_path / "data.pt", state)
    again = make(name, **FILES[name])
    monkeypatch.setattr(type(again), "load", lambda self: pytest.fail("the data are read"))
    again.restore_run(read_plain(tmp_path / "data.pt", STATE))
    assert again.sizes == data.sizes
    assert again.class_names == data.class_names
    assert again.length("val") == data.length("val")
    for index in data.drawn(4):
        same(again.example(index), data.example(index))
    count = min(3, data.length("val"))
    same(again.first_examples(count), data.first_examples(count))
    assert again.drawn(4) == data.drawn(4)
    same(again.fitted(), data.fitted())


def same(one, other):
    assert one.keys() == other.keys()
    for key, value in one.items():
        if isinstance(value, torch.Tensor):
            torch.testing.assert_close(value, other[key], rtol=0, atol=0, equal_nan=True)
        else:
            assert value == other[key]


@pytest.mark.usefixtures("small_files")
@pytest.mark.parametrize("name", ONE_FILE)
def test_of_another_file_nothing_is_held_back(name):
    whole = ready(name, **FILES[name])
    data = make(name, **FILES[name])
    data.measure_as(whole)
    assert data.fingerprint() == whole.fingerprint()
    data.whole = True
    data.setup()
    assert list(data.splits) == ["val"]
    counts = {split: whole.length(split) for split in whole.splits}
    if name == "text":
        assert len(data.tokens["val"]) == sum(map(len, whole.tokens.values()))
    else:
        assert data.length("val") >= sum(counts.values()) > counts["val"]


FILES_GONE = rows_of_systems("FILES_GONE")


@pytest.mark.slow
@pytest.mark.ci
@pytest.mark.parametrize(
    ("typed", "options"),
    [
        (["model=rnn_seq2seq"], ["--source", "a b"]),
        (["model=gpt", "task=classification", "model.depth=1", "model.heads=2"], None),
        (["model=vit", "model.patch=4", "model.depth=1", "model.heads=2"], None),
        *FILES_GONE.values(),
    ],
    ids=["parallel", "text_files", "image_folder", *FILES_GONE],
)
def test_a_run_works_when_its_files_are_gone(typed, options, request, tmp_path, monkeypatch):
    make_files.write(tmp_path, monkeypatch)
    name = request.node.callspec.id
    values = [f"data.{key}={value_text(value)}" for key, value in FILES[name].items()]
    run = trained(f"data={name}", *typed, *values, *four_steps(tmp_path), "model.dim=8")
    key = next(key for key in ("path", "root", "source") if key in FILES[name])
    keys = [key, "target"] if name == "parallel" else [key]
    moved = {}
    for each in keys:
        path = tmp_path / FILES[name][each]
        moved[f"data.{each}"] = str(path.rename(path.with_name(f"moved-{path.name}")))
    called(show.main, run)
    if options is not None:
        called(generate.main, run, *options)
    result = json.loads((run / "result.json").read_text())["metrics"]
    loaded = ablate.load(run)
    with pytest.raises(UserError, match="no such f"):
        evaluate.evaluate(loaded, {})
    # The same content under another name is still what was held back.
    metrics = evaluate.evaluate(loaded, moved)
    assert metrics == pytest.approx({name: result[name] for name in metrics}, abs=1e-5)
