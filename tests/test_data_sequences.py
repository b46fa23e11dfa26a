"""Sequences of integers: the target follows from the source, and so does the alignment."""

import pytest
from make_data import make, ready

from ablate.data.sequences import Sequences
from ablate.errors import UserError

NAMES = ["reverse", "copy", "sort"]
SMALL = {"train_examples": 300, "val_examples": 200, "test_examples": 150}


def sequences(name: str, **changes: int) -> Sequences:
    data = ready(name, **(SMALL | changes))
    assert isinstance(data, Sequences)
    return data


def numbers(text: str) -> list[int]:
    return [int(number) for number in text.split()]


@pytest.mark.parametrize("name", NAMES)
def test_targets_follow_from_sources(name: str) -> None:
    data = sequences(name)
    expected = {"reverse": lambda s: s[::-1], "copy": list, "sort": sorted}[name]
    for pairs in data.texts.values():
        for pair in pairs:
            assert numbers(pair.target) == expected(numbers(pair.source))


@pytest.mark.parametrize("name", NAMES)
def test_lengths_and_numbers_are_as_configured_and_all_occur(name: str) -> None:
    data = sequences(name, symbols=7, min_length=2, max_train_length=5, test_max_length=8)
    for split, longest in {"train": 5, "val": 8, "test": 8}.items():
        drawn = [numbers(pair.source) for pair in data.texts[split]]
        assert len(drawn) == SMALL[f"{split}_examples"]
        assert {len(sequence) for sequence in drawn} == set(range(2, longest + 1))
        assert {number for sequence in drawn for number in sequence} == set(range(7))
    assert data.sizes == {
        "source_vocab": 11,
        "target_vocab": 11,
        "source_length": 9,
        "target_length": 9,
        "joint": True,
    }


@pytest.mark.parametrize("name", NAMES)
def test_the_alignment_links_each_number_to_itself(name: str) -> None:
    data = sequences(name)
    for split, pairs in data.texts.items():
        for index, pair in enumerate(pairs):
            source, target = numbers(pair.source), numbers(pair.target)
            links = data.alignment(split, index)
            taken = []
            for place, (to, where) in enumerate(links):
                assert (len(to), len(where), to.start) == (1, 1, place)
                assert target[to.start] == source[where.start]
                taken.append(where.start)
            places = list(range(len(source)))
            assert sorted(taken) == places
            if name == "reverse":
                assert taken == places[::-1]
            if name == "copy":
                assert taken == places
            if name == "sort":  # stable
                assert taken == [place for _, place in sorted(zip(source, places, strict=True))]


def test_positions_of_the_alignment_are_positions_of_the_tokens() -> None:
    data = sequences("reverse")
    example = data.example(3)
    for to, where in data.alignment("val", 3):
        assert example["target_labels"][to.start] == example["source_labels"][where.start]


def test_a_number_never_drawn_has_a_token_too() -> None:
    data = ready("copy", symbols=500, train_examples=1, val_examples=1, test_examples=1)
    assert data.sizes["source_vocab"] == 504


def test_the_data_seed_makes_them_and_the_seed_of_the_run_does_not() -> None:
    prints = {
        (seed, data_seed): make("reverse", seed=seed, data_seed=data_seed, **SMALL).fingerprint()
        for seed in (0, 1)
        for data_seed in (0, 1)
    }
    assert prints[0, 0] == prints[1, 0] != prints[0, 1] == prints[1, 1]
    data = sequences("reverse")
    assert len({str(pairs[:20]) for pairs in data.texts.values()}) == 3


@pytest.mark.parametrize(
    ("changes", "line"),
    [
        ({"min_length": 26}, "data.min_length=26: is above data.max_train_length=25"),
        ({"symbols": 1}, "data.symbols=1: must be a whole number of at least 2"),
        ({"test_max_length": 0}, "data.test_max_length=0: must be"),
        ({"train_examples": 0}, "data.train_examples=0: must be"),
    ],
)
def test_mistakes_are_one_line(changes: dict[str, int], line: str) -> None:
    with pytest.raises(Exception, match="Error in call") as caught:
        make("reverse", **changes)
    assert isinstance(caught.value.__cause__, UserError)
    assert line in str(caught.value.__cause__)
