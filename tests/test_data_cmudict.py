"""The pronouncing dictionary: words split by themselves, phonemes with or without stress."""

from pathlib import Path
from typing import Any

import pytest
from make_data import make

from ablate.data.cmudict import CMUDict
from ablate.data.pairs import Pair
from ablate.errors import UserError

DICTIONARY = """\
'bout B AW1 T
a AH0
a(2) EY1
aalborg AO1 L B AO0 R G # place, danish
aalborg(2) AA1 L B AO0 R G
address AE1 D R EH2 S
address(2) AH0 D R EH1 S

record R AH0 K AO1 R D
record(2) R AH1 K AO0 R D
"""


def cmudict(root: Path, **changes: Any) -> CMUDict:
    data = make("cmudict", root=str(root), **({"batch_size": 2} | changes))
    assert isinstance(data, CMUDict)
    return data


@pytest.fixture
def small(tmp_path: Path) -> Path:
    words = "".join(
        f"w{'abcdefghij'[n % 10]}{n} W {'AA1' if n % 2 else 'IY0'}\n" for n in range(200)
    )
    (tmp_path / "cmudict.dict").write_text(DICTIONARY + words)
    return tmp_path


def everything(data: CMUDict) -> set[Pair]:
    return {pair for pairs in data.read().values() for pair in pairs}


def test_entries_are_read(small: Path) -> None:
    first = everything(cmudict(small))
    assert Pair("'bout", "B AW T") in first
    assert Pair("aalborg", "AO L B AO R G") in first
    assert len(first) == 205
    assert len(everything(cmudict(small, variants="all"))) == 205 + 3  # record twice the same
    stressed = everything(cmudict(small, variants="all", stress=True))
    assert len(stressed) == 205 + 4
    assert {p.target for p in stressed if p.source == "a"} == {"AH0", "EY1"}


@pytest.mark.slow
def test_pronunciations_of_a_word_stay_together(shared_data: Path) -> None:
    data = cmudict(shared_data / "cmudict", variants="all", stress=True)
    words = [{pair.source for pair in pairs} for pairs in data.read().values()]
    assert len(set.union(*words)) == sum(map(len, words)) == 126_052
    share = [len(split) / 126_052 for split in words]
    assert share == pytest.approx([0.90, 0.05, 0.05], abs=0.003)
    pairs = sum(map(len, data.read().values()))
    assert pairs > 130_000


@pytest.mark.slow
def test_letters_become_phonemes(shared_data: Path) -> None:
    data = cmudict(shared_data / "cmudict")
    data.setup()
    assert data.sizes["target_vocab"] == 39 + 4
    assert data.item == "phoneme"
    tokens = data.target_tokenizer.encode("AA R D V AA R K")
    assert " ".join(map(data.target_tokenizer.label, tokens)) == "AA R D V AA R K"
    assert len(data.source_tokenizer.encode("aardvark")) == 8


def test_a_split_does_not_depend_on_the_other_words(small: Path) -> None:
    before = cmudict(small).read()
    path = small / "cmudict.dict"
    path.write_text("".join(sorted(path.read_text().splitlines(keepends=True), reverse=True)[::2]))
    after = cmudict(small).read()
    for split, pairs in after.items():
        assert {p.source for p in pairs} <= {p.source for p in before[split]}


@pytest.mark.parametrize(
    ("content", "line"),
    [
        ("word\n", "line 1 of cmudict.dict is not a word and its phonemes: 'word'"),
        (DICTIONARY + "x y z\n", "line 11 of cmudict.dict is not a word"),
        ("", "is empty"),
    ],
)
def test_a_line_that_is_none_is_named(tmp_path: Path, content: str, line: str) -> None:
    (tmp_path / "cmudict.dict").write_text(content)
    with pytest.raises(UserError, match=r"^data\.root=") as caught:
        cmudict(tmp_path).setup()
    assert line in str(caught.value)


def test_long_words_are_named_by_their_line(
    small: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    cmudict(small, max_length=3).setup()
    said = capsys.readouterr().out
    assert "dropped, longer than data.max_length=3; the first is line 1 of cmudict.dict" in said
    assert "5 tokens" in said
