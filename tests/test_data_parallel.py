"""Two files line by line: read strictly, split without leaks, refused in one line."""

import gzip
import random
import unicodedata
from pathlib import Path

import pytest
from make_data import make
from refusals import refused

from ablate.data.pairs import Pair
from ablate.data.split import text_key

WORDS = ["ein", "Hund", "läuft", "im", "Park", "mit", "zwei", "roten", "Bällen", "und", "Katzen"]


def sentences(count, seed=0):
    rng = random.Random(seed)
    return [" ".join(rng.choices(WORDS, k=rng.randint(3, 9))) + "." for _ in range(count)]


def lines_of(path):
    return Path(path).read_text().splitlines()


@pytest.fixture
def write(tmp_path):
    def written(name, lines):
        (tmp_path / name).write_text("".join(f"{line}\n" for line in lines), newline="")
        return str(tmp_path / name)

    return written


@pytest.fixture
def both(write):
    """The keys of a source and its target with these lines."""

    def written(source, target=None):
        target = sentences(len(source), seed=1) if target is None else target
        return {"source": write("train.de", source), "target": write("train.en", target)}

    return written


@pytest.fixture
def more(write):
    """Files for validation and test."""
    keys = ("val_source", "val_target", "test_source", "test_target")
    return {key: write(key, sentences(20, seed)) for seed, key in enumerate(keys, 2)}


def parallel(**changes):
    return make("parallel", **({"tokenizer": "word", "batch_size": 4} | changes))


def ready(**changes):
    data = parallel(**changes)
    data.setup()
    return data


# the splits


def test_given_files_are_the_splits(both, more):
    files = both(sentences(300)) | more
    data = ready(**files)
    assert list(data.texts) == ["train", "val", "test"]
    for split, pairs in data.texts.items():
        prefix = "" if split == "train" else f"{split}_"
        for side in ("source", "target"):
            assert [getattr(pair, side) for pair in pairs] == lines_of(files[f"{prefix}{side}"])


def test_references_are_lower_case_too(both):
    lines = sentences(300)
    files = both(lines, lines)
    for change in (str, str.lower):
        texts = ready(**files, lower=change is str.lower).texts
        found = {pair for pairs in texts.values() for pair in pairs}
        assert found == {(change(line), change(line)) for line in lines}


@pytest.mark.parametrize("shares", [{}, {"val_fraction": 0.2}, {"test_fraction": 0.3}])
def test_shares_are_taken_of_the_training_files(both, shares):
    files = both(sentences(300))
    data = ready(**files, **shares)
    for split, share in {"val": 0.05, "test": 0.0}.items():
        share = shares.get(f"{split}_fraction", share)
        assert abs(len(data.texts.get(split, [])) - 300 * share) < 20
    lines = sorted(zip(*map(lines_of, files.values()), strict=True))
    assert sorted(pair for pairs in data.texts.values() for pair in pairs) == lines
    assert data.has_test == ("test_fraction" in shares)


def test_a_source_stands_in_one_split_alone_and_stays_there(both):
    lines = [*sentences(300), *sentences(300)]  # each twice

    def split(source):
        texts = ready(**both(source), val_fraction=0.2, test_fraction=0.2).texts
        return {split: {pair.source for pair in pairs} for split, pairs in texts.items()}

    before, after = split(lines), split([*sentences(50, seed=7), *lines[::-1]])
    assert sum(map(len, before.values())) == len(set(lines))
    assert all(kept <= after[split] for split, kept in before.items())


def rewritten(line):
    """The same sentence in another Unicode form, other letters and spaces."""
    return unicodedata.normalize("NFD", line.upper()).replace(" ", "  ") + "\u200b"


def test_twins_are_in_one_split_and_of_given_files_they_are_counted(both, write, more, caplog):
    lines = sentences(300)
    texts = ready(**both([*lines, *map(rewritten, lines)]), val_fraction=0.3).texts
    keys = [{text_key(pair.source) for pair in pairs} for pairs in texts.values()]
    assert sum(map(len, keys)) == len(set.union(*keys)) == len(set(lines))
    assert not caplog.text
    ready(**both(lines), **more | {"val_source": write("val", map(rewritten, lines[:20]))})
    assert "20 of the 20 validation sources are also in the training split" in caplog.text
    assert "test sources" not in caplog.text


def test_gzip_and_plain_are_the_same(both):
    files = both(sentences(300))
    plain = parallel(**files).fingerprint()
    packed = {side: f"{path}.gz" for side, path in files.items()}
    for side, path in files.items():
        Path(packed[side]).write_bytes(gzip.compress(Path(path).read_bytes()))
    assert parallel(**packed).fingerprint() == plain
    assert parallel(**packed, val_fraction=0.2).fingerprint() != plain


def test_only_a_newline_ends_a_line(tmp_path, write):
    odd = ["\ufeffone\u2028two\r", " \x85three ", "four\x0bfive\x1cs"]
    (tmp_path / "a").write_bytes("\n".join(odd).encode())  # without one at the end
    target = write("b", ["1", "2", "3"])
    files = {"source": str(tmp_path / "a"), "target": target}
    texts = ready(**files, val_source=target, val_target=target, tokenizer="char").texts
    sources = [pair.source for pair in texts["train"]]
    assert sources == ["one\u2028two", "three", "four\x0bfive\x1cs"]


# tokens


@pytest.mark.parametrize("tokenizer", ["char", "word", "bpe"])
@pytest.mark.parametrize("joint", [True, False])
def test_tokens_come_from_the_training_split_alone(both, write, more, tokenizer, joint):
    """Whatever stands in validation and test, no vocabulary changes."""
    size = 300 if tokenizer == "bpe" else None
    options = both(sentences(300)) | {"tokenizer": tokenizer, "joint": joint, "vocab_size": size}
    made = ready(**options, **more)
    for key in more:
        write(key, ["ξένος κόσμος " * 9, *(["zwölf Boxkämpfer"] * 40)])
    other = ready(**options, **more)
    assert other.texts["val"] != made.texts["val"]
    text = "zwei rote Boxkämpfer, ξένος!"
    for side in ("source_tokenizer", "target_tokenizer"):
        first, second = getattr(made, side), getattr(other, side)
        assert first.vocab_size == second.vocab_size
        assert all(first.label(n) == second.label(n) for n in range(first.vocab_size))
        assert first.encode(text) == second.encode(text)
    assert (made.source_tokenizer is made.target_tokenizer) == joint == made.sizes.joint


def test_without_a_size_bpe_takes_what_a_small_text_gives(both):
    """Nobody typed 1024."""
    files = both(sentences(80))
    sizes = ready(**files, tokenizer="bpe").sizes
    assert 260 <= sizes.source_vocab < 1024
    most = max(sizes.source_vocab, sizes.target_vocab)
    with refused(f"data.vocab_size={most + 1}: allowed: 260 (the 256 bytes and 4 special tokens)"):
        ready(**files, tokenizer="bpe", vocab_size=most + 1)


# mistakes


def test_dropped_lines_are_counted_in_their_file(both, write, more, capsys):
    source = [*sentences(200), "zu lang " * 30]
    paths, test = both(source, source), {key: more[key] for key in ("test_source", "test_target")}
    write("test_source", ["", *sentences(19)])
    data = ready(**paths, **test, val_fraction=0.3, max_length=20)
    assert len(data.texts["val"]) > 20  # so that line and number in the split differ
    assert data.texts["test"][0] == Pair("", sentences(20, 5)[0])
    empty, long = capsys.readouterr().out.splitlines()
    assert empty.endswith(f"line 1 of {test['test_source']} and {test['test_target']}")
    assert long.endswith(f"line 201 of {paths['source']} and {paths['target']}, 60 tokens")
