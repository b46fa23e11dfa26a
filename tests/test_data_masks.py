"""Images whose objects have masks: overlapping digits, and one's own folder."""

from collections.abc import Callable
from pathlib import Path
from typing import Any

import make_files
import numpy as np
import pytest
import torch
from make_data import ready
from PIL import Image

from ablate.data import Request
from ablate.data.overlapping_digits import INK, OverlappingDigits
from ablate.errors import UserError

SMALL: dict[str, Any] = {
    "size": 24, "scale": 2, "train_examples": 60, "val_examples": 40, "test_examples": 10,
}  # fmt: skip


def digits(**changes):
    data = ready("overlapping_digits", **(SMALL | changes))
    assert isinstance(data, OverlappingDigits)
    return data


def batch(data, split="train"):
    every: dict[str, torch.Tensor] = data.splits[split][
        Request(0, torch.arange(data.length(split)))
    ]
    return every


def test_a_mask_is_ink_and_a_click_is_in_its_middle():
    data = digits()
    every = batch(data)
    grey = torch.stack([data.visible(image)[..., 0] for image in every["images"]])
    assert (grey[every["masks"]] >= INK * 0.5 - 1e-2).all()
    rows = torch.arange(60)
    x, y = every["points"][:, 0].mT
    assert every["masks"][rows, y, x].all()
    assert every["labels"].tolist() == [[1, -1]] * 60
    assert every["images"].mean().abs() < 1e-5
    assert abs(float(every["images"].std()) - 1) < 1e-3


def test_alone_on_the_canvas_a_digit_is_all_its_ink():
    data = digits(min_digits=1, max_digits=1, dimmest=1.0)
    every = batch(data)
    grey = torch.stack([data.visible(image)[..., 0] for image in every["images"]])
    assert torch.equal(every["masks"], grey > 0)


def test_a_later_digit_hides_an_earlier_one():
    """With two digits at the same place, each drawn many times, some of one are hidden."""
    alone = batch(digits(min_digits=1, max_digits=1, size=16))["masks"].sum((1, 2)).float()
    both = batch(digits(min_digits=2, max_digits=2, size=16))["masks"].sum((1, 2)).float()
    assert both.mean() < 0.85 * alone.mean()
    assert both.min() > 0


@pytest.mark.parametrize("unfamiliar", [[8, 9], []])
def test_training_has_no_unfamiliar_digit(unfamiliar, monkeypatch):
    chosen: dict[int, set[int]] = {}
    source = OverlappingDigits._enlarged

    def told(self, own):
        """Every pixel of a digit as bright as its class."""
        large = source(self, own)
        large[large >= INK] = 0
        return np.where(
            large == 0, (own.labels[:, None, None] + 10) / 20 * (source(self, own) >= INK), 0
        )

    monkeypatch.setattr(OverlappingDigits, "_enlarged", told)
    data = digits(unfamiliar=unfamiliar, dimmest=1.0)
    for split, wanted in (("train", False), ("val", True)):
        every = batch(data, split)
        assert bool(every["unfamiliar"].any()) == (wanted and bool(unfamiliar))
        for image, mask, strange in zip(
            every["images"], every["masks"], every["unfamiliar"], strict=True
        ):
            kind = round(float(data.visible(image)[..., 0][mask].mean()) * 20 - 10)
            chosen.setdefault(int(strange), set()).add(kind)
    assert chosen.get(1, set()) == set(unfamiliar)
    assert chosen[0] == set(range(10)) - set(unfamiliar)
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
    every = batch(data)
    assert (every["masks"].flatten(1).sum(1) > 0).all()
    assert not data.unfamiliar
    pairs = every["masks"].view(-1, 2, 12, 12)
    assert not (pairs[:, 0] & pairs[:, 1]).any()  # the two of one image
    assert own(folder, min_pixels=40).length("train") < data.length("train")


def test_numbers_palettes_and_colours_say_the_same(folder):
    first = batch(own(folder))["masks"]
    before = own(folder).fingerprint()
    for file in (folder / "masks").iterdir():
        mask = Image.open(file)
        mask.putpalette([0, 0, 0, 200, 0, 0, 0, 0, 90] + [0] * (3 * 253))
        mask.save(file)
    assert torch.equal(batch(own(folder))["masks"], first)
    assert own(folder).fingerprint() != before
    for file in (folder / "masks").iterdir():
        Image.open(file).convert("RGB").save(file)
    assert batch(own(folder))["masks"].sum() == first.sum()


MASK = Path("masks", "0.png")
SPOILT: dict[str, Callable[[Path], object]] = {
    "is 5 pixels wide and 5 high, and its image 12 and 9": lambda folder: Image.new(
        "L", (5, 5)
    ).save(folder / MASK),
    "more than 8 bits": lambda folder: Image.new("I;16", (12, 9)).save(folder / MASK),
    "cannot decode the mask": lambda folder: (folder / MASK).write_bytes(b"no image"),
    "0.png has no mask": lambda folder: (folder / MASK).unlink(),
    "no images in images": lambda folder: (folder / "images").rename(folder / "pictures"),
}


@pytest.mark.parametrize("line", SPOILT)
def test_a_spoilt_folder_is_one_line(folder, line):
    SPOILT[line](folder)
    with pytest.raises(UserError, match=line) as caught:
        own(folder)
    assert "\n" not in str(caught.value)


def test_too_small_objects_leave_nothing(folder):
    with pytest.raises(UserError, match=r"have no object of data\.min_pixels=1000"):
        own(folder, min_pixels=1000)
