"""Images whose objects have masks: overlapping digits, and one's own folder."""

import make_files
import numpy as np
import pytest
import torch
from make_data import ready
from PIL import Image
from refusals import refused

from ablate.data import Request
from ablate.data.overlapping_digits import INK, OverlappingDigits

COUNTS = {"train_examples": 60, "val_examples": 40, "test_examples": 10}


def digits(**changes):
    return ready("overlapping_digits", **COUNTS | {"size": 24, "scale": 2} | changes)


def batch(data, split="train"):
    return data.splits[split][Request(0, torch.arange(data.length(split)))]


def grey(data, every):
    return torch.stack([data.visible(image)[..., 0] for image in every["images"]])


def test_a_mask_is_ink_and_a_click_is_in_its_middle():
    data = digits()
    every = batch(data)
    assert (grey(data, every)[every["masks"]] >= INK * 0.5 - 1e-2).all()
    x, y = every["points"][:, 0].mT
    assert every["masks"][torch.arange(60), y, x].all()
    assert every["labels"].tolist() == [[1, -1]] * 60
    assert every["images"].mean().abs() < 1e-5
    assert abs(float(every["images"].std()) - 1) < 1e-3
    alone = digits(min_digits=1, max_digits=1, dimmest=1.0)  # all its ink
    assert torch.equal(batch(alone)["masks"], grey(alone, batch(alone)) > 0)


def test_a_later_digit_hides_an_earlier_one():
    """With two digits at the same place, each drawn many times, some of one are hidden."""
    alone, both = (
        batch(digits(min_digits=n, max_digits=n, size=16))["masks"].sum((1, 2)).float()
        for n in (1, 2)
    )
    assert both.mean() < 0.85 * alone.mean()
    assert both.min() > 0


@pytest.mark.parametrize("unfamiliar", [[8, 9], []])
def test_training_has_no_unfamiliar_digit(unfamiliar, monkeypatch):
    enlarged = OverlappingDigits._enlarged

    def told(self, own):
        """Every pixel of a digit as bright as its class."""
        return (own.labels[:, None, None] + 10) / 20 * (enlarged(self, own) >= INK)

    monkeypatch.setattr(OverlappingDigits, "_enlarged", told)
    data = digits(unfamiliar=unfamiliar, dimmest=1.0)
    chosen = {0: set(), 1: set()}
    for split in ("train", "val"):
        every = batch(data, split)
        assert bool(every["unfamiliar"].any()) == (split == "val" and bool(unfamiliar))
        for shown, mask, strange in zip(
            grey(data, every), every["masks"], every["unfamiliar"], strict=True
        ):
            chosen[int(strange)].add(round(float(shown[mask].mean()) * 20 - 10))
    assert chosen == {0: set(range(10)) - set(unfamiliar), 1: set(unfamiliar)}
    assert data.unfamiliar == bool(unfamiliar)


# a folder


@pytest.fixture
def folder(tmp_path):
    make_files.mask_folder(tmp_path, np.random.default_rng(0))
    return tmp_path


def own(folder, **changes):
    return ready("mask_folder", root=str(folder), **({"size": 12, "min_pixels": 1} | changes))


def test_every_value_of_a_mask_is_an_object(folder):
    data = own(folder)
    assert sum(data.length(split) for split in data.splits) == 2 * 24
    masks = batch(data)["masks"]
    assert (masks.flatten(1).sum(1) > 0).all()
    assert not data.unfamiliar
    assert not masks.view(-1, 2, 12, 12).all(1).any()  # the two of one image
    assert own(folder, min_pixels=40).length("train") < data.length("train")
    with refused("have no object of data.min_pixels=1000"):
        own(folder, min_pixels=1000)


def test_numbers_palettes_and_colours_say_the_same(folder):
    first, before = batch(own(folder))["masks"], own(folder).fingerprint()
    for file in (folder / "masks").iterdir():
        Image.open(file).convert("LA").save(file)
    assert torch.equal(batch(own(folder))["masks"], first)
    for file in (folder / "masks").iterdir():
        mask = Image.open(file).convert("L")
        mask.putpalette([0, 0, 0, 200, 0, 0, 0, 0, 90] + [0] * (3 * 253))
        mask.save(file)
    assert torch.equal(batch(own(folder))["masks"], first)
    assert own(folder).fingerprint() != before
    for file in (folder / "masks").iterdir():
        Image.open(file).convert("RGB").save(file)
    assert batch(own(folder))["masks"].sum() == first.sum()


@pytest.mark.parametrize(
    ("spoil", "line"),
    [
        (lambda mask: Image.new("L", (5, 5)).save(mask),
         "is 5 pixels wide and 5 high, and its image 12 and 9"),
        (lambda mask: Image.new("I;16", (12, 9)).save(mask), "more than 8 bits"),
        (lambda mask: mask.write_bytes(b"no image"), "cannot decode the mask"),
        (lambda mask: mask.unlink(), "0.png has no mask"),
        (lambda mask: (mask.parents[1] / "images").rename(mask.parents[1] / "pictures"),
         "there are no images "),
    ],
)  # fmt: skip
def test_a_spoilt_folder_is_one_line(folder, spoil, line):
    spoil(folder / "masks" / "0.png")
    with refused(line):
        own(folder)
