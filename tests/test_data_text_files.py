"""Texts with classes: chapters of Python's help, folders of files, batches, mistakes."""

import gzip
from itertools import combinations
from pathlib import Path
from typing import Any

import make_model
import pytest
import torch
from make_data import make, ready
from torch import Tensor

from ablate.config.composition import compose
from ablate.data import Request
from ablate.data.chapters import CHAPTERS, paragraphs
from ablate.data.pydoc import topics
from ablate.data.text_files import TextFiles
from ablate.errors import UserError
from ablate.training.build import build_data


def texts(root: Path | None = None, **changes: Any) -> TextFiles:
    data = ready("text_files", root=root and str(root), tokenizer="char", **changes)
    assert isinstance(data, TextFiles)
    return data


def read(data: TextFiles, split: str) -> list[tuple[str, str]]:
    """Every text of a split, decoded, and the name of its class."""
    batch = data.splits[split][Request(0, torch.arange(data.length(split)))]
    return [
        (data.tokenizer.decode(tokens[keep].tolist()), data.class_names[target])
        for tokens, keep, target in zip(*batch.values(), strict=True)
    ]


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    for name, words in {"cats": "the cat sat", "dogs": "a dog ran"}.items():
        (tmp_path / name).mkdir()
        for n in range(30):
            (tmp_path / name / f"{n}.txt").write_text(f"{words} {n} times" * (1 + n % 3))
    return tmp_path


def test_a_chapter_has_the_paragraphs_of_its_topics_and_no_paragraph_has_two() -> None:
    found, chapters = paragraphs()
    assert len(set(found)) == len(found) > 1000
    assert set(chapters) == set(CHAPTERS)
    chapter = dict(zip(found, chapters, strict=True))
    (rule,) = [text for text in found if text.startswith('The "pass" statement is a null')] or [""]
    assert chapter.get(rule, "simple_statements") == "simple_statements"
    words = {text: " ".join(text.split()) for text in found}
    whole = {name: " ".join(text.split()) for name, text in topics().items()}
    for text, its in chapter.items():
        assert any(words[text] in whole[name] for name in CHAPTERS[its].split() if name in whole)


def test_no_text_stands_in_two_splits_and_every_class_in_all() -> None:
    data = texts(seq_len=5000)
    found = {split: read(data, split) for split in data.splits}
    for one, other in combinations(found, 2):
        assert {text for text, _ in found[one]}.isdisjoint(text for text, _ in found[other])
    for of_split in found.values():
        assert {name for _, name in of_split} == set(CHAPTERS)
    assert sum(map(len, found.values())) == len(paragraphs()[0])


def test_a_folder_for_each_class(folder: Path) -> None:
    data = texts(folder, seq_len=500)
    assert data.class_names == ["cats", "dogs"]
    for split in data.splits:
        for text, name in read(data, split):
            assert text.startswith({"cats": "the cat", "dogs": "a dog"}[name])
    assert sum(data.length(split) for split in data.splits) == 60


def test_packed_files_are_read_too(folder: Path) -> None:
    plain = {split: read(texts(folder), split) for split in ("train", "val", "test")}
    for path in folder.glob("*/*.txt"):
        # The name decides the split, so it must stay.
        path.write_bytes(gzip.compress(path.read_bytes()))
    assert plain == {split: read(texts(folder), split) for split in plain}


def test_a_batch_is_filled_up_to_its_longest_text_and_no_further(folder: Path) -> None:
    data = texts(folder, seq_len=500)
    batch = data.splits["train"][Request(0, torch.arange(8))]
    lengths = batch["keep"].sum(1)
    assert batch["tokens"].shape == (8, lengths.max())
    assert batch["keep"].equal(torch.arange(int(lengths.max())) < lengths[:, None])
    assert batch["tokens"][~batch["keep"]].eq(0).all()


def test_longer_texts_are_cut_and_that_is_said(
    folder: Path, caplog: pytest.LogCaptureFixture
) -> None:
    whole, cut = texts(folder, seq_len=500), texts(folder, seq_len=4)
    assert [t[:4] for t, _ in read(whole, "val")] == [t for t, _ in read(cut, "val")]
    count = whole.length("train")
    assert (
        f"{count} of the {count} texts of train are longer than the 4 tokens data.seq_len=4"
        in caplog.text
    )
    assert "data.seq_len=500" not in caplog.text


def test_bert_reads_them_between_its_special_tokens(folder: Path) -> None:
    cfg = compose(
        *("model=bert", "task=classification", "data=text_files", f"data.root={folder}"),
        *("data.tokenizer=char", "data.seq_len=8"),
    )
    data = build_data(cfg)
    batch = data.splits["train"][Request(0, torch.arange(3))]
    plain = texts(folder, seq_len=6)
    expected = plain.splits["train"][Request(0, torch.arange(3))]
    assert batch["tokens"][:, 1:-1].equal(expected["tokens"])
    cls, sep = plain.tokenizer.vocab_size, plain.tokenizer.vocab_size + 1
    assert batch["tokens"][:, 0].eq(cls).all()
    assert batch["tokens"][:, -1].eq(sep).all()


def test_a_model_of_classes_does_not_see_padding() -> None:
    """The logits of a text are those it has alone, whatever stands beside it."""
    model = make_model.gpt(classes=3, tie_embeddings=True)
    model = make_model.random_parts(model).eval()
    tokens = make_model.tokens(2, 6)
    keep = torch.tensor([[True] * 6, [True] * 4 + [False] * 2])
    together = model(tokens, keep)
    assert together.shape == (2, 3)
    alone: Tensor = model(tokens[1:, :4], keep[1:, :4])
    torch.testing.assert_close(together[1:], alone)
    other = torch.where(keep, tokens, (tokens + 1) % 11)
    torch.testing.assert_close(model(other, keep), together)


@pytest.mark.parametrize(
    ("changes", "says"),
    [
        ({"root": "nowhere"}, "data.root=nowhere: no such folder"),
        ({"root": "empty"}, "no texts in CLASS; known endings: .gz .txt"),
        ({"root": "broken"}, "not UTF-8 at byte offset 0"),
        ({"root": "hollow"}, "the file is empty"),
    ],
)
def test_mistakes(
    changes: dict[str, Any], says: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    Path("empty").mkdir()
    for name, content in {"broken": b"\xff\xfe", "hollow": b""}.items():
        for n in range(60):
            folder = Path(name, f"class {n % 2}")
            folder.mkdir(parents=True, exist_ok=True)
            Path(folder, f"{n}.txt").write_bytes(content)
    data = make("text_files", **changes)
    with pytest.raises(UserError) as caught:
        data.setup()
    assert says in str(caught.value)
    assert "\n" not in str(caught.value)
