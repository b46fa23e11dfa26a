"""The image sets that are in memory: fixed splits, normalisation, augmentation, mistakes."""

import gzip
import shutil
import socket
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from make_data import make, ready

from ablate.data import Data, Request
from ablate.data.images import Images
from ablate.data.split import hold_out, three_way
from ablate.errors import UserError


@pytest.fixture(scope="module")
def digits() -> Images:
    data = ready("digits")
    assert isinstance(data, Images)
    return data


@pytest.fixture
def fashion(shared_data: Path) -> Path:
    return shared_data / "fashion_mnist"


def everything(data: Data, split: str) -> dict[str, torch.Tensor]:
    return dict(data.splits[split][Request(0, torch.arange(data.length(split)))])


def refusal(data: Data) -> str:
    with pytest.raises(UserError) as caught:
        data.setup()
    assert "\n" not in str(caught.value)
    return str(caught.value)


def test_digits_are_all_there_once(digits: Images) -> None:
    counts = [digits.length(split) for split in ("train", "val", "test")]
    assert sum(counts) == 1797
    assert np.allclose(np.array(counts) / 1797, [0.7, 0.15, 0.15], atol=0.02)
    images = [
        {image.numpy().tobytes() for image in everything(digits, split)["images"]}
        for split in ("train", "val", "test")
    ]
    assert len(images[0] | images[1] | images[2]) == 1797
    assert digits.sizes == {"image_size": (8, 8), "channels": 1, "classes": 10}


@pytest.mark.parametrize("split", ["train", "val", "test"])
def test_digits_of_every_class_are_in_every_split(digits: Images, split: str) -> None:
    counts = np.bincount(everything(digits, split)["targets"], minlength=10)
    assert digits.class_names == list("0123456789")
    assert counts.min() > counts.mean() / 2


def test_the_training_split_is_normalised(digits: Images) -> None:
    images = everything(digits, "train")["images"]
    assert abs(float(images.mean())) < 1e-4
    assert abs(float(images.std()) - 1) < 1e-3
    darkest = float(-digits.mean / digits.std)
    assert float(images.min()) == pytest.approx(darkest, abs=1e-5)
    assert float(images.max()) == pytest.approx(darkest + float(1 / digits.std), abs=1e-5)
    assert abs(float(everything(digits, "test")["images"].mean())) > 1e-4


def test_digits_do_not_depend_on_the_seed(digits: Images) -> None:
    other = ready("digits", seed=1)
    for split in ("train", "val", "test"):
        assert everything(other, split)["images"].equal(everything(digits, split)["images"])
    assert other.fingerprint() == digits.fingerprint()


def test_an_epoch_is_whole_batches_and_a_full_pass_is_everything(digits: Images) -> None:
    assert len(digits.train_dataloader()) == digits.length("train") // 64
    tested = digits.test_dataloader()
    assert tested is not None
    targets = torch.cat([batch["targets"] for batch in tested])
    assert targets.equal(everything(digits, "test")["targets"])


def test_the_example_is_one_image(digits: Images) -> None:
    assert digits.example()["images"].shape == (1, 1, 8, 8)
    assert set(digits.example()) == {"images", "targets"}


def test_a_batch_larger_than_the_data_is_refused() -> None:
    data = ready("digits", batch_size=1500)
    with pytest.raises(UserError, match=r"data\.batch_size=1500: the training split has only"):
        data.train_dataloader()


def test_splits_depend_on_each_key_alone() -> None:
    keys = [str(n).encode() for n in range(1200)]
    assert [keys[n] for n in three_way(keys)["val"]] == [
        key for key in keys if three_way([key])["val"]
    ]
    train, val = hold_out(keys)
    assert len(val) == 100
    assert sorted(train + val) == list(range(1200))
    turned = hold_out(keys[::-1])[1]
    assert {keys[::-1][n] for n in turned} == {keys[n] for n in val}


def test_fashion_mnist_from_a_folder_of_idx_files(fashion: Path) -> None:
    data = ready("fashion_mnist", root=str(fashion))
    counts = {split: np.bincount(everything(data, split)["targets"]) for split in data.splits}
    assert {split: c.sum() for split, c in counts.items()} == {
        "train": 55_000,
        "val": 5_000,
        "test": 10_000,
    }
    assert (counts["train"] + counts["val"]).tolist() == [6000] * 10
    assert counts["test"].tolist() == [1000] * 10
    assert counts["val"].min() > 430
    assert data.sizes == {"image_size": (28, 28), "channels": 1, "classes": 10}
    raw = gzip.decompress((fashion / "t10k-images-idx3-ubyte.gz").read_bytes())
    image = np.frombuffer(raw, np.uint8)[16 + 784 * 77 :][:784].reshape(28, 28) / 255
    assert isinstance(data, Images)
    shown = data.splits["test"][Request(0, torch.tensor([77]))]["images"][0, 0]
    assert np.allclose(shown * data.std + data.mean, image, atol=1e-6)


def test_torchvisions_own_layout_is_read_and_has_the_same_fingerprint(
    fashion: Path, tmp_path: Path
) -> None:
    raw = tmp_path / "FashionMNIST" / "raw"
    raw.mkdir(parents=True)
    for packed in fashion.glob("*.gz"):
        (raw / packed.stem).write_bytes(gzip.decompress(packed.read_bytes()))
    own, flat = ready("fashion_mnist", root=str(tmp_path)), make("fashion_mnist", root=str(fashion))
    assert own.fingerprint() == flat.fingerprint() == make("fashion_mnist").fingerprint()
    assert own.fingerprint() != make("mnist").fingerprint()
    assert own.length("val") == 5000


def test_another_data_set_in_the_same_format_is_refused(fashion: Path) -> None:
    assert "not the MNIST file" in refusal(make("mnist", root=str(fashion)))


def test_a_damaged_file_is_refused(fashion: Path, tmp_path: Path) -> None:
    for packed in fashion.glob("*.gz"):
        shutil.copyfile(packed, tmp_path / packed.name)
    cut = tmp_path / "t10k-images-idx3-ubyte.gz"
    cut.write_bytes(cut.read_bytes()[:1000])
    assert f"{cut}: damaged gzip file" in refusal(make("fashion_mnist", root=str(tmp_path)))


@pytest.mark.parametrize("name", ["mnist", "fashion_mnist", "cifar10", "cifar100"])
def test_a_folder_without_the_files_is_refused(name: str, tmp_path: Path) -> None:
    line = refusal(make(name, root=str(tmp_path)))
    assert str(tmp_path) in line
    assert "data.root=null downloads" in line


@pytest.mark.parametrize("name", ["mnist", "cifar10"])
def test_without_a_network_a_download_is_one_line(
    name: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def unreachable(*args: Any, **options: Any) -> None:
        raise socket.gaierror(-3, "Temporary failure in name resolution")

    monkeypatch.setattr(socket, "getaddrinfo", unreachable)
    for proxy in ("http_proxy", "https_proxy", "HTTP_PROXY", "HTTPS_PROXY", "ALL_PROXY"):
        monkeypatch.delenv(proxy, raising=False)
    monkeypatch.setenv("ABLATE_CACHE", str(tmp_path))
    line = refusal(make(name))
    assert line.startswith(f"cannot download {name.upper()} (")
    assert line.endswith("data.root=FOLDER uses a local copy")
