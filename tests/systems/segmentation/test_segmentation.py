"""Promptable segmentation: clicks, losses, measures, what a run leaves, and what is refused."""

import json
from collections import defaultdict
from itertools import product
from pathlib import Path

import numpy as np
import pytest
import torch
from conftest import undraw
from PIL import Image
from scipy.ndimage import distance_transform_edt
from systems.segmentation import rows
from tiny import built

import ablate
from ablate import generate, show
from ablate.data import Request
from ablate.errors import UserError
from ablate.systems.segmentation import prompts
from ablate.systems.segmentation.prompts import BACKGROUND, OBJECT, PADDING, boxes, correction
from ablate.systems.segmentation.segmentation import overlap

WITH_FIGURES = True  # tests/conftest.py


def blobs(count=5, seed=0):
    rng = torch.Generator().manual_seed(seed)
    masks = torch.rand(count, 9, 13, generator=rng) < 0.8
    masks[:, 2, 3] = True
    return masks


@pytest.mark.parametrize("numbers", [prompts.NUMBERS, 4 * 15**2])  # all at a time, or four rows
def test_depths_are_those_of_scipy(numbers, monkeypatch):
    sizes, amin = [], torch.Tensor.amin
    monkeypatch.setattr(torch.Tensor, "amin", lambda x, a: sizes.append(x.numel()) or amin(x, a))
    monkeypatch.setattr(prompts, "NUMBERS", numbers)
    masks = torch.cat([blobs(), torch.ones(1, 9, 13).bool(), torch.zeros(1, 9, 13).bool()])
    padded = np.pad(masks.numpy(), ((0, 0), (1, 1), (1, 1)))
    expected = np.stack([distance_transform_edt(mask)[1:-1, 1:-1] for mask in padded])
    np.testing.assert_allclose(prompts.depths(masks).sqrt(), expected, rtol=1e-6)
    assert max(sizes) <= numbers
    x, y = prompts.centers(masks[:-1]).T
    deepest = prompts.depths(masks[:-1])[torch.arange(6), y, x]
    assert torch.equal(deepest, prompts.depths(masks[:-1]).amax((1, 2)))


def test_boxes_are_the_first_and_last_pixels():
    masks = torch.zeros(2, 6, 8).bool()
    masks[0, 2:5, 3:7], masks[1, 5, 0] = True, True
    masks[0, 3, 4] = False
    assert boxes(masks).tolist() == [[[3, 2], [6, 4]], [[0, 5], [0, 5]]]


def test_a_correction_is_in_the_middle_of_the_largest_error():
    masks, predicted = torch.zeros(2, 3, 9, 9).bool()
    masks[0, 1:8, 1:8] = predicted[0, 1:8, 4:8] = True  # misses a part three wide
    predicted[0, 0, 8] = True  # and has one pixel too much
    masks[1, :2, :2] = predicted[1, :7, :7] = True  # too much by a part five wide
    masks[2] = predicted[2] = True  # is right
    point, label = correction(predicted, masks, prompts.error_depths(predicted, masks))
    assert label.tolist() == [OBJECT, BACKGROUND, PADDING]
    assert point[0].tolist() == [2, 2]
    x, y = point[1].tolist()
    assert predicted[1, y, x]
    assert not masks[1, y, x]
    assert min(x, y) >= 2 or max(x, y) >= 4


def test_training_draws_prompts_of_the_object(tmp_path):
    task = built(*rows.masks(tmp_path))
    masks = task.data.splits["train"][Request(0, torch.arange(40))]["masks"]
    points, labels = task.first_prompt(masks)
    clicked = labels[:, 0] == OBJECT
    assert 5 < clicked.sum() < 35
    assert (labels[clicked, 1] == PADDING).all()
    x, y = points[clicked, 0].T
    assert masks[clicked][torch.arange(len(x)), y, x].all()
    assert torch.equal(points[~clicked], boxes(masks)[~clicked])


def test_losses_are_their_formulas(tmp_path):
    task = built(*rows.masks(tmp_path, "model.num_masks=2", "task.focal=3", "task.iou=2"))
    masks = blobs(3)
    logits, iou = torch.randn(3, 1, 2, 9, 13), torch.rand(3, 1, 2)
    terms, errors = {}, []
    for n, m in product(range(3), range(2)):
        p, truth = logits[n, 0, m].sigmoid(), masks[n].float()
        right = torch.where(masks[n], p, 1 - p)
        weight = torch.where(masks[n], 0.25, 0.75)
        focal = (weight * (1 - right) ** 2 * -right.log()).mean()
        dice = 1 - (2 * (p * truth).sum() + 1) / (p.sum() + truth.sum() + 1)
        terms[n, m] = (3 * focal, dice)
        actual = ((p > 0.5) & masks[n]).sum() / ((p > 0.5) | masks[n]).sum()
        errors.append((iou[n, 0, m] - actual) ** 2)
    best = [min(terms[n, 0], terms[n, 1], key=sum) for n in range(3)]
    focal, dice = (torch.stack(values).mean() for values in zip(*best, strict=True))
    expected = {"focal": focal, "dice": dice, "iou": 2 * torch.stack(errors).mean()}
    torch.testing.assert_close(task.measured_losses(logits, iou, masks), expected)


@pytest.mark.ci
@pytest.mark.parametrize("dtype", [torch.float32, torch.float64, torch.bfloat16, torch.float16])
def test_pixels_without_a_label_count_nowhere(tmp_path, monkeypatch, dtype):
    """The losses are those of the others alone, and no click lies there."""
    task = built(*rows.masks(tmp_path))
    ones = torch.ones(8, 3, 16, 16, dtype=dtype)
    monkeypatch.setattr(task.model, "_full_size", lambda masks: ones[: len(masks)])
    batch = task.data.splits["train"][Request(0, torch.arange(8))]
    half = batch["masks"].shape[2] // 2
    batch["masks"][..., half:] = False
    batch = {name: x[batch["masks"].any((1, 2))] for name, x in batch.items()}
    void = torch.zeros_like(batch["masks"])
    void[..., half:] = True

    def clicked(batch):
        clicks, *answers = task.clicked(batch)
        return torch.stack([point[:, 0] for point, _ in clicks[1:]]), *answers

    assert (clicked(batch)[0] >= half).any()
    columns, logits, iou = clicked({**batch, "void": void})
    assert (columns < half).all()
    known, masks = logits[..., :half], batch["masks"]
    expected = task.measured_losses(known, iou, masks[..., :half])
    torch.testing.assert_close(task.measured_losses(logits, iou, masks, void), expected)
    assert set(task.losses({**batch, "void": void})) == set(expected)


def test_validation_needs_an_object_of_a_known_class(tmp_path):
    with pytest.raises(UserError, match=r"trainer.val_examples=1: training has no objects of thei"):
        ablate.run(ablate.compose(*rows.masks(tmp_path, "seed=1", "trainer.val_examples=1")))


@pytest.fixture(scope="module")
def finished(tmp_path_factory):
    folder = tmp_path_factory.mktemp("masks")
    with pytest.MonkeyPatch.context() as patch:
        undraw(patch)
        ablate.run(ablate.compose(*rows.masks(folder, "data.test_examples=4")), folder / "run")
    return folder / "run"


@pytest.mark.ci
def test_measures_are_means_over_the_examples(finished):
    task = ablate.load(finished).task
    found = json.loads((finished / "result.json").read_text())
    ious = defaultdict(list)
    for index in range(task.data.length("val")):
        example = task.data.example(index)
        group = "unfamiliar/" if example["unfamiliar"] else ""
        with torch.no_grad():
            _, logits, iou = task.clicked(example)
        actual = overlap(logits > 0, example["masks"][:, None, None])[0]
        for n in range(task.clicks):
            ious[f"val/{group}miou_{n + 1}"].append(float(actual[n, iou[0, n].argmax()]))
            ious[f"val/{group}oracle_{n + 1}"].append(float(actual[n].max()))
    assert len(ious) == 4 * task.clicks
    for name, values in ious.items():
        assert found["metrics"][name] == pytest.approx(np.mean(values), abs=1e-5)
    assert found["metric"]["name"] == "val/miou_1"
    (drawn,) = task.presenter(task).artifacts(finished)
    assert drawn.relative_to(finished) == Path("figures/masks.png")
    assert drawn.is_file()


@pytest.mark.ci
def test_generate_writes_masks(finished, tmp_path, printed):
    own = str(tmp_path / "own.png")
    Image.fromarray((np.arange(600) % 256).astype(np.uint8).reshape(20, 30)).save(own)

    def call(*arguments, command=generate):
        return printed(command, finished, *arguments).splitlines()

    *said, path = call("--index", "1")
    assert len(said) == 3
    assert Path(path).is_file()
    _, mask, figure = call("--image", own, "--point", "20,5", "--box", "3,4,29,19")
    assert Path(figure).is_file()
    read = np.asarray(Image.open(mask))
    assert read.shape == (20, 30)
    assert set(np.unique(read)) <= {0, 255} | {False, True}
    drawn = {Path(line).name.rpartition("_layer_")[0] for line in call(command=show)}
    assert drawn == {"encoder", "decoder_to_itself", "decoder_to_image", "decoder_to_tokens"}
    for arguments, line in {
        ("--image", own): "--image needs a prompt: --point X,Y",
        ("--image", own, "--image", "a/own.jpg"): "two files have the same name; rename one",
        ("--image", own, "--point", "30,5"): r"must be X,Y in pixels of the image \(30 x 20\)",
        ("--image", own, "--box", "9,9,3,3"): "the first corner must be the upper left",
        ("--index", "14"): "examples 0 to 13",
    }.items():
        with pytest.raises(UserError, match=line):
            call(*arguments)
