"""Data sets of a few examples, in the files that the real ones come in."""

import gzip
import io
import json
import pickle
import random
from hashlib import md5
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from make_systems import COUNTS, DIGITS, rows_of_systems, systems
from PIL import Image
from torchvision.datasets import cifar

from ablate.data import mnist
from ablate.data.documents import Corpus
from ablate.data.multi30k import SHA256
from ablate.data.preparation import prepare

WINDOWS = {"seq_len": 8, "batch_size": 2}
LENGTHS = {"symbols": 5, "min_length": 2, "max_train_length": 4, "test_max_length": 5}
LETTERS = "abcdefghijklmnopqrstuvwxyz     "

# What each data set is given where `write` was: the least that it can be trained on.
FILES: dict[str, dict[str, Any]] = {
    "pydoc": WINDOWS | {"val_fraction": 0.0005},
    "text": WINDOWS | {"path": "text.txt", "val_fraction": 0.01},
    "tokens": WINDOWS | {"root": "tokens"},
    "mixture": WINDOWS | {"root": {"a": "tokens", "b": "tokens"}, "weights": {"a": 1, "b": 3}},
    "shakespeare": WINDOWS | {"path": "text.txt", "sha256": None, "val_fraction": 0.01},
    "recall": COUNTS | WINDOWS | {"vocab_size": 32, "pairs": [2]},
    "text_files": WINDOWS | {"root": "text_files", "tokenizer": "char", "vocab_size": None},
    "digits": {"batch_size": 64},
    "image_folder": {"root": "image_folder", "size": 8, "batch_size": 2},
    "hf_images": {"root": "images.parquet", "size": 8, "batch_size": 2},
    **{
        name: {"root": name, "batch_size": 2}
        for name in ("mnist", "fashion_mnist", "cifar10", "cifar100")
    },
    "dates": COUNTS | {"locales": ["en_US"], "styles": ["long"], "years": [2014, 2015]},
    **dict.fromkeys(("reverse", "copy", "sort"), COUNTS | LENGTHS),
    "parallel": {"source": "lines.de", "target": "lines.en", "val_fraction": 0.05, "batch_size": 4},
    "multi30k": {"root": "multi30k", "vocab_size": None, "batch_size": 4},
    "cmudict": {"root": "cmudict", "batch_size": 4},
    "digit_strings": DIGITS,
    **rows_of_systems("FILES"),
}


def write(folder: Path, patch: pytest.MonkeyPatch) -> None:
    """Makes the files and goes to them; their checksums then count as those of the real files."""
    patch.chdir(folder)
    rng = np.random.default_rng(0)
    _text(Path("text.txt"))
    for name in ("mnist", "fashion_mnist"):
        sums = _idx(Path(name), rng)
        owner = mnist.Mnist if name == "mnist" else mnist.FashionMnist
        patch.setattr(owner, "md5", sums)
    write_cifar10(Path("cifar10", cifar.CIFAR10.base_folder), rng)
    _cifar100(Path("cifar100", cifar.CIFAR100.base_folder), rng)
    patch.setattr(cifar, "check_integrity", lambda path, md5=None: Path(path).is_file())
    _image_folder(Path("image_folder"), rng)
    _hf_images(Path("images.parquet"), rng)
    _text_files(Path("text_files"))
    text = Path("text.txt").read_text()
    whole, last = Path("documents.jsonl"), Path("last.jsonl")
    for file, characters in ((whole, text), (last, text[-200:])):
        lines = (characters[n : n + 60] for n in range(0, len(characters), 60))
        file.write_text("".join(json.dumps({"text": line}) + "\n" for line in lines))
    prepare(Corpus([whole], val_files=[last]), Path("tokens"), tokenizer="char")
    write_pairs()
    for system in systems():
        if hasattr(system, "write"):
            system.write(folder)


def write_pairs() -> None:
    """What sets of pairs are read from, in the working folder."""
    for seed, language in enumerate(("de", "en")):
        Path(f"lines.{language}").write_text("\n".join(_sentences(80, seed)))
    Path("multi30k").mkdir()
    for seed, name in enumerate(SHA256):
        lines = _sentences(80 if name.startswith("train") else 4, seed)
        Path("multi30k", name).write_bytes(gzip.compress("\n".join(lines).encode()))
    Path("cmudict").mkdir()
    rng = random.Random(0)
    spelled = {"".join(rng.choices("abcdefgh", k=rng.randint(2, 9))) for _ in range(150)}
    entries = []
    for word in sorted(spelled):
        phonemes = " ".join(f"{letter.upper()}{n % 3}" for n, letter in enumerate(word))
        entries += [f"{word} {phonemes}", f"{word}(2) X"]
    Path("cmudict", "cmudict.dict").write_text("\n".join(entries))


def _sentences(count: int, seed: int) -> list[str]:
    """Frequent words and rare ones, enough for the 1,024 tokens of data.tokenizer=bpe."""
    rng = random.Random(seed)
    words = ["Hund", "Katze", "läuft", "im", "Park", "Ball", f"only{seed}", "the", "a", "sees"]
    rare = ["".join(rng.choices(LETTERS.strip(), k=7)) for _ in range(400)]
    return [" ".join(rng.choices(words * 5 + rare, k=rng.randint(2, 5))) for _ in range(count)]


def _text(path: Path, seed: int = 0, length: int = 20_000) -> None:
    """Random letters, rich enough for the 1,024 tokens of data.tokenizer=bpe."""
    rng = random.Random(seed)
    path.write_text("".join(rng.choice(LETTERS) for _ in range(length)))


def _idx(folder: Path, rng: np.random.Generator) -> list[str]:
    """The four files of MNIST; returns their checksums."""
    folder.mkdir()
    sums = []
    for name in mnist.FILES:
        count = 36 if name.startswith("train") else 4
        shape = (count, 28, 28) if "images" in name else (count,)
        head = bytes([0, 0, 8, len(shape)]) + np.array(shape, ">u4").tobytes()
        content = (
            head
            + rng.integers(256 if "images" in name else 10, size=shape, dtype=np.uint8).tobytes()
        )
        (folder / name).write_bytes(content)
        sums.append(md5(content).hexdigest())
    return sums


def write_cifar10(folder: Path, rng: np.random.Generator, count: int = 8) -> None:
    """Six files of `count` images each."""
    folder.mkdir(parents=True)
    for name in [*(f"data_batch_{n}" for n in range(1, 6)), "test_batch"]:
        labels = rng.integers(10, size=count).tolist()
        _pickle(folder / name, {"data": _pixels(rng, count), "labels": labels})
    _pickle(folder / "batches.meta", {"label_names": [f"class {n}" for n in range(10)]})


def _cifar100(folder: Path, rng: np.random.Generator) -> None:
    folder.mkdir(parents=True)
    for name in ("train", "test"):
        content = {
            "data": _pixels(rng, 32),
            "fine_labels": rng.integers(100, size=32).tolist(),
        }
        _pickle(folder / name, content)
    _pickle(folder / "meta", {"fine_label_names": [f"class {n}" for n in range(100)]})


def _pixels(rng: np.random.Generator, count: int) -> np.ndarray[Any, Any]:
    return rng.integers(256, size=(count, 3 * 32 * 32), dtype=np.uint8)


def _pickle(path: Path, content: dict[str, Any]) -> None:
    path.write_bytes(pickle.dumps(content))


def _text_files(folder: Path) -> None:
    """Twenty texts of each of two classes, rich enough for the 1,024 tokens of bpe."""
    for seed, name in enumerate(("prose", "verse")):
        (folder / name).mkdir(parents=True)
        for n in range(20):
            _text(folder / name / f"{n}.txt", seed=100 * seed + n, length=1000 + n)


def _image_folder(folder: Path, rng: np.random.Generator) -> None:
    for name in ("left", "right"):
        (folder / name).mkdir(parents=True)
        for n in range(20):
            pixels = rng.integers(256, size=(9, 12, 3), dtype=np.uint8)
            Image.fromarray(pixels).save(folder / name / f"{n}.png")


def _hf_images(file: Path, rng: np.random.Generator) -> None:
    """Two columns of images, as datasets stores them, and two of labels."""
    import pyarrow
    from pyarrow import parquet

    table = {"label": ["left", "right"] * 20, "number": [1, 2, 3, 4] * 10}
    for column in ("image", "mirrored"):
        table[column] = [{"bytes": _png(rng), "path": None} for _ in range(40)]
    parquet.write_table(pyarrow.table(table), file)


def _png(rng: np.random.Generator) -> bytes:
    encoded = io.BytesIO()
    Image.fromarray(rng.integers(256, size=(9, 12, 3), dtype=np.uint8)).save(encoded, "png")
    return encoded.getvalue()
