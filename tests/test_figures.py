"""Figures, and python -m ablate.show: the right files, and in them what the model attends to."""

import os
from pathlib import Path
from unittest.mock import Mock

import numpy
import pytest
import tiny
import torch
from matplotlib.colors import to_hex
from matplotlib.figure import Figure
from matplotlib.image import imread
from torch.testing import assert_close
from ways import called

from ablate import show
from ablate.errors import UserError
from ablate.figures.curves import draw_curves
from ablate.figures.panels import HIDDEN
from ablate.figures.patches import draw_patches, spread, unnormalized
from ablate.figures.save import save, saved_as
from ablate.model.rnn_lm import lstm_gates
from ablate.model.vit import PatchEmbedding
from ablate.run_files import write_text
from ablate.task import attention
from ablate.task.attention import attention_figures, attention_maps

WITH_FIGURES = True  # tests/conftest.py
VIT = ("model=vit", "model.depth=2", "model.dim=16")
COUNTS = [f"data.{split}_examples={n}" for split, n in (("train", 40), ("val", 6), ("test", 6))]
DATES = ("data=dates", *COUNTS, "model.dim=8")
RNN = ("model=rnn_seq2seq", *DATES)
TRANSFORMER = ("model=transformer", *DATES, "model.heads=2", "model.encoder.depth=1")


@pytest.fixture
def gpt(tmp_path):
    return tiny.built(*tiny.overrides(tmp_path, "model.depth=2"))


def pixels(path):
    """y x c, of a PNG."""
    return torch.from_numpy(imread(path).copy())


def drawn(path):
    """A PNG of some size with several colors in it."""
    image = pixels(path)
    return min(image.shape[:2]) > 200 and len(image.flatten(0, 1)[::7].unique(dim=0)) > 10


def test_maps_are_weights_drawn_layer_by_layer_which_changes_nothing(gpt, tmp_path):
    example = gpt.data.example()
    torch.manual_seed(0)
    before = gpt.model.train()(example["tokens"])
    paths = attention_figures(gpt, tmp_path / "maps")
    torch.manual_seed(0)
    assert gpt.model.training
    assert_close(gpt.model(example["tokens"]), before, rtol=0, atol=0)
    for one in attention_maps(gpt, example):
        assert_close(one.weights.sum(-1), torch.ones(2, 16))
        assert torch.equal(one.allowed, torch.ones(16, 16).tril().bool())
        assert not one.weights[:, ~one.allowed].any()
    assert [path.name for path in paths] == ["attention_layer_01.png", "attention_layer_02.png"]
    assert all(drawn(path) for path in paths)
    (path,) = attention_figures(gpt, tmp_path / "one", layer=2, head=1)
    assert path.name == "attention_layer_02.png"
    assert pixels(paths[1]).shape[1] > pixels(path).shape[1]
    for wrong in ({"layer": 3}, {"head": 0}):
        with pytest.raises(UserError, match="1 to 2"):
            attention_figures(gpt, tmp_path, **wrong)


def ticks(axis):
    """What stands at the keys, and at the queries."""
    return [[t.get_text() for t in of()] for of in (axis.get_xticklabels, axis.get_yticklabels)]


def test_the_window_that_is_drawn_has_few_blanks(tmp_path):
    lines = ["a   " * 30, "b  " * 40, "cd " * 40, "e    " * 30] * 20
    (tmp_path / "text.txt").write_text("\n".join(lines))
    typed = ("data=text", f"data.path={tmp_path}/text.txt", "data.seq_len=24", "model.dim=16")
    data = tiny.built(*typed).data
    (best,) = data.drawn(1)
    blanks = [data.example(n)["labels"].count("␣") for n in range(min(64, data.length("val")))]
    assert blanks[best] == min(blanks) < max(blanks)


@pytest.mark.ci
def test_several_examples_each_with_its_tokens_and_true_fields(tmp_path, monkeypatch):
    task, seen = tiny.built(*RNN, "model.window=local_p"), []
    monkeypatch.setattr(attention, "save", lambda figure, path: seen.append(figure))
    examples = [task.data.example(index) for index in range(6)]
    attention_figures(task, tmp_path, examples=examples, caption="by whom", run="the run")
    (figure,) = seen
    above, *below = figure.get_suptitle().split("\n")
    assert above == "the run"
    assert "by whom; outlined: its source" in " ".join(below)
    for index, (axis, example) in enumerate(zip(figure.axes[:6], examples, strict=True)):
        assert axis.get_title() == task.data.source_tokenizer.decode(example["source"][0].tolist())
        assert ticks(axis) == [example["source_labels"], example["target_labels"]]
        assert {frame.get_bbox().bounds for frame in axis.patches} == {
            (source.start - 0.5, target.start - 0.5, len(source), len(target))
            for target, source in task.data.alignment("val", index) or []
        }
        weights = attention_maps(task, example)[0].weights
        assert weights.shape == (1, len(example["target_labels"]), len(example["source_labels"]))
        assert weights.sum(-1).max() < 1.001
        assert_close(torch.tensor(axis.images[0].get_array().data), weights[0])
    figure.draw_without_rendering()
    page, boxes = figure.bbox.padded(1), [axis.get_tightbbox() for axis in figure.axes]
    for number, inside in enumerate(boxes):  # everything written fits
        assert page.x0 <= inside.x0 < inside.x1 <= page.x1
        assert page.y0 <= inside.y0 < inside.y1 <= figure.texts[0].get_window_extent().y0
        assert not any(inside.padded(-1).overlaps(other) for other in boxes[:number])


def test_runs_side_by_side_have_the_same_colors(tmp_path):
    """Also where no row has a single key, whose softmax is 1: sigmoid gives it less."""
    for normalizer in ("softmax", "sigmoid"):
        typed = f"model.normalizer={normalizer}"
        task = tiny.built(*tiny.overrides(tmp_path, typed))
        example = task.data.example()
        maps = attention_maps(task, example)
        figure = task.presenter(task).drawer([example], maps, "")(maps[0], [1])
        axis, bar = figure.axes
        assert axis.images[0].get_clim() == (0, 1)
        assert "0 to 1 in every figure" in bar.get_ylabel()


@pytest.mark.ci
def test_a_transformer_has_maps_of_each_kind_whose_axes_say_what_was_read(tmp_path):
    task = tiny.built(*TRANSFORMER)
    example = task.data.example()
    source, target = example["source_labels"], example["target_labels"]
    read = {
        "encoder": (source, source),
        "decoder": (["<s>", *target[:-1]], target),
        "cross": (source, target),
    }
    maps = attention_maps(task, example)
    draw = task.presenter(task).drawer([example], maps, "")
    for one in maps:
        keys, queries = read[one.kind]
        assert one.weights.shape == (2, len(queries), len(keys))
        assert_close(one.weights.sum(-1), torch.ones(one.weights.shape[:2]))
        assert one.allowed.all() == (one.kind != "decoder")
        left, right, *_ = draw(one, [1, 2]).axes
        shown = left.images[0].get_array()
        assert (shown.mask == ~one.allowed.numpy()).all()
        assert_close(torch.tensor(shown.filled(0)), one.weights[0])
        assert to_hex(left.get_facecolor()) == HIDDEN
        assert right.get_title() == "head 2"
        assert ticks(left)[1] == queries
        assert ticks(right) == [keys, []]  # the same tokens as at the left
    assert len(maps) == 5
    (path,) = attention_figures(task, tmp_path, kinds=["cross"], layer=2, head=2)
    assert path.name == "cross_layer_02.png"


def test_patches_go_back_to_their_place_and_overlapping_ones_are_averaged():
    weights, patches = torch.arange(6.0), PatchEmbedding(1, 4, 2, 2)
    expected = weights.view(2, 3).repeat_interleave(2, 0).repeat_interleave(2, 1)
    assert_close(spread(weights, patches, 4, 6), expected)
    # One row of three pixels' height: patches over columns 0-2 and 1-3 of a 3 x 4 image.
    heat = spread(torch.tensor([1.0, 3.0]), PatchEmbedding(1, 4, 3, 1), 3, 4)
    assert_close(heat, torch.tensor([1.0, 2.0, 2.0, 3.0]).expand(3, 4))
    # A head that sees one patch lights it alone.
    seen = {"head 1": torch.tensor([0.0, 0.0, 1.0, 0.0])}
    figure = draw_patches(seen, torch.zeros(4, 4, 3), patches, "title", 1.0)
    lit = torch.zeros(4, 4)
    lit[2:, :2] = 1
    assert_close(torch.tensor(figure.axes[1].images[0].get_array()), lit, check_dtype=False)


def test_the_image_is_what_a_person_sees():
    data = tiny.built(*VIT).data
    shown = unnormalized(data, data.example()["images"][0])
    from sklearn.datasets import load_digits  # takes a second to import

    originals = torch.from_numpy(load_digits().images).float() / 16
    assert (originals - shown[..., 0]).abs().amax((1, 2)).min() < 1e-5


def save_pdf(path):
    figure = Figure()
    figure.text(0, 0, "".join(map(chr, range(33, 126))))
    with saved_as("pdf"):
        save(figure, path)


@pytest.mark.skipif(not Path("/dev/full").exists(), reason="a device of Linux")
@pytest.mark.parametrize(
    ("name", "write"),
    [
        ("a.png", lambda path: save(Figure(), path)),
        ("a.pdf", save_pdf),
        ("a.txt", lambda path: write_text(path, "a")),
    ],
)
def test_a_full_disk_names_the_file_and_leaves_no_half_of_it(tmp_path, name, write):
    path = tmp_path / name
    path.with_name(f".{name}.{os.getpid()}.tmp").symlink_to("/dev/full")
    with pytest.raises(OSError, match="No space left") as full:
        write(path)
    assert full.value.filename == str(path)
    assert not list(tmp_path.iterdir())


def test_curves_are_drawn_whole_or_not_at_all(tmp_path, monkeypatch):
    rows = ["step,train/loss,val/loss", *(f"{n},{3 / n}," for n in range(1, 9)), "8,,1.0"]
    table, path = tmp_path / "metrics.csv", tmp_path / "figures" / "curves.png"
    table.write_text("\n".join(rows))
    assert drawn(draw_curves(table, path))
    before = path.read_bytes()
    table.write_text("\n".join(rows[:5]))
    monkeypatch.setattr("os.replace", Mock(side_effect=KeyboardInterrupt))
    with pytest.raises(KeyboardInterrupt):
        draw_curves(table, path)
    assert path.read_bytes() == before


@pytest.mark.parametrize("residual", [False, True])
def test_gates_are_those_that_torch_hides(residual):
    """With them and the cell's own candidate, the LSTM's formula gives what torch's layer gives."""
    task = tiny.built("model=rnn_lm", "model.depth=2", f"model.residual={residual}", "model.dim=8")
    model, tokens = task.model, task.data.example()["tokens"][:, :12]
    x = model.embedding(tokens)
    every = zip(model.recurrent.layers, lstm_gates(model, tokens), strict=True)
    for number, (layer, gates) in enumerate(every):
        wanted, _ = layer(x)
        h = c = torch.zeros(1, 8)
        for step in range(12):
            entering, forget, output = (gate[:, step] for gate in gates)
            sums = x[:, step] @ layer.weight_ih_l0.T + h @ layer.weight_hh_l0.T
            candidate = (sums + layer.bias_ih_l0 + layer.bias_hh_l0).chunk(4, dim=-1)[2].tanh()
            c = forget * c + entering * candidate
            h = output * c.tanh()
            assert_close(h, wanted[:, step])
        x = x + wanted if residual and number else wanted


# python -m ablate.show: maps of a run for a text or an example of one's own


@pytest.fixture
def show_command(tmp_path, monkeypatch, capsys):
    """`python -m ablate.show RUN_DIR` on a run that is in memory: exit code, output, errors."""

    def run(task, *arguments):
        loaded = Mock(path=tmp_path, task=task, model=task.model, data=task.data, title="a run")
        monkeypatch.setattr("ablate.training.load.load", lambda run_dir, allow=(): loaded)
        with pytest.raises(SystemExit) as exited:
            show.command(lambda: called(show.main, tmp_path, *arguments))
        return (int(exited.value.code or 0), *capsys.readouterr())

    return run


def test_show_draws_and_prints_paths(gpt, tmp_path, show_command):
    code, out, _ = show_command(gpt, "--text", "the cat sat")
    paths = [Path(line) for line in out.split()]
    assert (code, [path.parent for path in paths]) == (0, [tmp_path / "figures"] * 2)
    assert all(drawn(path) for path in paths)
    raw = tmp_path / "raw"
    typed = ("--text", "the cat", "--layer", "1", "--head", "2", "--raw", "--out", raw)
    assert show_command(gpt, *typed)[0] == 0
    names = sorted(path.name for path in raw.iterdir())
    assert names == ["attention.npz", "attention_layer_01.png"]
    with numpy.load(raw / "attention.npz") as held:
        assert list(held["labels"]) == list("the␣cat")
        first = attention_maps(gpt, gpt.data.from_text("the cat"))[0]
        assert_close(torch.from_numpy(held[first.name]), first.weights[1:])


@pytest.mark.parametrize(("kind", "begins"), [("pdf", b"%PDF"), ("svg", b"<?xml")])
def test_show_draws_for_a_paper(gpt, tmp_path, show_command, kind, begins, caplog):
    """With the same bytes each time, and letters that are text."""
    caplog.set_level("INFO")  # as in a command of Hydra's
    made = []
    for _ in range(2):
        code, out, _ = show_command(gpt, "--layer", "1", "--format", kind)
        assert (code, out) == (0, f"{tmp_path / 'figures' / f'attention_layer_01.{kind}'}\n")
        made.append(Path(out.strip()).read_bytes())
    assert made[0] == made[1]
    assert made[0].startswith(begins)
    assert (b"/Type3" if kind == "pdf" else b"matplotlib.org/font") not in made[0]
    assert "fontTools" not in {record.name.partition(".")[0] for record in caplog.records}


@pytest.mark.ci
def test_show_writes_the_target_of_a_source_and_draws_it(tmp_path, show_command):
    task = tiny.built(*RNN)
    path = tmp_path / "figures" / "alignment.png"
    assert show_command(task, "--source", "3 mars 2015") == (0, f"{path}\n", "")
    assert drawn(path)
    for index in "01":
        assert show_command(task, "--index", index, "--out", tmp_path / index)[0] == 0
    first, second = (pixels(tmp_path / index / path.name) for index in "01")
    assert not torch.equal(first, second)


GPT = ("data=pydoc", "model.depth=2", "model.dim=16", "model.heads=2")


@pytest.mark.parametrize(
    ("overrides", "arguments", "words"),
    [
        (GPT, "--layer 9", "layer 9: this model has layers 1 to 2"),
        (GPT, "--index 10000000", "--index 10000000: the validation split has examples 0 to"),
        (GPT, "--text=", "--text is empty"),
        (RNN, "--text 2015", "--text: "),
        (RNN, "--source=", "--source is empty"),
        ((*RNN, "model.attention=none"), "", "no attention maps or LSTM gates to plot"),
        (("model=rnn_lm", "model.cell=gru"), "", "no attention maps or LSTM gates to plot"),
        (VIT, "--source 2015", "was not trained on pairs"),
        (VIT, "--text hello", "was not trained on text"),
    ],
)
def test_show_refuses_in_one_line(tmp_path, show_command, overrides, arguments, words):
    code, _, error = show_command(tiny.built(*overrides), *arguments.split())
    assert (code, error[:8], error.count("\n")) == (2, "ablate: ", 1)
    assert words in error
    assert not list(tmp_path.rglob("*.png"))
