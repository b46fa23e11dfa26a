"""Two files line by line: read strictly, split without leaks, refused in one line."""

import gzip
import random
import sys
from pathlib import Path
from typing import Any

import pytest
from command_line import ablate_command, fail, runs, seen  # noqa: F401  # fixtures
from make_data import make

from ablate.data.pairs import Pair
from ablate.data.parallel import Parallel
from ablate.training.build import build_data

WORDS = ["ein", "Hund", "läuft", "im", "Park", "mit", "zwei", "roten", "Bällen", "und", "Katzen"]


def sentences(count, seed=0):
    rng = random.Random(seed)
    return [" ".join(rng.choices(WORDS, k=rng.randint(3, 9))) + "." for _ in range(count)]


def write(path, lines):
    path.write_text("".join(f"{line}\n" for line in lines), newline="")
    return str(path)


@pytest.fixture
def files(tmp_path):
    return {
        "source": write(tmp_path / "train.de", sentences(300)),
        "target": write(tmp_path / "train.en", sentences(300, seed=1)),
    }


@pytest.fixture
def more(tmp_path):
    """Files for validation and test."""
    return {
        f"{split}_{side}": write(tmp_path / f"{split}.{side}", sentences(20, seed))
        for seed, (split, side) in enumerate(
            [(split, side) for split in ("val", "test") for side in ("source", "target")], 2
        )
    }


def parallel(**changes):
    data = make("parallel", **({"tokenizer": "word", "batch_size": 4} | changes))
    assert isinstance(data, Parallel)
    return data


def ready(**changes):
    data = parallel(**changes)
    data.setup()
    return data


# the splits


def test_given_files_are_the_splits(files, more):
    data = ready(**files, **more)
    for split, pairs in data.texts.items():
        prefix = "" if split == "train" else f"{split}_"
        for side in ("source", "target"):
            path = Path((files | more)[f"{prefix}{side}"])
            assert [getattr(pair, side) for pair in pairs] == path.read_text().splitlines()
    assert list(data.texts) == ["train", "val", "test"]


@pytest.mark.parametrize("shares", [{}, {"val_fraction": 0.2}, {"test_fraction": 0.3}])
def test_shares_are_taken_of_the_training_files(files, shares):
    data = ready(**files, **shares)
    lines = list(
        zip(*(Path(path).read_text().splitlines() for path in files.values()), strict=True)
    )
    wanted = {"val": shares.get("val_fraction", 0.05), "test": shares.get("test_fraction", 0.0)}
    for split, share in wanted.items():
        assert abs(len(data.texts.get(split, [])) - 300 * share) < 20
    assert sorted(pair for pairs in data.texts.values() for pair in pairs) == sorted(lines)
    assert data.has_test == ("test_fraction" in shares)


def test_a_source_stands_in_one_split_alone_and_stays_there(tmp_path):
    lines = [*sentences(300), *sentences(300)]  # each twice
    options = {"val_fraction": 0.2, "test_fraction": 0.2}
    paths = [write(tmp_path / "a", lines), write(tmp_path / "b", sentences(600, seed=1))]
    before = ready(source=paths[0], target=paths[1], **options).texts
    sources = {split: {pair.source for pair in pairs} for split, pairs in before.items()}
    assert sum(map(len, sources.values())) == len(set(lines))
    paths = [
        write(tmp_path / "a", [*sentences(50, seed=7), *lines[::-1]]),
        write(tmp_path / "b", sentences(650, seed=1)),
    ]
    after = ready(source=paths[0], target=paths[1], **options).texts
    for split, kept in sources.items():
        assert kept <= {pair.source for pair in after[split]}


def test_gzip_and_plain_are_the_same(tmp_path, files):
    plain = parallel(**files).fingerprint()
    packed = {}
    for side, path in files.items():
        packed[side] = f"{path}.gz"
        Path(packed[side]).write_bytes(gzip.compress(Path(path).read_bytes()))
    assert parallel(**packed).fingerprint() == plain
    assert parallel(**packed, val_fraction=0.2).fingerprint() != plain


def test_only_a_newline_ends_a_line(tmp_path):
    odd = ["\ufeffone\u2028two\r", " \x85three ", "four\x0bfive\x1cs"]
    (tmp_path / "a").write_bytes("\n".join(odd).encode())  # without one at the end
    target = write(tmp_path / "b", ["1", "2", "3"])
    val = {"val_source": target, "val_target": target}
    texts = ready(source=str(tmp_path / "a"), target=target, tokenizer="char", **val).texts
    sources = [pair.source for pair in texts["train"]]
    assert sources == ["one\u2028two", "three", "four\x0bfive\x1cs"]


# tokens


@pytest.mark.parametrize("tokenizer", ["char", "word", "bpe"])
@pytest.mark.parametrize("joint", [True, False])
def test_tokens_come_from_the_training_split_alone(tmp_path, files, more, tokenizer, joint):
    """Whatever stands in validation and test, no vocabulary changes."""
    options: dict[str, Any] = {"tokenizer": tokenizer, "joint": joint}
    options["vocab_size"] = 300 if tokenizer == "bpe" else None
    made = ready(**files, **more, **options)
    strange = ["ξένος κόσμος " * 9, *(["zwölf Boxkämpfer"] * 40)]
    for key in more:
        write(Path(more[key]), strange)
    other = ready(**files, **more, **options)
    assert other.texts["val"] != made.texts["val"]
    text = "zwei rote Boxkämpfer, ξένος!"
    for side in ("source_tokenizer", "target_tokenizer"):
        first, second = getattr(made, side), getattr(other, side)
        assert first.vocab_size == second.vocab_size
        labels = [first.label(token) for token in range(first.vocab_size)]
        assert labels == [second.label(token) for token in range(first.vocab_size)]
        assert first.encode(text) == second.encode(text)
    assert (made.source_tokenizer is made.target_tokenizer) == joint == made.sizes["joint"]


# mistakes


def test_empty_and_long_lines_are_named_in_their_file(tmp_path, more, capsys):
    source, target = sentences(9), sentences(9)
    source[3], target[5], target[7] = "  ", "", "eins " * 20
    paths = {"source": write(tmp_path / "a", source), "target": write(tmp_path / "b", target)}
    write(Path(more["test_source"]), ["", *sentences(19)])
    data = ready(**paths, **more, max_length=15)
    assert len(data.texts["train"]) == 6
    assert data.texts["test"][0] == Pair("", sentences(20, 5)[0])
    empty, test, long = capsys.readouterr().out.splitlines()
    assert empty.endswith(
        f"2 with an empty side, dropped; the first is line 4 of {paths['source']} and "
        f"{paths['target']}"
    )
    assert test.endswith(f"line 1 of {more['test_source']} and {more['test_target']}")
    assert "1 dropped, longer than data.max_length=15" in long
    assert long.endswith(f"line 8 of {paths['source']} and {paths['target']}, 20 tokens")


def test_lines_are_counted_in_the_file_where_it_was_split(tmp_path, capsys):
    source = [*sentences(200), "zu lang " * 30]
    paths = {"source": write(tmp_path / "a", source), "target": write(tmp_path / "b", source)}
    data = ready(**paths, val_fraction=0.3, max_length=20)
    said = capsys.readouterr().out
    assert len(data.texts["val"]) > 20  # so that line and number in the split differ
    assert f"line 201 of {paths['source']} and {paths['target']}, 60 tokens" in said


@pytest.mark.parametrize(
    ("overrides", "line"),
    [
        ("data=parallel data.source=a data.target=short", "data.source=a has 40 lines and"),
        ("data=parallel data.source=a", "data.target is missing; write data.target=VALUE"),
        (
            "data=parallel data.source=a data.target=a data.max_lenght=9",
            "data.max_lenght=9: no key data.max_lenght (data=parallel); allowed: ",
        ),
        ("model=rnn_forecaster data.path=csv data.columns=[y]", "column 'y': 'warm' is not a"),
    ],
)
def test_the_command_refuses_in_one_line_and_leaves_no_folder(
    ablate_command,  # noqa: F811
    monkeypatch,
    overrides,
    line,
):
    """As it is typed, up to the model: whatever the data says ends the command."""
    write(Path("a"), sentences(40))
    write(Path("short"), sentences(39))
    write(Path("csv"), ["x,y", "1,2", ",warm"])
    before = sorted(Path().iterdir())
    reads = lambda composition, run_dir: build_data(composition.cfg)  # noqa: E731
    monkeypatch.setattr(sys.modules["ablate.training.train"], "train", reads)
    model = [] if "model=" in overrides else ["model=rnn_seq2seq"]
    code, out, err = ablate_command(*model, *overrides.split(), "logger=none")
    assert (code, out) == (2, "")
    assert err.startswith("ablate: ")
    assert err.count("\n") == 1
    assert line in err
    assert "no key data.source" not in err  # which is there, without a value
    assert sorted(Path().iterdir()) == before
