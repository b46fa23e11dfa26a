"""Texts in pieces: the tokens of the whole text, in bounded memory, made once for several runs."""

import json
import random
import re
import tracemalloc
from errno import ENOSPC
from pathlib import Path
from unittest.mock import Mock

import numpy as np
import pytest
import torch
from make_data import everything, make, ready
from refusals import refused

from ablate.data import text
from ablate.data import tokenizer as tokenizers
from ablate.data.pieces import LONGEST, Units, between, evenly, interruptible, recut
from ablate.data.split import position, text_key
from ablate.data.tokenizer import Bpe, Byte, Char, make_tokenizer, ready_made, restored

WORDS = [
    "the",
    "cat's",
    "we'll",
    "12,345",
    "déjà",
    "世界",
    "...",
    "—",
    "x",
    "def f(x):",
    "\U0001d518",
]
SPACES = [" ", " ", " ", "\n", "\n\n", "  ", "\t", " \n ", "\r\n", "\u3000", "\x1c", ""]


def prose(seed, words=4000):
    rng = random.Random(seed)
    return "".join(rng.choice(WORDS) + rng.choice(SPACES) for _ in range(words))


@pytest.mark.parametrize("seed", range(4))
def test_the_pieces_have_the_tokens_of_the_whole_text(seed):
    whole = prose(seed)
    rng = random.Random(seed)
    chunks, rest = [], whole
    while rest:
        size = rng.randint(1, 300)
        chunks.append(rest[:size])
        rest = rest[size:]
    pieces = list(recut(chunks, size=64))
    assert "".join(pieces) == whole
    assert len(pieces) > 20
    tokenizer = Bpe.of([whole], vocab_size=380)
    in_pieces = np.concatenate(list(tokenizer.arrays(pieces)))
    assert in_pieces.tolist() == tokenizer.model.encode(whole).ids
    assert Bpe.of(pieces, vocab_size=380).model.to_str() == tokenizer.model.to_str()


def test_bpe_is_learned_from_pieces_of_the_whole_text_if_it_is_long(monkeypatch, capsys):
    lines = [f"line {n:06} of the text\n" for n in range(40_000)]  # 14 pieces
    some, every = evenly(lambda: iter(lines), 300_000)
    some = list(some)
    assert every == 4
    numbers = [int(re.search(r"\d{6}", piece)[0]) for piece in some]
    assert np.diff(numbers, append=40_000, prepend=0).max() <= 12_000  # whole text
    assert sum(map(len, some)) <= 300_000 + 2**16
    made = make_tokenizer("bpe", 300, lambda: iter(lines), lambda: iter(()))
    assert capsys.readouterr().err.count("spread evenly") == 0
    monkeypatch.setattr(tokenizers, "LEARNED", 300_000)
    fewer = make_tokenizer("bpe", 300, lambda: iter(lines), lambda: iter(()))
    assert "learned from 1 in 4 pieces of the training text" in capsys.readouterr().err
    assert fewer.state() == Bpe.of(some, vocab_size=300).state()
    assert fewer.state() != made.state()


def test_a_text_without_blanks_is_cut_too():
    pieces = list(recut(["x" * 1000] * 3000))
    assert [len(piece) for piece in pieces] == [LONGEST, LONGEST, 3_000_000 - 2 * LONGEST]


def test_characters_between_two_places():
    pieces = ["abc", "", "defg", "h"]
    for start in range(9):
        for stop in range(start, 9):
            assert "".join(between(pieces, start, stop)) == "abcdefgh"[start:stop]


def test_a_long_call_can_be_interrupted_and_its_error_arrives():
    assert interruptible(lambda: 3, "three") == 3
    with pytest.raises(ZeroDivisionError):
        interruptible(lambda: 1 // 0, "nothing")


@pytest.mark.parametrize(
    "made",
    [
        lambda: Char.of(["abc"], ["abz"]),
        lambda: Char.of(["abc\n"], ["ab"]),
        Byte,
        lambda: Bpe.of([prose(0)], vocab_size=300, reserved=4),
    ],
)
def test_a_tokenizer_is_its_state(made):
    one = made()
    again = restored(json.loads(json.dumps(one.state())))
    assert again.vocab_size == one.vocab_size
    assert again.encode("abc ab") == one.encode("abc ab") if one.knows("abc ab") else True
    assert again.decode(one.encode("ab")) == "ab"
    assert again.unknown_id == one.unknown_id


@pytest.fixture
def long(tmp_path, monkeypatch):
    """The keys of a text that is kept on disk, and an entry for each time that it is tokenized."""
    monkeypatch.setenv("ABLATE_CACHE", str(tmp_path / "cache"))
    monkeypatch.setattr(text, "KEPT", 100)
    (tmp_path / "a.txt").write_text(prose(1))
    options = {"path": str(tmp_path / "a.txt"), "tokenizer": "byte", "seq_len": 8, "batch_size": 2}
    calls = []
    original = text.Text.divided
    monkeypatch.setattr(text.Text, "divided", lambda *args: calls.append(1) or original(*args))
    return options, calls


def listed(data, split):
    return np.concatenate(data.tokens[split].arrays()).tolist()


@pytest.mark.parametrize("tokenizer", ["char", "byte", "bpe"])
def test_tokens_are_made_once_for_all_runs_and_equal_those_in_memory(long, tokenizer, monkeypatch):
    options, calls = long[0] | {"tokenizer": tokenizer}, long[1]
    one, two = (ready("text", seed=seed, **options) for seed in range(2))
    assert len(calls) == 1
    monkeypatch.setattr(text, "KEPT", 10**9)
    three = ready("text", **options)
    for split in ("train", "val"):
        assert listed(one, split) == listed(two, split) == three.tokens[split].tolist()
        assert one.per_token(split)["char"] == three.per_token(split)["char"]
        kept, whole = (everything(data, split) for data in (one, three))
        assert all(kept[name].equal(whole[name]) for name in ("tokens", "targets"))
    assert three.tokens["train"].dtype == torch.uint16
    Path(options["path"]).write_text(prose(2))
    monkeypatch.setattr(text, "KEPT", 100)
    assert listed(ready("text", **options), "val") != listed(one, "val")
    assert len(calls) == 3


def test_damaged_tokens_are_made_again(long, tmp_path):
    options, calls = long
    one = ready("text", **options)
    (file,) = (tmp_path / "cache" / "tokens").glob("*/val-00000.bin")
    expected = listed(one, "val")
    file.write_bytes(b"x")
    assert listed(ready("text", **options), "val") == expected
    assert len(calls) == 2
    folder = file.parent
    assert {p.name for p in folder.iterdir() if p.name[0] == "."} == {".lock"}
    (folder / "manifest.json").rename(folder / ".plan.json")  # as if it was killed
    (folder / ".plan.json").write_text(json.dumps({"key": folder.name}))
    assert listed(ready("text", **options), "val") == expected
    assert len(calls) == 3


@pytest.mark.parametrize("full", [False, True])
def test_a_cache_that_cannot_be_written_is_named_and_the_run_goes_on(
    full, long, monkeypatch, capsys
):
    if full:
        failure = Mock(side_effect=OSError(ENOSPC, "No space left on device", "/cache/x"))
        monkeypatch.setattr("ablate.data.preparation._write", failure)
    else:
        monkeypatch.setenv("ABLATE_CACHE", "/proc/none")
    assert len(ready("text", **long[0]).tokens["train"]) > 1000
    said = capsys.readouterr().err
    assert "tokens are kept in memory, and the next run makes them again" in said
    reason = "/cache/x: No space left on device; ABLATE_CACHE names another folder"
    assert (reason if full else "cannot write downloads to /proc/none") in said


def test_a_text_continues_after_any_piece():
    whole = prose(1, words=40_000)
    chunks = [whole[n : n + 999] for n in range(0, len(whole), 999)]
    parts = {"train": lambda: iter(chunks[:150]), "val": lambda: iter(chunks[150:])}
    made = text.Divided(parts)
    every = list(made.pieces())
    assert "".join(piece.text for piece in every) == whole
    assert len(every) > 3
    for n, piece in enumerate(every):
        assert list(made.pieces(piece.after)) == every[n + 1 :]


def test_memory_does_not_grow_with_the_text(tmp_path, monkeypatch):
    monkeypatch.setenv("ABLATE_CACHE", str(tmp_path / "cache"))
    peaks = []
    for size in (3_000_000, 3_000_000, 15_000_000):  # the first imports what is used
        (tmp_path / "a.txt").write_text(
            f"{len(peaks)}: to be or not to be that is\n" * (size // 30)
        )
        tracemalloc.start()
        data = ready("text", path=str(tmp_path / "a.txt"), tokenizer="byte", seq_len=8)
        peaks.append(tracemalloc.get_traced_memory()[1])
        tracemalloc.stop()
        assert sum(map(len, data.tokens.values())) == size
    assert peaks[2] < 1.1 * peaks[1]


# What a text is taken to be


@pytest.mark.parametrize("unit", ["line", "document"])
def test_units_are_shuffled_and_none_is_divided(unit, tmp_path, capsys):
    names = [f"name{n:03}" for n in range(300)]
    between = "\n" if unit == "line" else "\nof a family\n\n\n"
    (tmp_path / "a.txt").write_text(between.join(names))
    plain, data, other = (
        ready("text", path=str(tmp_path / "a.txt"), tokenizer="char", seq_len=8, unit=u, seed=s)
        for u, s in ((None, 0), (unit, 0), (unit, 1))
    )
    decoded = {s: data.tokenizer.decode(t.tolist()) for s, t in data.tokens.items()}
    found = [line for s in decoded for line in decoded[s].split("\n") if line.startswith("name")]
    assert sorted(found) == names
    assert found != names
    assert decoded["val"].count("name") == 30
    assert other.tokens["val"].equal(data.tokens["val"])  # for every seed
    assert data.fingerprint() != plain.fingerprint()
    said = capsys.readouterr().err
    assert f"300 {unit}s, shuffled; 30 validate" in said
    assert ("its lines are sorted" in said) == (unit == "line")


def test_blank_lines_may_have_blanks_and_units_of_both_splits_are_counted(tmp_path, capsys):
    (tmp_path / "a.txt").write_text("\n \t\n".join(f"name{n % 60:02}" for n in range(300)) + "\n")
    for unit in ("line", "document"):
        ready("text", path=str(tmp_path / "a.txt"), tokenizer="char", seq_len=8, unit=unit)
        said = capsys.readouterr().err
        assert f"300 {unit}s, shuffled; 30 validate (30 of them also train)" in said


def test_every_unit_is_kept_and_has_its_end():
    for unit, end in (("line", "\n"), ("document", "\n\n")):
        assert {*Units(b"ab\r\n\nc", unit).pieces(0, 2)} == {f"ab{end}", f"c{end}"}


NUMBERS = [f"line {n:04}" for n in range(300)]


@pytest.mark.parametrize(
    ("lines", "said"),
    [
        (NUMBERS, True),
        (NUMBERS[::-1], True),
        ([f"{'aB'[n % 2]}{n}" for n in range(100, 400)], False),
        (sorted((f"{'aAbB'[n % 4]}{n}" for n in range(300)), key=str.lower), True),
        (["title", *NUMBERS, *NUMBERS[-1:]], True),
        (["same"] * 300, False),
    ],
)
def test_lines_that_are_sorted_are_said(lines, said, tmp_path, capsys):
    (tmp_path / "a.txt").write_text("\n".join(lines) + "\n")
    ready("text", path=str(tmp_path / "a.txt"), tokenizer="byte", seq_len=8)
    assert ("its lines are sorted" in capsys.readouterr().err) == said


JSON = '{"text": "to be"}\n'


@pytest.mark.parametrize(
    ("name", "content", "says"),
    [
        ("a.json", b'{"id": 1}\n' * 99, "contains JSON lines"),
        ("a.txt", JSON.encode() * 99, "contains JSON lines"),
        ("a.txt", b"PAR1" + bytes(99), "is a Parquet file"),
        ("a.txt", b"PK\3\4" + bytes(99), "is a ZIP archive"),
        ("a.txt", b"\xff\xfea\0b\0" * 99, "is UTF-16"),
        ("a.txt", b"\x28\xb5\x2f\xfd" * 99, "is compressed by zstd"),
        ("a.bin", bytes(99), "has a NUL byte"),
    ],
)
def test_what_is_no_text_is_named(name, content, says, tmp_path):
    (tmp_path / name).write_bytes(content)
    with refused(f"{name}: ", says):
        make("text", path=str(tmp_path / name), tokenizer="char", seq_len=8).setup()


def test_files_with_documents_are_prepared_once(tmp_path, monkeypatch, capsys):
    """A folder, a pattern, several files and JSON lines have the same documents."""
    monkeypatch.setenv("ABLATE_CACHE", str(tmp_path / "cache"))
    texts = [prose(seed, words=40) for seed in range(30)]
    (tmp_path / "a").mkdir()
    for n, content in enumerate(texts):
        (tmp_path / "a" / f"{n:02}.txt").write_bytes(content.encode())
    (tmp_path / "b.jsonl").write_text("".join(json.dumps({"text": t}) + "\n" for t in texts))
    files = [str(tmp_path / "a" / f"{n:02}.txt") for n in range(30)]
    options = {"tokenizer": "byte", "seq_len": 8, "batch_size": 2, "val_fraction": 0.3}
    kinds = [str(tmp_path / "a"), f"{tmp_path}/a/*.txt", files, str(tmp_path / "b.jsonl")]
    made = [ready("text", path=path, **options) for path in kinds]
    assert capsys.readouterr().err.count("tokenizing for all runs") == 2  # lines are other files
    for split in ("train", "val"):
        tokens = [listed(data, split) for data in made]
        assert tokens[0] == tokens[1] == tokens[2] == tokens[3]
    documents = [content + "\n\n" for content in texts]
    held = "".join(documents[n] for n in range(30) if position(text_key(texts[n])) < 0.3)
    assert bytes(listed(made[0], "val")).decode() == held
    assert 0 < len(held) < sum(map(len, documents)) / 2
    assert made[0].per_token("val")["byte"] == pytest.approx(1, abs=0.01)
    again = make("text", path=files[:9], **options)
    assert again.fingerprint() != made[0].fingerprint() == made[2].fingerprint()
    other = make("text", path=f"{tmp_path}/a/0*.txt", **options)
    other.measure_as(made[0])
    other.whole = True
    other.setup()
    assert bytes(listed(other, "val")).decode() == "".join(documents[:10])


@pytest.mark.parametrize(
    ("changes", "says"),
    [
        ({"unit": "line"}, "data.unit=line: is of one text"),
        ({"sha256": "0" * 64}, "is of one text, and data.path="),
        ({"val_fraction": 1e-9}, "by its hash; set another share, or join the files into one text"),
        ({"path": "none*"}, "none*: no such file or folder"),
        ({"path": ["a", "hf:b"]}, "data.path=['a', 'hf:b']: python -m ablate.prepare reads"),
        ({"path": "b.jsonl"}, "b.jsonl: line 1 has no 'text'"),
    ],
)
def test_documents_that_cannot_be_used_are_one_line(changes, says, tmp_path, monkeypatch):
    monkeypatch.setenv("ABLATE_CACHE", str(tmp_path / "cache"))
    monkeypatch.chdir(tmp_path)
    (tmp_path / "a").mkdir()
    (tmp_path / "a" / "a.txt").write_text("to be " * 99)
    (tmp_path / "b.jsonl").write_text('{"txt": "x"}\n')
    options = {"path": "a", "tokenizer": "byte", "seq_len": 8} | changes
    with refused(says):
        make("text", **options).setup()


def saved(folder, **parts):
    """A tokenizer of Hugging Face that knows some words, and writes small letters."""
    transformers = pytest.importorskip("transformers")
    from tokenizers import Tokenizer, models, normalizers, pre_tokenizers

    names = ["[UNK]", "the", "cat", "sat", "on", "a", "mat"]
    model = Tokenizer(models.WordLevel({n: i for i, n in enumerate(names)}, unk_token="[UNK]"))
    model.pre_tokenizer = pre_tokenizers.Whitespace()
    if parts.get("lower"):
        model.normalizer = normalizers.Lowercase()
    transformers.PreTrainedTokenizerFast(tokenizer_object=model, unk_token="[UNK]").save_pretrained(
        folder
    )
    return f"hf:{folder}"


@pytest.mark.parametrize(
    ("content", "lost"),
    [("the cat sat on a mat " * 110, 0), ("the dog ran on a mat " * 110, 2), ("The cat " * 99, 0)],
)
def test_bits_per_character_are_of_tokens_that_hold_the_text(content, lost, tmp_path, capsys):
    (tmp_path / "a.txt").write_text(content)
    name = saved(tmp_path / "tokenizer", lower=lost == 0)
    data = ready("text", path=str(tmp_path / "a.txt"), tokenizer=name, seq_len=8, batch_size=2)
    assert data.per_token("val") == {}  # without its blanks no text comes back
    assert data.counts["val"]["unknown"] == data.tokens["val"].eq(0).sum() == 11 * lost
    line = "are unknown), so bits per byte and per character are left out"
    assert line in capsys.readouterr().err
    again = restored(json.loads(json.dumps(ready_made(name).state())))
    assert again.encode("the cat") == data.tokenizer.encode("the cat")
