"""data=digit_strings: captions, boxes and images go together, and splits share no digit."""

from itertools import pairwise

import numpy as np
import pytest
import torch
from make_data import make, ready
from numpy.typing import NDArray
from PIL import Image

from ablate.data import IGNORED, Request
from ablate.data.digit_strings import SIDE, DigitStrings
from ablate.data.digits import Digits
from ablate.data.pairs import BOS, EOS

SMALL = {"train_examples": 200, "val_examples": 100, "test_examples": 60, "batch_size": 8}
COUNTS = {"train": 200, "val": 100, "test": 60}


@pytest.fixture(scope="module")
def data():
    made = ready("digit_strings", **SMALL)
    assert isinstance(made, DigitStrings)
    return made


def canvases(data, split):
    pixels: NDArray[np.uint8] = data.pixels[split].numpy()
    return pixels


def digits():
    """What each image of a single digit says, by split."""
    sources = Digits(batch_size=1, seed=0).read()
    everything = {name: source.pixels(np.arange(10_000)[: len(source.labels)])
                  for name, source in sources.items()}  # fmt: skip
    return {
        name: {image.tobytes(): int(label) for image, label in zip(
            everything[name], source.labels, strict=True)}
        for name, source in sources.items()
    }  # fmt: skip


@pytest.mark.parametrize("split", list(COUNTS))
def test_a_caption_reads_the_digits_in_the_boxes_from_left_to_right(split, data):
    known = digits()[split]
    images = canvases(data, split)
    assert len(images) == COUNTS[split] == data.length(split)
    for number, image in enumerate(images):
        boxes = data.boxes(split, number)
        crops = [image[box.rows.start : box.rows.stop, box.columns.start : box.columns.stop]
                 for box in boxes]  # fmt: skip
        # An image of this split's digits, and no other's: which also holds that none is covered.
        said = [str(known[crop.tobytes()]) for crop in crops]
        assert data.reference(split, number) == " ".join(said)
        assert image.sum(dtype=int) == sum(crop.sum(dtype=int) for crop in crops)


def test_splits_share_no_digit():
    seen = [set(split) for split in digits().values()]
    assert sum(map(len, seen)) == len(set().union(*seen)) == 1797


@pytest.mark.parametrize("split", list(COUNTS))
def test_digits_stand_inside_and_share_no_column(split, data):
    height, width = data.size
    for number in range(data.length(split)):
        boxes = data.boxes(split, number)
        assert all(len(box.rows) == len(box.columns) == SIDE for box in boxes)
        assert all(box.rows.start >= 0 and box.rows.stop <= height for box in boxes)
        assert boxes[0].columns.start >= 0
        assert boxes[-1].columns.stop <= width
        assert all(one.columns.stop <= other.columns.start for one, other in pairwise(boxes))


def test_places_and_lengths_are_all_there_are(data):
    boxes = [data.boxes("train", number) for number in range(200)]
    assert {len(one) for one in boxes} == {1, 2, 3, 4}
    assert {box.rows.start for one in boxes for box in one} == set(range(24 - SIDE + 1))
    assert {box.columns.start for one in boxes for box in one} == set(range(48 - SIDE + 1))


def test_a_batch_holds_images_and_the_words_before_and_after(data):
    batch = data.splits["val"][Request(0, torch.arange(20))]
    assert batch["images"].shape == (20, 1, 24, 48)
    assert batch["index"].tolist() == [*range(20)]
    for row in range(20):
        encoded = data.target_tokenizer.encode(data.reference("val", row))
        target = [token for token in batch["targets"][row].tolist() if token != IGNORED]
        assert target == [*encoded, EOS]
        assert batch["target_in"][row, : len(target)].tolist() == [BOS, *encoded]
    assert data.sizes["target_length"] == max(
        len(data.reference("train", n).split()) for n in range(200)) + 1  # fmt: skip


def test_images_are_normalised_by_the_training_split(data):
    training = data.splits["train"][Request(0, torch.arange(200))]["images"]
    assert abs(training.mean()) < 1e-5
    assert abs(training.std() - 1) < 1e-3
    grey = data.grey(training[3])
    expected = torch.from_numpy(canvases(data, "train")[3]) / 16
    torch.testing.assert_close(grey, expected.float(), atol=1e-5, rtol=0)
    other = make("digit_strings", **SMALL | {"data_seed": 5, "min_digits": 4})
    other.measure_as(data)
    other.setup()
    assert isinstance(other, DigitStrings)
    assert (other.mean, other.std) == (data.mean, data.std)


def test_a_image_file_is_read_as_the_data_is(data, tmp_path):
    grey = (canvases(data, "val")[4].astype(float) / 16 * 255).round().astype(np.uint8)
    for mode in ("L", "RGB"):
        Image.fromarray(grey).convert(mode).save(tmp_path / "four.png")
        read = data.read_image(tmp_path / "four.png")
        torch.testing.assert_close(read, data.example(4)["images"], atol=0.02, rtol=0)
