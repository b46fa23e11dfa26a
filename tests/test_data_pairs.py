"""Pairs as tokens and batches: nothing is lost, nothing is added, and nothing depends on chance."""

import random
from itertools import chain

import pytest
import torch
from hypothesis import example, given, settings
from hypothesis import strategies as st
from make_data import make, ready
from refusals import refused

from ablate.data import IGNORED, Request, pair_tokenizer
from ablate.data.pair_tokenizer import SPECIALS, Words
from ablate.data.pairs import BOS, EOS, PAD, UNKNOWN, Pair, Pairs
from ablate.errors import UserError

RNG = random.Random(0)
WORDS = ["the", "cat", "sat", "on", "a", "mat", ",", "Käse", "!", "don't"]


def sentence():
    return " ".join(RNG.choices(WORDS, k=RNG.randint(1, 12)))


TRAINING = [Pair(sentence(), sentence()) for _ in range(60)]
TEXTS = [" ".join(pair) for pair in TRAINING]
SIZES = ("source_vocab", "target_vocab", "source_length", "target_length", "joint")


class Toy(Pairs):
    """Pairs that are given, with words on both sides."""

    def __init__(self, pairs, **options):
        super().__init__(**({"batch_size": 4, "seed": 0} | options))
        self.pairs = pairs

    def read(self):
        return self.pairs

    def make_tokenizers(self, training):
        return Words.of(p.source for p in training), Words.of(p.target for p in training)


@pytest.fixture
def toy():
    data = Toy({"train": TRAINING, "val": TRAINING[:7], "test": TRAINING[7:20]})
    data.setup()
    return data


# tokenizers


def tokenizers(texts):
    return {
        "char": pair_tokenizer.make("char", texts),
        "word": pair_tokenizer.make("word", texts),
        "bpe": pair_tokenizer.make("bpe", [*texts, *TEXTS], vocab_size=280),
    }


KNOWN = tokenizers(TEXTS)


@pytest.mark.ci
@settings(max_examples=60)
@given(st.lists(st.text(), min_size=1, max_size=5))
@example(["a ￭ ￭b c￭"])
@example([*SPECIALS, "<s>a</s>", ""])
def test_a_text_comes_back_and_none_makes_a_special_token(texts):
    for text in texts:
        for kind, tokenizer in KNOWN.items():
            tokens = tokenizer.encode(text)
            assert not {PAD, BOS, EOS} & set(tokens)
            assert kind != "bpe" or UNKNOWN not in tokens
            assert all(tokenizer.label(token).isprintable() for token in tokens)
        for kind, tokenizer in tokenizers(texts).items():
            back = {"char": text, "word": " ".join(text.split()), "bpe": text.strip()}[kind]
            tokens = tokenizer.encode(text)
            assert tokenizer.decode(tokens) == back
            assert tokenizer.decode([BOS, *tokens, EOS, PAD, 4, 5]) == back
            assert all(len(SPECIALS) <= token < tokenizer.vocab_size for token in tokens)


def test_what_training_never_showed_is_unknown():
    for kind, text, back in (
        ("word", "the dog sat ,", "the <unk> sat ,"),
        ("char", "cñt", "c�t"),
        ("bpe", "cñt 猫", "cñt 猫"),
    ):
        assert KNOWN[kind].decode(KNOWN[kind].encode(text)) == back
    assert KNOWN["bpe"].decode([*KNOWN["bpe"].encode("cat"), UNKNOWN]) == "cat�"
    words = pair_tokenizer.make("word", ["a a b", "b a c"], min_count=2)  # c is too rare
    assert words.vocab_size == len(SPECIALS) + 2
    assert words.decode(words.encode("a b c")) == "a b <unk>"


def test_words_part_at_punctuation_and_keep_their_accents():
    text = "naïve cafe\u0301s, don't! हिन्दी ❤\ufe0f2"
    words = pair_tokenizer.make("word", [text])
    parts = "naïve cafe\u0301s ￭, don ￭' ￭t ￭! हिन्दी ❤\ufe0f ￭2"
    assert [words.label(token) for token in words.encode(text)] == parts.split()


def test_the_first_word_of_a_sentence_is_the_token_that_it_is_elsewhere():
    assert KNOWN["bpe"].encode("the the") == 2 * KNOWN["bpe"].encode("the")


# batches


def test_a_batch_is_what_it_says(toy):
    for split, texts in toy.texts.items():
        numbers = torch.tensor(RNG.sample(range(len(texts)), 5))
        batch = toy.splits[split][Request(0, numbers)]
        assert batch["index"].equal(numbers)
        assert {tensor.dtype for tensor in batch.values()} == {torch.int64}
        for row, number in enumerate(numbers.tolist()):
            source = [*toy.source_tokenizer.encode(texts[number].source), EOS]
            target = [*toy.target_tokenizer.encode(texts[number].target), EOS]
            for name, tokens, fill in (
                ("source", source, PAD),
                ("target_in", [BOS, *target[:-1]], PAD),
                ("targets", target, IGNORED),
            ):
                found = batch[name][row].tolist()
                assert found == tokens + [fill] * (len(found) - len(tokens))
        assert (batch["source"][:, -1] != PAD).any()  # no longer than it must be
        assert (batch["targets"][:, -1] != IGNORED).any()


def test_sizes_are_those_of_the_longest_of_all_splits():
    long = Pair(" ".join(["cat"] * 40), " ".join(["mat"] * 30))
    data = Toy({"train": TRAINING, "val": TRAINING[:3], "test": [long]})
    data.setup()
    vocabularies = (data.source_tokenizer.vocab_size, data.target_tokenizer.vocab_size)
    assert data.sizes.arguments() == dict(zip(SIZES, (*vocabularies, 41, 31, False), strict=True))


def test_validation_goes_through_every_pair_once_in_order_of_length(toy):
    for split, loader in {"val": toy.val_dataloader(), "test": toy.test_dataloader()}.items():
        order = list(chain.from_iterable(batch["index"].tolist() for batch in loader))
        assert sorted(order) == list(range(toy.length(split)))
        lengths = [len(toy.source_tokenizer.encode(toy.texts[split][n].source)) for n in order]
        assert lengths == sorted(lengths)


# what is dropped


def test_what_is_dropped_is_said(capsys):
    train = [Pair("a", "b"), Pair("", "b"), Pair("a a a a", "b"), Pair("a", "b b b"), Pair("a", "")]
    data = Toy({"train": train, "val": train, "test": train}, max_length=2, batch_size=1)
    data.setup()
    assert data.texts == {"train": [train[0]], "val": [train[n] for n in (0, 2, 3)], "test": train}
    assert data.numbers == {"train": [0], "val": [0, 2, 3], "test": [0, 1, 2, 3, 4]}
    where = "the first is example 2 of the"
    assert capsys.readouterr().out.splitlines() == [
        f"ablate: training pairs: 2 with an empty side, dropped; {where} train split",
        f"ablate: validation pairs: 2 with an empty side, dropped; {where} val split",
        "ablate: test pairs: 2 with an empty side, kept, so that the test stays the same; "
        f"{where} test split",
        "ablate: training pairs: 2 dropped, longer than data.max_length=2; the first is example 3 "
        "of the train split, 4 tokens",
    ]
    data.setup()
    assert not capsys.readouterr().out


def test_nothing_left_is_refused():
    for pair, line in (
        (Pair("", "b"), "the training split has no pair with text on both sides"),
        (Pair("a a a", "b"), "data.max_length=2: every training pair is longer"),
    ):
        with pytest.raises(UserError, match=line):
            Toy({"train": [pair], "val": [Pair("a", "b")]}, max_length=2).setup()


# what it is identified by


def test_the_fingerprint_is_over_content_and_split():
    kept = {"train": TRAINING[:10], "val": TRAINING[10:12]}
    same = Toy(kept, batch_size=2, seed=9, max_length=3).fingerprint()
    assert Toy(kept).fingerprint() == same
    moved = {"train": TRAINING[:9], "val": TRAINING[9:12]}
    changed = {"train": [*TRAINING[:9], Pair("other", "words")], "val": TRAINING[10:12]}
    assert len({same, Toy(moved).fingerprint(), Toy(changed).fingerprint()}) == 3


def test_other_data_is_measured_with_the_tokens_of_training(toy):
    other = Toy({"train": [Pair("new words", "the cat")], "val": [Pair("the new", "cat words")]})
    other.measure_as(toy)
    other.setup()
    assert other.sizes.source_vocab == toy.sizes.source_vocab
    batch = other.splits["val"][Request(0, torch.tensor([0]))]
    assert batch["source"].tolist() == [[*toy.source_tokenizer.encode("the"), UNKNOWN, EOS]]
    assert batch["targets"][0, 0] == toy.target_tokenizer.encode("cat")[0]


# Sequences of integers


# The places in the source of the numbers of the target.
PLACES = {
    "reverse": lambda source: list(range(len(source)))[::-1],
    "copy": lambda source: list(range(len(source))),
    "sort": lambda source: sorted(range(len(source)), key=source.__getitem__),  # stable
}
SMALL = {"train_examples": 300, "val_examples": 200, "test_examples": 150}


def numbers(text):
    return [int(number) for number in text.split()]


@pytest.mark.parametrize("name", PLACES)
def test_targets_and_the_alignment_follow_from_sources_of_all_lengths_and_numbers(name):
    data = ready(name, **SMALL, symbols=7, min_length=2, max_train_length=5, test_max_length=8)
    for split, longest in {"train": 5, "val": 8, "test": 8}.items():
        drawn = [numbers(pair.source) for pair in data.texts[split]]
        assert len(drawn) == SMALL[f"{split}_examples"]
        assert {len(sequence) for sequence in drawn} == set(range(2, longest + 1))
        assert {number for sequence in drawn for number in sequence} == set(range(7))
        for index, (source, pair) in enumerate(zip(drawn, data.texts[split], strict=True)):
            places = PLACES[name](source)
            assert numbers(pair.target) == [source[place] for place in places]
            links = [(range(to, to + 1), range(at, at + 1)) for to, at in enumerate(places)]
            assert list(data.alignment(split, index)) == links
    assert data.sizes.arguments() == dict(zip(SIZES, (11, 11, 9, 9, True), strict=True))


def test_a_number_never_drawn_has_a_token_too():
    data = ready("copy", symbols=500, train_examples=1, val_examples=1, test_examples=1)
    assert data.sizes.source_vocab == 504


# The pronouncing dictionary


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


@pytest.fixture
def small(tmp_path):
    words = [f"w{'abcdefghij'[n % 10]}{n} W {'AA1' if n % 2 else 'IY0'}\n" for n in range(200)]
    (tmp_path / "cmudict.dict").write_text(DICTIONARY + "".join(words))
    return tmp_path


def entries(root, **changes):
    return make("cmudict", root=str(root), batch_size=2, **changes).read()


def test_entries_are_read(small):
    first, more, stressed = (
        {pair for pairs in entries(small, **changes).values() for pair in pairs}
        for changes in ({}, {"variants": "all"}, {"variants": "all", "stress": True})
    )
    assert first >= {Pair("'bout", "B AW T"), Pair("aalborg", "AO L B AO R G")}
    assert len(first) == 205
    assert len(more) == 205 + 3  # record twice the same
    assert len(stressed) == 205 + 4
    assert {p.target for p in stressed if p.source == "a"} == {"AH0", "EY1"}


def test_a_split_does_not_depend_on_the_other_words(small):
    before = entries(small)
    path = small / "cmudict.dict"
    path.write_text("".join(sorted(path.read_text().splitlines(keepends=True), reverse=True)[::2]))
    for split, pairs in entries(small).items():
        assert {p.source for p in pairs} <= {p.source for p in before[split]}


@pytest.mark.parametrize(
    ("content", "line"),
    [
        ("word\n", "line 1 of cmudict.dict is not a word and its phonemes: 'word'"),
        (DICTIONARY + "x y z\n", "line 11 of cmudict.dict is not a word"),
        ("", "is empty"),
    ],
)
def test_a_line_that_is_none_is_named(tmp_path, content, line):
    (tmp_path / "cmudict.dict").write_text(content)
    with refused("data.root=", line):
        make("cmudict", root=str(tmp_path)).setup()
