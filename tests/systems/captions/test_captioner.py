"""model=captioner and task=captioning: places, weights, steps against one call, what it writes."""

from pathlib import Path
from types import SimpleNamespace

import numpy as np
import pytest
import torch
from make_model import SIZES, normal, random_parts, tiny, tokens
from PIL import Image
from systems.captions.rows import captions
from test_figures import drawn
from test_generate import Command
from test_loop import gradients, looped, two
from tiny import built
from torch import nn
from torch.testing import assert_close

import ablate
from ablate.config.composition import Composition
from ablate.data import IGNORED
from ablate.errors import UserError
from ablate.evaluate import evaluate
from ablate.model.layers.multi_head import recording
from ablate.model.layers.stack import kernels
from ablate.model.resnet import STRIDE
from ablate.show import source_example
from ablate.systems.captions.figures import spread
from ablate.training.leakage import decodes_otherwise, leaks

WITH_FIGURES = True  # tests/conftest.py

I, J = SIZES["captioner"]["target_length"], 3 * 6  # noqa: E741
pytestmark = pytest.mark.usefixtures("no_compiler")


def made(**changes):
    return random_parts(tiny("captioner", **changes)).eval()


IMAGES, WORDS = normal(3, 1, 12, 24), tokens(3, I, seed=4)


def naive(model, image, write):
    """The formulas of show_attend_tell.py, one image and one word at a time; an lstm."""
    decoder, layer = model.decoder, model.decoder.recurrent.layers[0]
    cell = nn.LSTMCell(layer.input_size, layer.hidden_size).double()
    cell.load_state_dict({k.removesuffix("_l0"): v for k, v in layer.state_dict().items()})
    a = model.encoder(image[None])[0].flatten(1).T
    p = {name: x[0] for name, x in decoder.context.score.named_parameters()}
    h, c = (torch.tanh(one.weight @ a.mean(0)) for one in decoder.first.layers[0])
    logits = []
    for word in write:
        e = model.target_embedding(word)
        alpha = torch.stack([p["v"] @ torch.tanh(h @ p["w"] + one @ p["u"]) for one in a])
        z = alpha.softmax(0) @ a
        if decoder.beta is not None:
            z = torch.sigmoid(decoder.beta(h)) * z
        h, c = cell(torch.cat([e, z]), (h, c))
        read = e + decoder.from_state.weight @ h + decoder.from_context.weight @ z
        logits.append(model.head.weight @ read)
    return torch.stack(logits)


@pytest.mark.parametrize("gating_scalar", [True, False])
def test_the_decoder_is_the_papers(gating_scalar):
    model = made(gating_scalar=gating_scalar)
    expected = [naive(model, *one) for one in zip(IMAGES, WORDS, strict=True)]
    assert_close(model(IMAGES, WORDS), torch.stack(expected))


def test_a_place_is_the_centre_of_what_it_sees():
    model = made(image_size=(72, 80))
    image = normal(1, 1, 72, 80).requires_grad_()
    for row, column in ((8, 9), (9, 12)):
        (gradient,) = torch.autograd.grad(model.encoder(image)[0, :, row, column].sum(), image)
        for places, place in zip(gradient[0, 0].nonzero().T, (row, column), strict=True):
            assert int(places.min() + places.max()) == 2 * STRIDE * place


def test_the_places_of_a_box():
    model = tiny("captioner")  # 12 x 24 pixels: 3 x 6 places, 4 pixels apart
    assert model.grid == (3, 6)
    assert model.cells(range(0, 8), range(8, 16)) == {2, 3, 8, 9}
    assert model.cells(range(1, 9), range(9, 17)) == {6 + 3, 6 + 4, 12 + 3, 12 + 4}
    assert tiny("captioner", image_size=(9, 13)).grid == (3, 4)


@pytest.fixture
def task(tmp_path):
    made_task = built(*captions(tmp_path)).eval()
    random_parts(made_task.model)
    return made_task.float()


def test_the_score_by_places_on_weights_made_by_hand(task, monkeypatch):
    """Every digit is looked at but the last one of each image, beside which the model looks."""
    task.trainer = SimpleNamespace(testing=False)
    batch = next(iter(task.data.val_dataloader()))
    places, steps = task.model.grid[0] * task.model.grid[1], batch["targets"].shape[1]
    weights = torch.full((len(batch["index"]), 1, steps, places), 0.01)
    count = 0
    for row, index in zip(weights[:, 0], batch["index"].tolist(), strict=True):
        boxes = task.data.boxes("val", index)
        count += len(boxes)
        for word, (rows, columns) in enumerate(boxes):
            y, x = -(-rows.start // STRIDE), -(-columns.start // STRIDE)
            right = y * task.model.grid[1] + x
            # One place to the left of the box's first is outside.
            row[word, right - (word == len(boxes) - 1)] = 0.5
    task.model.decoder.context.recorded = [weights]
    task._follow_links(batch)
    assert float(task.wrong_links.compute()) == pytest.approx(len(weights) / count)


def test_each_pixel_is_painted_like_the_place_it_is_nearest_to():
    heat = spread(torch.arange(18.0).view(3, 6), 12, 24, stride=4)
    assert heat[0].tolist() == [0, 0] + [1] * 4 + [2] * 4 + [3] * 4 + [4] * 4 + [5] * 6
    assert heat[:, 0].tolist() == [0, 0] + [6] * 4 + [12] * 6


def test_doubly_stochastic_attention_is_equation_14(task):
    task.trainer = SimpleNamespace(world_size=1)
    batch = next(iter(task.data.train_dataloader()))
    plain = task.losses(batch)["loss"]
    task.doubly_stochastic = 0.3
    penalized = task.losses(batch)["loss"]
    with recording(task.model) as (seen,):
        task.model(*task.inputs(batch))
    weights, counted = torch.cat(seen, dim=2)[:, 0], batch["targets"] != IGNORED
    uneven = (1 - (weights * counted[:, :, None]).sum(1)).square().sum()
    added = penalized - plain
    torch.testing.assert_close(added, 0.3 * uneven / counted.sum(), rtol=1e-4, atol=0)
    (learned,) = torch.autograd.grad(added, task.model.decoder.context.score.v)
    assert learned.abs().max() > 0


def test_outputs_are_checked_in_the_precision_of_the_model(task):
    task.double()
    assert not leaks(task)
    assert not decodes_otherwise(task)


@pytest.mark.ci
def test_a_run_from_start_to_end(tmp_path):
    cfg = ablate.compose(*captions(tmp_path))
    result = ablate.run(cfg)
    measures = {name.partition("/")[2] for name in result["metrics"]}
    assert measures == {
        "loss", "perplexity", "token_accuracy", "exact_match", "bleu", "chrf", "wer", "der", "aer",
        "accuracy/length_1-5",
    }  # fmt: skip
    assert result["kernels"] == {"decoder.context": "loop"}
    run = ablate.load(Composition(cfg).folder)
    assert drawn(run.path / "figures" / "alignment.png")
    assert (run.path / "sample.txt").read_text().startswith("reference  ")
    assert evaluate(run, {"data.max_digits": 2, "task.beam": 2})["val/exact_match"] >= 0
    with pytest.raises(UserError, match=r"trained for image_size=\(12, 24\)"):
        evaluate(run, {"data.width": 32})
    with pytest.raises(UserError, match="was not trained on pairs"):
        source_example(run, "1 2")


def test_a_image_file_gets_the_caption_of_its_example(task, tmp_path, monkeypatch, capsys):
    command = Command(task, tmp_path, monkeypatch, capsys)
    gray = task.data.gray(task.data.example(3)["images"][0])
    Image.fromarray((gray * 255).round().byte().numpy()).save(tmp_path / "three.png")
    code, of_file, err = command("--image", tmp_path / "three.png", "--show")
    assert (code, err) == (0, "")
    said, path = of_file.splitlines()
    assert drawn(Path(path))
    _, of_index, _ = command("--index", 3)
    assert of_index.split("\t")[0] == said.split("\t")[0]
    Image.fromarray(np.zeros((12, 30), np.uint8)).save(tmp_path / "wide.png")
    for arguments, message in (
        ([], "--image FILE, or --index N"),
        (["--index", "14"], "--index 14: the validation split has examples 0 to 13"),
        (["--image", tmp_path / "wide.png"], "has 30 x 12 pixels, and the images of"),
        (["--index", "0", "--n-best", "2"], "--n-best 2 is more than --beam 1 finds"),
    ):
        code, out, err = command(*arguments)
        assert (code, out, err.count("\n")) == (2, "", 1)
        assert message in err


@pytest.mark.parametrize("gate", [False, True])
def test_the_written_out_loop_computes_plain_steps(gate):
    model, plain = two("captioner", gating_scalar=gate)
    assert_close(gradients(model, IMAGES), gradients(plain, IMAGES))
    assert looped(model)
    assert kernels(model) == {"decoder.context": "loop"}
    assert kernels(plain) == {"decoder.context": "reference"}
