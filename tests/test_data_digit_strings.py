"""data=digit_strings: captions, boxes and images go together, and splits share no digit."""

from itertools import pairwise

import numpy as np
import pytest
import torch
from make_data import everything, make, ready
from PIL import Image

from ablate.data import IGNORED, Request
from ablate.data.digit_strings import SIDE
from ablate.data.digits import Digits
from ablate.data.pairs import BOS, EOS

COUNTS = {"train": 200, "val": 100, "test": 60}
SMALL = {f"{split}_examples": count for split, count in COUNTS.items()} | {"batch_size": 8}


@pytest.fixture(scope="module")
def data():
    return ready("digit_strings", **SMALL)


@pytest.mark.parametrize("split", COUNTS)
def test_a_caption_reads_the_digits_in_the_boxes_from_left_to_right(split, data):
    source = Digits(batch_size=1, seed=0).read()[split]  # whose images are in no other split
    single = source.pixels(np.arange(len(source.labels)))
    digits = {i.tobytes(): n for i, n in zip(single, map(int, source.labels), strict=True)}
    images = data.pixels[split].numpy()
    height, width = data.size
    assert len(images) == COUNTS[split] == data.length(split)
    for number, image in enumerate(images):
        boxes = data.boxes(split, number)
        assert all(len(box.rows) == len(box.columns) == SIDE for box in boxes)
        assert all(box.rows.start >= 0 and box.rows.stop <= height for box in boxes)
        assert boxes[0].columns.start >= 0
        assert boxes[-1].columns.stop <= width
        assert all(one.columns.stop <= other.columns.start for one, other in pairwise(boxes))
        crops = [image[box.rows.start : box.rows.stop, box.columns.start : box.columns.stop]
                 for box in boxes]  # fmt: skip
        said = [str(digits[crop.tobytes()]) for crop in crops]
        assert data.reference(split, number) == " ".join(said)
        assert image.sum(dtype=int) == sum(crop.sum(dtype=int) for crop in crops)


def test_places_and_lengths_are_all_there_are(data):
    boxes = [data.boxes("train", number) for number in range(200)]
    assert {len(one) for one in boxes} == {1, 2, 3, 4}
    assert {box.rows.start for one in boxes for box in one} == set(range(24 - SIDE + 1))
    assert {box.columns.start for one in boxes for box in one} == set(range(48 - SIDE + 1))
    assert data.sizes.target_length == 4 + 1


def test_a_batch_holds_images_and_the_words_before_and_after(data):
    batch = data.splits["val"][Request(0, torch.arange(20))]
    assert batch["images"].shape == (20, 1, 24, 48)
    assert batch["index"].tolist() == [*range(20)]
    for row in range(20):
        encoded = data.target_tokenizer.encode(data.reference("val", row))
        target = [token for token in batch["targets"][row].tolist() if token != IGNORED]
        assert target == [*encoded, EOS]
        assert batch["target_in"][row, : len(target)].tolist() == [BOS, *encoded]


def test_images_are_normalised_by_the_training_split(data):
    training = everything(data, "train")["images"]
    assert abs(training.mean()) < 1e-5
    assert abs(training.std() - 1) < 1e-3
    expected = data.pixels["train"][3] / 16
    torch.testing.assert_close(data.gray(training[3]), expected.float(), atol=1e-5, rtol=0)
    other = make("digit_strings", **SMALL | {"data_seed": 5, "min_digits": 4})
    other.measure_as(data)
    other.setup()
    assert (other.mean, other.std) == (data.mean, data.std)


@pytest.mark.parametrize("mode", ["L", "RGB"])
def test_an_image_file_is_read_as_the_data_is(mode, data, tmp_path):
    gray = (data.pixels["val"][4].double() / 16 * 255).round().byte().numpy()
    Image.fromarray(gray).convert(mode).save(tmp_path / "four.png")
    read = data.read_image(tmp_path / "four.png")
    torch.testing.assert_close(read, data.example(4)["images"], atol=0.02, rtol=0)
