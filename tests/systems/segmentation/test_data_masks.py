"""Images whose objects have masks: overlapping digits, and one's own folder."""

from io import BytesIO

import numpy as np
import pytest
import torch
from make_data import ready
from PIL import Image, ImageDraw, ImageFilter, ImageOps
from refusals import refused
from systems.segmentation.rows import mask_folder
from test_image_file import png

from ablate.data import Request
from ablate.data.image_file import ORIENTATION
from ablate.systems.segmentation.overlapping_digits import INK, OverlappingDigits

COUNTS = {"train_examples": 60, "val_examples": 40, "test_examples": 10}


def digits(**changes):
    return ready("overlapping_digits", **COUNTS | {"size": 24, "scale": 2} | changes)


def batch(data, split="train"):
    return data.splits[split][Request(0, torch.arange(data.length(split)))]


def gray(data, every):
    return torch.stack([data.visible(image)[..., 0] for image in every["images"]])


def test_a_mask_is_ink_and_a_click_is_in_its_middle():
    data = digits()
    every = batch(data)
    assert (gray(data, every)[every["masks"]] >= INK * 0.5 - 1e-2).all()
    x, y = every["points"][:, 0].mT
    assert every["masks"][torch.arange(60), y, x].all()
    assert every["labels"].tolist() == [[1, -1]] * 60
    assert every["images"].mean().abs() < 1e-5
    assert abs(float(every["images"].std()) - 1) < 1e-3
    alone = digits(min_digits=1, max_digits=1, dimmest=1.0)  # all its ink
    assert torch.equal(batch(alone)["masks"], gray(alone, batch(alone)) > 0)


def test_the_background_of_digits_has_a_label():
    assert "void" not in batch(digits())


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
            gray(data, every), every["masks"], every["unfamiliar"], strict=True
        ):
            chosen[int(strange)].add(round(float(shown[mask].mean()) * 20 - 10))
    assert chosen == {0: set(range(10)) - set(unfamiliar), 1: set(unfamiliar)}
    assert data.unfamiliar == bool(unfamiliar)


# a folder


@pytest.fixture
def folder(tmp_path):
    mask_folder(tmp_path, np.random.default_rng(0))
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


def test_numbers_palettes_and_colors_say_the_same(folder):
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
    for file in (folder / "masks").iterdir():  # Pillow orders the palette by its own rule
        Image.open(file).quantize(3).save(file)
    assert batch(own(folder))["masks"].sum() == first.sum()


# Ellipses of one object: what a viewer shows decides, or the mask is refused.

SIDE = 48
WHERE = [8, 12, 37, 30]


def ellipse(scale=1, mode="L", fill=255, behind=0):
    image = Image.new(mode, (SIDE * scale, SIDE * scale), behind)
    ImageDraw.Draw(image).ellipse([scale * end for end in WHERE], fill=fill)
    return image


def palette(colors, *fills, behind=0):
    image = Image.new("P", (SIDE, SIDE), behind)
    image.putpalette([level for color in colors for level in color])
    draw = ImageDraw.Draw(image)
    for number, where in fills:
        draw.ellipse(where, fill=number)
    return image


def as_jpeg(image, quality):
    file = BytesIO()
    image.save(file, "JPEG", quality=quality)
    return Image.open(file)


def smooth(scale):
    return ellipse(scale).resize((SIDE, SIDE), Image.Resampling.BOX)


def over(below, above):
    """The ellipse with the border of PASCAL VOC around."""
    image = ellipse(fill=below)
    ImageDraw.Draw(image).ellipse(WHERE, outline=above, width=3)
    return image


def clear(inside, outside):
    """Colors with transparency for the object and around it."""
    return ellipse(mode="RGBA", fill=inside, behind=outside)


@pytest.fixture
def masked(tmp_path):
    """The data of a mask, of the image that the ellipse is bright in."""

    def made(mask, image=None, exif=None, **changes):
        for name, picture in {
            "images": image or ellipse(mode="RGB", fill="white"),
            "masks": mask,
        }.items():
            for split in ("train", "val"):
                (tmp_path / split / name).mkdir(parents=True, exist_ok=True)
                more = {"exif": exif} if exif and name == "images" else {}
                more["compress_level"] = 1 + (split == "val")  # else they are copies
                picture.save(tmp_path / split / name / "0.png", **more)
        return own(tmp_path, size=SIDE, **changes)

    return made


def bright(data):
    """The mean brightness under each mask of training."""
    every = batch(data)
    return [
        round(float(gray(data, every)[n][mask].mean()), 2) for n, mask in enumerate(every["masks"])
    ]


TWO = ((1, WHERE), (2, [5, 33, 20, 44]))
VOC = [(0, 0, 0), (128, 0, 0), *[(0, 0, 1)] * 253, (224, 224, 192)]


@pytest.mark.parametrize(
    ("mask", "changes"),
    [
        (ellipse(), {}),
        (ellipse(mode="1", fill=1), {}),
        (palette([(0, 0, 0), (9, 0, 0)], (1, WHERE)), {}),
        (palette([(255, 255, 255), (0, 0, 0)], (0, WHERE), behind=1), {}),
        (clear((255, 0, 0, 255), (0, 255, 0, 0)), {"background": "black"}),
        (over(3, 255), {"void": 255}),
        (over(255, 90), {"void": [90, 90, 90]}),
        (palette(VOC, (255, WHERE), (1, [11, 15, 34, 27])), {"void": 255}),
        (palette(VOC, (255, WHERE), (1, [11, 15, 34, 27])), {"void": [224, 224, 192]}),
    ],
)
def test_a_mask_is_what_a_viewer_shows(masked, mask, changes):
    assert bright(data := masked(mask, **changes)) == [1.0]
    assert ("void" in batch(data)) == ("void" in changes)


def test_void_pixels_have_no_label(masked):
    shown = np.asarray(mask := over(3, 255))
    every = batch(masked(mask, void=255))
    assert np.array_equal(every["void"][0], shown == 255)
    assert np.array_equal(every["masks"][0], shown == 3)


@pytest.mark.parametrize(
    ("mask", "line"),
    [
        *((smooth(scale), "only occur between others") for scale in (2, 3, 8)),
        *((as_jpeg(ellipse(), q).convert("L"), "only occur between") for q in (30, 75, 95, 100)),
        (as_jpeg(ellipse(mode="RGB", fill="red"), 90).convert("RGB"), "only occur between others"),
        (ellipse().filter(ImageFilter.GaussianBlur(2)), "only occur between others"),
        (clear((0, 0, 0, 255), (0, 0, 0, 0)), "the mask {} has transparent pixels"),
        (palette([(0, 0, 0)] * 3, *TWO), "numbers 0 and 1, which its palette shows in the same"),
        (palette([(0, 0, 0), (1, 2, 3), (1, 2, 3)], *TWO), "1 and 2, which its palette shows"),
    ],
)  # fmt: skip
def test_what_cannot_be_labels_is_refused(masked, tmp_path, mask, line):
    with refused(line.format(tmp_path / "train" / "masks" / "0.png")):
        masked(mask)


def test_thin_small_and_hidden_objects_are_objects(masked):
    rng, mask = np.random.default_rng(0), Image.new("L", (SIDE, SIDE))
    draw = ImageDraw.Draw(mask)
    for number in range(1, 9):
        x, y = rng.integers(0, SIDE - 8, 2).tolist()
        draw.rectangle([x, y, x + 7, y + 7], fill=number)
        draw.point([(0, number), (1, number)], fill=number)
    draw.line([0, 0, SIDE, SIDE], fill=9)
    assert masked(mask).length("train") == 9


@pytest.mark.parametrize("turn", range(1, 9))
@pytest.mark.parametrize("drawn", ["before", "after"])
@pytest.mark.parametrize("square", [True, False])
def test_exif_turns_an_image_and_its_mask(masked, turn, drawn, square):
    """The mask drawn on what is stored, or on what is shown: the size tells, or it is refused."""
    exif = Image.Exif()
    exif[ORIENTATION] = turn
    stored, mask = (ellipse(mode=mode, fill=fill) for mode, fill in (("RGB", "white"), ("L", 255)))
    if not square:
        stored, mask = (each.crop((0, 0, SIDE, SIDE - 8)) for each in (stored, mask))
    if drawn == "after":
        mask.getexif()[ORIENTATION] = turn
        mask = ImageOps.exif_transpose(mask)
    if turn > 1 and (square or turn < 5):
        with refused("is not turned as EXIF turns its image (orientation "):
            masked(mask, stored, exif)
    else:
        # Their edges are scaled otherwise.
        assert bright(masked(mask, stored, exif))[0] > 0.9


@pytest.mark.parametrize(
    ("mask", "said"),
    [
        (over(3, 255), "2 of the 2 masks have the value 255 next to others (0.png, 0.png)"),
        (palette(VOC, (255, WHERE), (1, [11, 15, 34, 27])).convert("RGB"), "value [224,224,192] "),
        (ellipse(fill=0, behind=255), "in 2 of the 2 masks one object has all four corners"),
        (over(127, 255), "value 255"),
        (over(200, 255), None),
        (ellipse(mode="RGB", fill=(9, 0, 0), behind=0), None),
        (ellipse(), None),
    ],
)
def test_what_may_be_no_object_is_said_once(masked, caplog, mask, said):
    masked(mask)
    assert len(caplog.messages) == (said is not None)
    assert (said or "") in "".join(caplog.messages)


@pytest.mark.parametrize(
    ("spoil", "line"),
    [
        (lambda mask: Image.new("L", (5, 5)).save(mask),
         "has 5 x 5 pixels, and its image 12 x 9"),
        (lambda mask: Image.new("I;16", (12, 9)).save(mask), "more than 8 bits"),
        (lambda mask: mask.write_bytes(png(np.zeros((9, 36), int), 2)), "more than 8 bits"),
        (lambda mask: Image.open(mask).save(mask, "JPEG"), "is a JPEG inside"),
        (lambda mask: mask.write_bytes(b"no image"), "cannot decode the mask"),
        (lambda mask: mask.unlink(), "0.png has no mask"),
        (lambda mask: (mask.parents[1] / "images").rename(mask.parents[1] / "pictures"),
         "no images found "),
    ],
)  # fmt: skip
def test_a_spoilt_folder_is_one_line(folder, spoil, line):
    spoil(folder / "masks" / "0.png")
    with refused(line):
        own(folder)
