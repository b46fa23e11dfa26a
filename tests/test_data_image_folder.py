"""Images in folders: given splits and hashed ones, any size and mode, mistakes."""

from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from make_data import make, ready
from PIL import Image

from ablate.data import Data, Request
from ablate.data.images import Images
from ablate.errors import UserError

COLOURS = {"blue": (10, 20, 250), "green": (0, 200, 30), "red": (220, 0, 0)}


def paint(folder: Path, count: int) -> None:
    """Plain images of each colour, wide ones and tall ones, each a little different."""
    for name, colour in COLOURS.items():
        (folder / name).mkdir(parents=True)
        for n in range(count):
            size = (30 + n % 5, 20) if n % 2 else (20, 31)
            shade = tuple(max(0, value - n) for value in colour)
            Image.new("RGB", size, shade).save(folder / name / f"{n}.png")


@pytest.fixture
def flat(tmp_path: Path) -> Path:
    paint(tmp_path / "flat", 60)
    return tmp_path / "flat"


@pytest.fixture
def given(tmp_path: Path) -> Path:
    for split, count in {"train": 24, "val": 5, "test": 6}.items():
        paint(tmp_path / "given" / split, count)
    return tmp_path / "given"


def folder(root: Path, **changes: Any) -> Data:
    return make("image_folder", root=str(root), size=18, batch_size=8, **changes)


def refusal(data: Data) -> str:
    with pytest.raises(UserError) as caught:
        data.setup()
    assert "\n" not in str(caught.value)
    return str(caught.value)


def lengths(data: Data) -> dict[str, int]:
    data.setup()
    return {split: data.length(split) for split in data.splits}


def test_given_splits_are_used(given: Path) -> None:
    data = folder(given)
    assert lengths(data) == {"train": 72, "val": 15, "test": 18}
    assert isinstance(data, Images)
    assert data.class_names == ["blue", "green", "red"]
    assert data.sizes == {"image_size": (18, 18), "channels": 3, "classes": 3}


def test_images_keep_their_colour_and_class(given: Path) -> None:
    data = ready("image_folder", root=str(given), size=18)
    assert isinstance(data, Images)
    for batch in data.val_dataloader():
        restored = batch["images"] * data.std[:, None, None] + data.mean[:, None, None]
        assert batch["images"].dtype == torch.float32
        for image, target in zip(restored, batch["targets"], strict=True):
            colour = np.array(COLOURS[data.class_names[int(target)]]) / 255
            assert np.abs(image.mean((1, 2)).numpy() - colour).max() < 0.03


def test_without_splits_a_hash_of_the_path_decides(flat: Path, tmp_path: Path) -> None:
    found = lengths(folder(flat))
    assert sum(found.values()) == 180
    assert found["train"] > 100
    moved = flat.rename(tmp_path / "moved")
    assert lengths(folder(moved)) == found


def test_validation_is_held_out_where_it_is_not_given(given: Path, tmp_path: Path) -> None:
    (given / "val").rename(tmp_path / "unused")
    assert lengths(folder(given)) == {"train": 66, "test": 18, "val": 6}
    (given / "test").rename(tmp_path / "unused too")
    data = folder(given)
    assert lengths(data) == {"train": 66, "val": 6}
    assert data.test_dataloader() is None


def test_the_fingerprint_is_of_names_and_content(flat: Path, tmp_path: Path) -> None:
    before = folder(flat).fingerprint()
    assert folder(flat, flip=True, seed=3).fingerprint() == before
    moved = flat.rename(tmp_path / "moved")
    assert folder(moved).fingerprint() == before
    (moved / "red" / "0.png").rename(moved / "red" / "zero.png")
    renamed = folder(moved).fingerprint()
    Image.new("RGB", (20, 20), (1, 2, 3)).save(moved / "red" / "zero.png")
    assert len({before, renamed, folder(moved).fingerprint()}) == 3


def test_grey_transparent_and_turned_images_become_colour_squares(given: Path) -> None:
    Image.new("L", (40, 25), 99).save(given / "val" / "red" / "a.png")
    Image.new("RGBA", (25, 40), (9, 9, 9, 0)).save(given / "val" / "red" / "b.webp")
    Image.new("P", (3, 3)).save(given / "val" / "red" / "c.GIF")
    (given / "val" / "red" / "Thumbs.db").write_bytes(b"not an image")
    data = folder(given, background="white")
    assert lengths(data)["val"] == 18
    assert all(batch["images"].shape[1:] == (3, 18, 18) for batch in data.val_dataloader())


def test_workers_and_augmentation_give_the_same_batches(given: Path) -> None:
    options = {"flip": True, "randaugment": "rand-m9-mstd0.5"}
    alone, helped = (
        ready("image_folder", root=str(given), size=18, batch_size=8, workers=n, **options)
        for n in (0, 2)
    )
    pairs = zip(alone.train_dataloader(), helped.train_dataloader(), strict=True)
    assert all(a["images"].equal(b["images"]) for a, b in pairs)


def test_a_image_that_cannot_be_decoded_is_named(given: Path) -> None:
    bad = given / "val" / "green" / "bad.jpg"
    bad.write_bytes(b"\xff\xd8\xff\xe0 this is no image")
    data = folder(given)
    data.setup()
    with pytest.raises(UserError) as caught:
        list(data.val_dataloader())
    assert str(caught.value).startswith(f"data.root: cannot decode the image {bad} (")
    assert "\n" not in str(caught.value)


def test_a_cut_off_image_is_named(given: Path) -> None:
    noise = np.random.default_rng(0).integers(0, 256, (64, 64, 3), np.uint8)
    cut = given / "test" / "red" / "cut.jpg"
    Image.fromarray(noise).save(cut)
    cut.write_bytes(cut.read_bytes()[:900])
    data = folder(given)
    data.setup()
    with pytest.raises(UserError, match=r"cannot decode the image .*cut\.jpg"):
        data.splits["test"][Request(0, torch.arange(data.length("test")))]


def test_bad_folders_are_refused(given: Path, tmp_path: Path) -> None:
    assert "no such folder" in refusal(folder(tmp_path / "nowhere"))
    (tmp_path / "empty").mkdir()
    assert "no images in CLASS" in refusal(folder(tmp_path / "empty"))
    paint(tmp_path / "valonly" / "val", 1)
    assert "has val but no train folder" in refusal(folder(tmp_path / "valonly"))
    paint(tmp_path / "few", 1)
    assert "split would be empty" in refusal(folder(tmp_path / "few"))
    (given / "val" / "red").rename(given / "val" / "pink")
    assert "class pink of val is not in train" in refusal(folder(given))


@pytest.mark.parametrize(
    ("changes", "line"),
    [
        ({"size": 0}, "data.size=0: must be a whole number of at least 1 and of at most 16,384"),
        ({"root": None}, "data.root=None: must be a folder of images"),
        (
            {"workers": -1},
            "data.workers=-1: must be a whole number of at least 0 and of at most 1,024",
        ),
    ],
)
def test_a_bad_value_is_refused(changes: dict[str, Any], line: str) -> None:
    with pytest.raises(Exception, match="Error in call") as caught:
        make("image_folder", **{"root": "x", **changes})
    assert str(caught.value.__cause__) == line


def test_one_channel_without_contrast_is_not_divided_by_zero(tmp_path: Path) -> None:
    paint(tmp_path / "train", 30)
    for path in (tmp_path / "train").glob("*/*.png"):
        pixels = np.array(Image.open(path))
        pixels[..., 2] = 7
        Image.fromarray(pixels).save(path)
    data = ready("image_folder", root=str(tmp_path), size=8)
    assert all(batch["images"].isfinite().all() for batch in data.train_dataloader())
    assert data.example()["images"][0, 2].abs().max() < 1e-5
