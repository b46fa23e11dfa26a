"""Images: splits, normalization, augmentation, folders and their mistakes."""

import gzip
import pickle
import random
import re
import socket
import sys

import numpy as np
import pytest
import torch
import torchvision
from make_data import everything, make, ready
from make_files import write_cifar10
from PIL import Image
from refusals import refused
from torchvision.datasets import cifar as official

from ablate.data import Request
from ablate.data.images import Arrays, Images
from ablate.data.split import HELD_OUT, hold_out, stratified, three_way
from ablate.errors import UserError


@pytest.fixture(scope="module")
def digits():
    return ready("digits")


@pytest.fixture
def fashion(shared_data):
    return shared_data / "fashion_mnist"


def lengths(data):
    return {split: data.length(split) for split in data.splits}


def restored(data, images):
    """As they were before they were normalized."""
    return images * data.std.view(-1, 1, 1) + data.mean.view(-1, 1, 1)


def test_digits_are_all_there_once(digits):
    counts = lengths(digits)
    assert np.allclose(np.array([*counts.values()]) / 1797, [0.7, 0.15, 0.15], atol=0.02)
    found = [
        image.numpy().tobytes() for split in counts for image in everything(digits, split)["images"]
    ]
    assert len(found) == len(set(found)) == 1797
    assert digits.sizes.arguments() == {"image_size": (8, 8), "channels": 1, "classes": 10}
    assert len(digits.train_dataloader()) == counts["train"] // 64
    targets = torch.cat([batch["targets"] for batch in digits.test_dataloader()])
    assert targets.equal(everything(digits, "test")["targets"])


def test_digits_moved_in_validation_and_test(digits):
    moved = ready("digits", shift=2)
    black = (-digits.mean / digits.std).float()  # no ink
    for split in ("train", "val", "test"):
        before, after = (everything(data, split)["images"] for data in (digits, moved))
        if split == "train":
            assert before.equal(after)
        else:
            assert before[:, :, :-2, :-2].equal(after[:, :, 2:, 2:])
            for edge in (after[:, :, :2], after[..., :2]):
                assert torch.allclose(edge, black.expand_as(edge))


def test_the_training_split_is_normalized(digits):
    images = everything(digits, "train")["images"]
    assert abs(float(images.mean())) < 1e-4
    assert abs(float(images.std()) - 1) < 1e-3
    found = restored(digits, images)
    assert (float(found.min()), float(found.max())) == pytest.approx((0, 1), abs=1e-5)
    assert abs(float(everything(digits, "test")["images"].mean())) > 1e-4


def test_splits_depend_on_each_key_alone():
    keys = [str(n).encode() for n in range(1200)]
    alone = [key for key in keys if three_way([key])["val"]]
    assert [keys[n] for n in three_way(keys)["val"]] == alone
    train, val = hold_out(keys)
    assert len(val) == 100
    assert sorted(train + val) == list(range(1200))
    turned = hold_out(keys[::-1])[1]
    assert {keys[::-1][n] for n in turned} == {keys[n] for n in val}


@pytest.mark.parametrize("shares", [None, HELD_OUT])
def test_a_stratified_split_has_some_of_every_class_wherever_it_can(shares):
    counts = {"many": 200, "few": 7, "three": 3, "two": 2, "one": 1}
    names = [name for name, count in counts.items() for _ in range(count)]
    keys = [f"{name}/{n}".encode() for n, name in enumerate(names)]
    split = stratified(keys, names, *([shares] if shares else []))
    assert sorted(n for numbers in split.values() for n in numbers) == [*range(len(keys))]
    assert all(numbers == sorted(numbers) for numbers in split.values())
    found = {part: [sum(names[n] == c for n in own) for c in counts] for part, own in split.items()}
    assert found == (
        {"val": [17, 1, 1, 1, 0], "train": [183, 6, 2, 1, 1]}
        if shares
        else {"train": [140, 5, 1, 1, 1], "val": [30, 1, 1, 1, 0], "test": [30, 1, 1, 0, 0]}
    )
    turned = stratified(keys[::-1], names[::-1], *([shares] if shares else []))
    assert {keys[::-1][n] for n in turned["val"]} == {keys[n] for n in split["val"]}
    # Equal keys are in one split, and of the class of the first.
    doubled = stratified([*keys, keys[0]], [*names, "one"], *([shares] if shares else []))
    assert [part for part, own in doubled.items() if len(keys) in own] == [
        part for part, own in doubled.items() if 0 in own
    ]


@pytest.mark.ci
def test_fashion_mnist_from_a_folder_of_idx_files(fashion):
    data = ready("fashion_mnist", root=str(fashion))
    counts = {split: np.bincount(everything(data, split)["targets"]) for split in data.splits}
    assert {split: c.sum() for split, c in counts.items()} == {
        "train": 55_000, "val": 5_000, "test": 10_000,
    }  # fmt: skip
    assert (counts["train"] + counts["val"]).tolist() == [6000] * 10
    assert counts["test"].tolist() == [1000] * 10
    assert counts["val"].min() > 430
    assert data.sizes.arguments() == {"image_size": (28, 28), "channels": 1, "classes": 10}
    raw = gzip.decompress((fashion / "t10k-images-idx3-ubyte.gz").read_bytes())
    image = np.frombuffer(raw, np.uint8)[16 + 784 * 77 :][:784].reshape(28, 28) / 255
    shown = data.splits["test"][Request(0, torch.tensor([77]))]["images"][0]
    assert np.allclose(restored(data, shown)[0], image, atol=1e-6)


@pytest.mark.ci
def test_torchvisions_own_layout_is_read_and_has_the_same_fingerprint(fashion, tmp_path):
    raw = tmp_path / "FashionMNIST" / "raw"
    raw.mkdir(parents=True)
    for packed in fashion.glob("*.gz"):
        (raw / packed.stem).write_bytes(gzip.decompress(packed.read_bytes()))
    own, flat = ready("fashion_mnist", root=str(tmp_path)), make("fashion_mnist", root=str(fashion))
    assert own.fingerprint() == flat.fingerprint() == make("fashion_mnist").fingerprint()
    assert own.fingerprint() != make("mnist").fingerprint()
    assert own.length("val") == 5000
    with refused("not the MNIST file"):
        ready("mnist", root=str(fashion))


@pytest.mark.parametrize("name", ["mnist", "cifar10"])
def test_without_a_network_a_download_is_one_line(name, tmp_path, monkeypatch):
    def unreachable(*args, **options):
        raise socket.gaierror(-3, "Temporary failure in name resolution")

    monkeypatch.setattr(socket, "getaddrinfo", unreachable)
    for proxy in ("http_proxy", "https_proxy", "HTTP_PROXY", "HTTPS_PROXY", "ALL_PROXY"):
        monkeypatch.delenv(proxy, raising=False)
    monkeypatch.setenv("ABLATE_CACHE", str(tmp_path))
    with refused(f"cannot download {name.upper()} (", "data.root=FOLDER uses a local copy"):
        ready(name)


# CIFAR and augmentation


@pytest.fixture
def cifar(tmp_path, monkeypatch):
    """A small CIFAR-10 in torchvision's format; its checksums are not the official ones."""
    write_cifar10(tmp_path / official.CIFAR10.base_folder, np.random.default_rng(0), 60)
    monkeypatch.setattr(official, "check_integrity", lambda path, md5=None: path)
    return tmp_path


def test_cifar_from_a_folder(cifar):
    data = ready("cifar10", root=str(cifar), batch_size=10)
    assert lengths(data) == {"train": 275, "val": 25, "test": 60}
    assert data.sizes.arguments() == {"image_size": (32, 32), "channels": 3, "classes": 10}
    assert data.class_names[3] == "class 3"
    raw = pickle.loads((cifar / "cifar-10-batches-py" / "test_batch").read_bytes())["data"]
    shown = data.splits["test"][Request(0, torch.tensor([7]))]["images"][0]
    assert np.allclose(restored(data, shown), raw[7].reshape(3, 32, 32) / 255, atol=1e-6)


@pytest.mark.parametrize("name", ["cifar10", "cifar100"])
def test_the_fingerprint_of_cifar_is_the_official_checksum(name):
    data = make(name)
    assert data.md5 == getattr(torchvision.datasets, name.upper()).tgz_md5
    assert len(data.fingerprint()) == 16


EVERY = {"flip": True, "randaugment": "rand-m9-mstd0.5", "erasing": 0.9}


def augmented(cifar, **changes):
    options = {"flip": False, "randaugment": None, **changes}
    return ready("cifar10", root=str(cifar), batch_size=20, **options)


def training(data, epoch, start=0):
    """The images of one pass over the training split, from batch `start` on."""
    length = data.batches_per_epoch()
    data.train_batches = (epoch + 1) * length
    loader = data.train_dataloader()
    loader.load_state_dict({"batch": epoch * length + start})
    return [batch["images"] for batch in loader]


def test_half_of_the_training_images_are_flipped(cifar):
    given = ({}, {"flip": True})
    plain, flipped = (torch.cat(training(augmented(cifar, **of), 1)) for of in given)
    same = [bool((a == b).all()) for a, b in zip(plain, flipped, strict=True)]
    assert all(kept or b.equal(a.flip(-1)) for kept, a, b in zip(same, plain, flipped, strict=True))
    assert 90 < same.count(False) < 170


@pytest.mark.ci
def test_augmentation_depends_on_seed_epoch_and_example_alone(cifar):
    random.seed(1)
    np.random.seed(1)
    state = random.getstate(), np.random.get_state()[1].tolist(), torch.get_rng_state().tolist()
    before = training(augmented(cifar, **EVERY), 2)
    after = training(augmented(cifar, **EVERY, workers=2), 2)
    assert all(a.equal(b) for a, b in zip(before, after, strict=True))
    assert state[:2] == (random.getstate(), np.random.get_state()[1].tolist())
    assert state[2] == torch.get_rng_state().tolist()
    resumed = training(augmented(cifar, **EVERY), 2, start=9)
    assert all(a.equal(b) for a, b in zip(resumed, before[9:], strict=True))


@pytest.mark.ci
@pytest.mark.parametrize("key", EVERY)
def test_another_epoch_and_another_seed_augment_an_example_otherwise(cifar, key):
    def images(epoch, seed):
        split = augmented(cifar, **{key: EVERY[key]}, seed=seed).splits["train"]
        return split[Request(epoch, torch.arange(99))]["images"]

    assert images(2, 0).equal(images(2, 0))
    assert not images(2, 0).equal(images(3, 0))
    assert not images(2, 0).equal(images(2, 1))
    changed, plain = augmented(cifar, **{key: EVERY[key]}), augmented(cifar)
    for split in ("train", "val", "test"):
        found, others = (everything(data, split)["images"] for data in (changed, plain))
        assert found.equal(others) == (split != "train")


def test_erasing_replaces_a_rectangle_by_noise(cifar):
    plain, erased = (augmented(cifar, erasing=share).splits["train"] for share in (0.0, 0.5))
    request = Request(1, torch.arange(99))
    changed = (plain[request]["images"] != erased[request]["images"]).any(1)
    assert 30 < int(changed.flatten(1).any(1).sum()) < 70
    for image in changed[changed.flatten(1).any(1)]:
        rows, columns = image.any(1).nonzero(), image.any(0).nonzero()
        assert image[rows.min() : rows.max() + 1, columns.min() : columns.max() + 1].all()
        assert 0.01 < image.float().mean() < 0.4
    noise = torch.cat([erased[request]["images"][:, c][changed] for c in range(3)])
    assert abs(float(noise.mean())) < 0.1
    assert abs(float(noise.std()) - 1) < 0.1


def test_copies_of_an_image_differ_in_their_augmentation(cifar):
    data = augmented(cifar, repeats=4, erasing=0.9)
    count = data.length("train")
    indices = data.train_order().of_epoch(1)(2)
    assert indices.shape == (20,)
    numbers, copies = indices % count, indices // count
    assert sorted(copies.tolist()) == [0] * 5 + [1] * 5 + [2] * 5 + [3] * 5
    assert sorted(numbers.unique(return_counts=True)[1].tolist()) == [4] * 5
    batch = data.splits["train"][Request(1, indices)]
    plain = augmented(cifar).splits["train"].targets
    assert batch["targets"].tolist() == plain[numbers].tolist()
    first, second = batch["images"][numbers == numbers[0]][:2]
    assert not first.equal(second)
    with refused("data.repeats=2: a batch has 1000 images, and the training split only "):
        ready("cifar10", root=str(cifar), batch_size=2000, repeats=2).train_order()
    alone = augmented(cifar, erasing=0.9).splits["train"][Request(1, numbers[:1])]["images"]
    assert batch["images"][0].equal(alone[0])


# Folders


COLORS = {"blue": (10, 20, 250), "green": (0, 200, 30), "red": (220, 0, 0)}


def paint(folder, count):
    """Plain images of each color, wide ones and tall ones, each a little different."""
    for name, color in COLORS.items():
        (folder / name).mkdir(parents=True)
        for n in range(count):
            size = (30 + n % 5, 20) if n % 2 else (20, 31)
            shade = tuple(max(0, value - n) for value in color)
            Image.new("RGB", size, shade).save(folder / name / f"{n}.png")


@pytest.fixture
def given(tmp_path):
    for split, count in {"train": 24, "val": 5, "test": 6}.items():
        paint(tmp_path / "given" / split, count)
    return tmp_path / "given"


def folder(root, **changes):
    return ready("image_folder", root=str(root), size=18, batch_size=8, **changes)


def test_given_splits_are_used_and_images_keep_their_color_and_class(given):
    (given / "val" / "red" / "Thumbs.db").write_bytes(b"not an image")
    data = folder(given)
    assert lengths(data) == {"train": 72, "val": 15, "test": 18}
    assert data.class_names == ["blue", "green", "red"]
    assert data.sizes.arguments() == {"image_size": (18, 18), "channels": 3, "classes": 3}
    for batch in data.val_dataloader():
        assert batch["images"].dtype == torch.float32
        found = restored(data, batch["images"]).mean((2, 3))
        for color, target in zip(found, batch["targets"].tolist(), strict=True):
            assert np.allclose(color, np.array([*COLORS.values()][target]) / 255, atol=0.03)


def test_the_background_shows_where_an_image_is_transparent(given):
    Image.new("RGBA", (20, 20)).save(given / "val" / "blue" / "0.png")
    data = folder(given, background="white")
    shown = restored(data, data.example()["images"][0])
    assert torch.allclose(shown.float(), torch.ones(3, 18, 18), atol=1e-4)


def test_validation_is_held_out_where_it_is_not_given(given, tmp_path):
    (given / "val").rename(tmp_path / "unused")
    assert lengths(folder(given)) == {"train": 66, "test": 18, "val": 6}
    (given / "test").rename(tmp_path / "unused too")
    data = folder(given)
    assert lengths(data) == {"train": 66, "val": 6}
    assert data.test_dataloader() is None


def test_a_hash_of_the_path_splits_and_the_fingerprint_is_of_names_and_content(tmp_path):
    paint(tmp_path / "flat", 60)
    found, print_ = lengths(folder(tmp_path / "flat")), folder(tmp_path / "flat").fingerprint()
    assert sum(found.values()) == 180
    assert found["train"] > 100
    assert folder(tmp_path / "flat", flip=True, seed=3).fingerprint() == print_
    root = (tmp_path / "flat").rename(tmp_path / "moved")
    assert (lengths(folder(root)), folder(root).fingerprint()) == (found, print_)
    (root / "red" / "0.png").rename(root / "red" / "zero.png")
    renamed = folder(root).fingerprint()
    Image.new("RGB", (20, 20), (1, 2, 3)).save(root / "red" / "zero.png")
    assert len({print_, renamed, folder(root).fingerprint()}) == 3


def test_hidden_files_are_skipped_and_sub_folders_belong_to_their_class(tmp_path):
    """As editors, Jupyter and macOS leave them."""
    paint(tmp_path, 20)
    plain, counts = folder(tmp_path).fingerprint(), lengths(folder(tmp_path))
    for junk in (".ipynb_checkpoints", "__MACOSX", "red/@eaDir", "__pycache__", "red/sub/.git"):
        (tmp_path / junk).mkdir(parents=True)
        (tmp_path / junk / "0.png").write_bytes(b"no image")
    (tmp_path / "red" / "._0.png").write_bytes(b"no image")
    (tmp_path / "red" / "sub" / "loop").symlink_to(tmp_path)
    assert (folder(tmp_path).fingerprint(), lengths(folder(tmp_path))) == (plain, counts)
    (tmp_path / "red" / "3.png").rename(tmp_path / "red" / "sub" / "3.png")
    (tmp_path / "red" / "linked").symlink_to(tmp_path / "green")  # followed, as torchvision does
    data = folder(tmp_path)
    assert data.class_names == [*COLORS]
    targets = torch.cat([everything(data, split)["targets"] for split in data.splits])
    assert torch.bincount(targets).tolist() == [20, 20, 40]
    seen = torchvision.datasets.ImageFolder(
        str(tmp_path), is_valid_file=lambda p: not re.search(r"/\.|__|@", p), allow_empty=True
    )
    shown = [c for c in seen.classes if not c.startswith((".", "_"))]
    assert shown == data.class_names
    read = {str(path) for part in data.files.splits().values() for path in part}
    assert read == {path for path, _ in seen.samples if "/loop/" not in path}


def test_copies_in_two_splits_are_counted(given, caplog):
    for n, path in enumerate((given / "val").glob("*/*.png")):
        Image.new("RGB", (20, 20), (n, 0, 0)).save(path)
    (given / "train" / "red" / "0.png").rename(given / "val" / "blue" / "copy.png")
    Image.new("RGB", (20, 31), (220, 0, 0)).save(given / "train" / "red" / "0.png")
    folder(given)
    assert caplog.text.count("also in the training split") == 2
    assert "1 of the 16 validation images are also in the training split" in caplog.text
    assert "18 of the 18 test images are also in the training split" in caplog.text


def test_a_folder_of_other_splits_or_without_images_is_refused(given):
    (given / "val").rename(given / "valid")
    with refused("folder valid is not a split (train, val, test); rename it to val"):
        folder(given)
    (given / "valid").rename(given / "val")
    (given / "train" / "pink").mkdir()
    (given / "train" / "pink" / "0.heic").write_bytes(b"")
    with refused("folder pink has no images, so it is not a class"):
        folder(given)
    (given / "train").rename(given / "Training")
    with refused("folder Training is not a split"):
        folder(given)


def test_what_is_split_has_the_same_shares_of_every_class(given, tmp_path):
    paint(tmp_path / "flat", 40)
    for rare in sorted((tmp_path / "flat" / "red").iterdir())[3:]:
        rare.unlink()
    data = folder(tmp_path / "flat")
    found = {s: torch.bincount(everything(data, s)["targets"]).tolist() for s in data.splits}
    assert found == {"train": [28, 28, 1], "val": [6, 6, 1], "test": [6, 6, 1]}


def test_bad_folders_are_refused(given, tmp_path):
    (tmp_path / "empty").mkdir()
    paint(tmp_path / "valonly" / "val", 1)
    paint(tmp_path / "few", 1)
    (given / "val" / "red").rename(given / "val" / "pink")
    for name, line in {
        "empty": "empty/CLASS/FILE, a folder for each class; known endings: ",
        "valonly": "has val but no train folder",
        "few": "split would be empty",
        "given": "class pink of val is not in train",
    }.items():
        with refused(line):
            ready("image_folder", root=str(tmp_path / name))


def test_one_channel_without_contrast_is_not_divided_by_zero(tmp_path):
    paint(tmp_path / "train", 30)
    for path in (tmp_path / "train").glob("*/*.png"):
        pixels = np.array(Image.open(path))
        pixels[..., 2] = 7
        Image.fromarray(pixels).save(path)
    data = ready("image_folder", root=str(tmp_path), size=8)
    assert all(batch["images"].isfinite().all() for batch in data.train_dataloader())
    assert data.example()["images"][0, 2].abs().max() < 1e-5


@pytest.mark.parametrize(
    ("labels", "counts", "line"),
    [
        ([0, 1, 2], (4, 2, 2), "a label of the train split is 2, and class_names has 2 names"),
        ([0, -1, 1], (4, 2, 2), "a label of the train split is -1, and class_names"),
        ([0, 1], (4, 0, 2), "data: the val split has no images"),
        ([0], (4, 2, 2), r"data: class_names has the names \['a'\], and needs two"),
        ([0, 1], (4, 2, 0), None),  # as without one
    ],
)
def test_labels_of_ones_own_and_empty_splits(labels, counts, line):
    class Own(Images):
        def read(self):
            self.class_names = ["a", "b"] if any(labels) else ["a"]
            given = np.resize(labels, max(counts))
            pixels = np.zeros((len(given), 2, 2, 1), dtype=np.uint8)
            splits = zip(("train", "val", "test"), counts, strict=True)
            return {name: Arrays(pixels[:n], given[:n]) for name, n in splits}

        def fingerprint(self):
            return "0" * 16

    data = Own(batch_size=2, seed=0)
    if line is None:
        data.setup()
        assert data.test_dataloader() is None
        return
    with pytest.raises(UserError, match=line):
        (data.setup(), data.val_dataloader())


def test_workers_decode_on_the_threads_that_training_leaves(given, monkeypatch):
    for threads, workers in {1: 0, 2: 1, 4: 3, 64: 8}.items():
        monkeypatch.setattr(torch, "get_num_threads", lambda threads=threads: threads)
        assert folder(given).val_dataloader().num_workers == workers
        assert ready("digits").val_dataloader().num_workers == 0
    assert folder(given, workers=2).val_dataloader().num_workers == 2


@pytest.fixture(scope="module")
def table(tmp_path_factory):
    """The images of `paint`, of two splits, as a data set of Hugging Face."""
    datasets = pytest.importorskip("datasets")
    paint(root := tmp_path_factory.mktemp("painted"), 24)
    files = [(str(path), path.parent.name) for path in sorted(root.rglob("*.png"))]
    columns = dict(zip(("image", "label"), zip(*files, strict=True), strict=True))
    table = datasets.Dataset.from_dict(columns).cast_column("image", datasets.Image())
    named = table.cast_column("label", datasets.ClassLabel(names=["red", "green", "blue"]))
    return datasets.DatasetDict(train=named, validation=named.select(range(20, 30)))


def hub(root, **changes):
    return ready("hf_images", root=str(root), size=18, batch_size=8, **changes)


def test_rows_of_hugging_face_are_the_images_of_the_files(table, tmp_path):
    table.save_to_disk(tmp_path / "saved")
    data = hub(tmp_path / "saved")
    assert lengths(data) == {"train": 72, "val": 10}
    assert data.class_names == ["red", "green", "blue"]
    for batch in data.val_dataloader():
        found = restored(data, batch["images"]).mean((2, 3))
        for color, target in zip(found, batch["targets"].tolist(), strict=True):
            assert np.allclose(color, np.array(COLORS[data.class_names[target]]) / 255, atol=0.1)
    changed = table["train"].select([*range(71), 0])
    changed.to_parquet(tmp_path / "changed.parquet")
    table["train"].to_parquet(tmp_path / "same" / "train.parquet")
    table["validation"].to_parquet(tmp_path / "same" / "validation.parquet")
    assert hub(tmp_path / "same").fingerprint() == data.fingerprint()
    assert hub(tmp_path / "changed.parquet").fingerprint() != data.fingerprint()
    assert lengths(hub(tmp_path / "changed.parquet")) == {"train": 66, "val": 6}


HF_MISTAKES = [
    ({"root": "saves"}, "data.root=saves: no such folder or file; of the Hub: hf:NAME"),
    ({"root": "broken.parquet"}, "data.root=broken.parquet: cannot be read by datasets ("),
    ({"image": "imag"}, "data.image=imag: train of data.root=saved has no such column; did you"),
    ({"image": "label"}, "data.image=label: train of data.root=saved has no images in this column"),
    ({"label": "image"}, "data.label=image: row 0 of train has the label {"),
    ({"root": "unlabeled"}, "data.label=label: row 0 of train has the label -1, must be a class"),
    ({"root": "test_only"}, "data.root=test_only: has no split train, only test"),
    ({"root": "other"}, "data.root=other: class red of val is not in training"),
]


@pytest.mark.parametrize(("keys", "line"), HF_MISTAKES)
def test_a_mistake_in_a_data_set_of_hugging_face_is_one_line(
    keys, line, table, tmp_path, monkeypatch
):
    import datasets

    monkeypatch.chdir(tmp_path)
    table.save_to_disk("saved")
    (tmp_path / "broken.parquet").write_text("plain")
    numbers = table["train"].cast_column("label", datasets.Value("int64"))
    unlabeled = numbers.remove_columns("label").add_column("label", [-1] * 72)
    unlabeled.cast_column("label", table["train"].features["label"]).save_to_disk("unlabeled")
    datasets.DatasetDict(test=table["validation"]).save_to_disk("test_only")
    words = table.cast_column("label", datasets.Value("string"))
    words["train"] = words["train"].filter(lambda row: row["label"] != "red")
    words["validation"] = words["validation"].add_item({"image": None, "label": "red"})
    words.save_to_disk("other")
    with refused(line) as caught:
        hub(**({"root": "saved"} | keys))
    assert len(str(caught.value)) < 200


def test_a_damaged_row_is_named_and_so_is_a_missing_library(table, tmp_path, monkeypatch):
    import datasets

    table["train"].cast_column("image", datasets.Image(decode=False)).map(
        lambda row, n: {"image": {"bytes": b"x", "path": None} if n == 5 else row["image"]},
        with_indices=True,
    ).save_to_disk(tmp_path / "saved")
    with refused("data.root: cannot decode the image of row "):
        list(hub(tmp_path / "saved", workers=1).train_dataloader())
    monkeypatch.setitem(sys.modules, "datasets", None)
    with refused("needs the library datasets: pip install 'ablate-attention[data]'"):
        hub(tmp_path / "saved")
