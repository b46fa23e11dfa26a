"""Pairs as tokens and batches: nothing is lost, nothing is added, and nothing depends on chance."""

import random
from itertools import chain, pairwise
from types import SimpleNamespace
from typing import Any

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from ablate.data import IGNORED, Request
from ablate.data.loader import POOL, Bucketed, Loader, Share, Shuffled, Stream
from ablate.data.pair_tokenizer import SPECIALS, PairTokenizer, Words, make
from ablate.data.pairs import BOS, EOS, PAD, UNKNOWN, Pair, Pairs
from ablate.errors import UserError

RNG = random.Random(0)
WORDS = ["the", "cat", "sat", "on", "a", "mat", ",", "Käse", "!", "don't"]
BPE = 280


def sentence(most: int = 12) -> str:
    return " ".join(RNG.choices(WORDS, k=RNG.randint(1, most)))


TRAINING = [Pair(sentence(), sentence()) for _ in range(60)]


class Toy(Pairs):
    """Pairs that are given, with words on both sides."""

    def __init__(self, pairs: dict[str, list[Pair]], **options: Any) -> None:
        super().__init__(**({"batch_size": 4, "seed": 0} | options))
        self.pairs = pairs

    def read(self) -> dict[str, list[Pair]]:
        return self.pairs

    def make_tokenizers(self, training: list[Pair]) -> tuple[PairTokenizer, PairTokenizer]:
        return Words(p.source for p in training), Words(p.target for p in training)


def toy(count: int = 60, **options: Any) -> Toy:
    splits = {"train": TRAINING[:count], "val": TRAINING[:7], "test": TRAINING[7:20]}
    data = Toy(splits, **options)
    data.setup()
    return data


# tokenizers


def tokenizers(texts: list[str]) -> dict[str, PairTokenizer]:
    return {
        "char": make("char", texts),
        "word": make("word", texts),
        "bpe": make("bpe", [*texts, *map(both, TRAINING)], vocab_size=BPE),
    }


def both(pair: Pair) -> str:
    return " ".join(pair)


@settings(max_examples=60, deadline=None)
@given(st.lists(st.text(), min_size=1, max_size=5))
def test_a_text_comes_back(texts: list[str]) -> None:
    for text in texts:
        for kind, tokenizer in tokenizers(texts).items():
            back = {"char": text, "word": " ".join(text.split()), "bpe": text.strip()}[kind]
            tokens = tokenizer.encode(text)
            assert tokenizer.decode(tokens) == back
            assert tokenizer.decode([BOS, *tokens, EOS, PAD, 4, 5]) == back
            assert all(len(SPECIALS) <= token < tokenizer.vocab_size for token in tokens)


@pytest.mark.parametrize("kind", ["char", "word", "bpe"])
@given(st.text())
@settings(max_examples=60, deadline=None)
def test_no_text_makes_a_special_token(kind: str, text: str) -> None:
    tokenizer = KNOWN[kind]
    for strange in (text, *SPECIALS, "<s>a</s>", ""):
        tokens = tokenizer.encode(strange)
        assert not {PAD, BOS, EOS} & set(tokens)
        assert kind != "bpe" or UNKNOWN not in tokens
        assert all(tokenizer.label(token).isprintable() for token in tokens)


KNOWN = tokenizers([both(pair) for pair in TRAINING])


def test_what_training_never_showed_is_unknown() -> None:
    assert KNOWN["word"].decode(KNOWN["word"].encode("the dog sat ,")) == "the <unk> sat ,"
    assert KNOWN["char"].decode(KNOWN["char"].encode("cñt")) == "c�t"
    assert KNOWN["bpe"].decode(KNOWN["bpe"].encode("cñt 猫")) == "cñt 猫"
    assert KNOWN["bpe"].decode([*KNOWN["bpe"].encode("cat"), UNKNOWN]) == "cat�"


@pytest.mark.parametrize("kind", ["char", "word", "bpe"])
def test_special_tokens_have_their_own_labels(kind: str) -> None:
    assert [KNOWN[kind].label(token) for token in range(4)] == list(SPECIALS)


def test_words_part_at_punctuation_and_keep_their_accents() -> None:
    words = make("word", ["naïve cafe\u0301s, don't! हिन्दी ❤\ufe0f2"])
    labels = [
        words.label(token) for token in words.encode("naïve cafe\u0301s, don't! हिन्दी ❤\ufe0f2")
    ]
    assert labels == [
        *("naïve", "cafe\u0301s", "￭,", "don", "￭'", "￭t", "￭!", "हिन्दी", "❤\ufe0f", "￭2"),
    ]  # fmt: skip


def test_the_joiner_in_a_text_is_a_sign_like_any_other() -> None:
    text = "a ￭ ￭b c￭"
    assert make("word", [text]).decode(make("word", [text]).encode(text)) == text


def test_rare_words_are_unknown() -> None:
    words = make("word", ["a a b", "b a c"], min_count=2)
    assert words.vocab_size == len(SPECIALS) + 2
    assert words.decode(words.encode("a b c")) == "a b <unk>"


@pytest.mark.parametrize("kind", ["char", "word", "bpe"])
def test_small_letters(kind: str) -> None:
    tokenizer = make(kind, ["Der KÄSE " + both(TRAINING[0])], lower=True, vocab_size=260)
    assert tokenizer.decode(tokenizer.encode("Der KÄSE")) == "der käse"


def test_the_first_word_of_a_sentence_is_the_token_that_it_is_elsewhere() -> None:
    bpe = KNOWN["bpe"]
    assert bpe.encode("the the") == 2 * bpe.encode("the")


@pytest.mark.parametrize(
    ("size", "line"),
    [
        (200, "data.vocab_size=200: bpe starts from the 256 bytes and 4 special tokens"),
        (9000, "data.vocab_size=9000: the training text gives at most"),
    ],
)
def test_a_vocabulary_that_cannot_be_is_refused(size: int, line: str) -> None:
    with pytest.raises(UserError, match=line):
        make("bpe", ["a text", "another text"], vocab_size=size)


# batches


def test_a_batch_is_what_it_says() -> None:
    data = toy()
    for split, texts in data.texts.items():
        numbers = torch.tensor(RNG.sample(range(len(texts)), 5))
        batch = data.splits[split][Request(0, numbers)]
        assert batch["index"].equal(numbers)
        assert {tensor.dtype for tensor in batch.values()} == {torch.int64}
        for row, number in enumerate(numbers.tolist()):
            source = [*data.source_tokenizer.encode(texts[number].source), EOS]
            target = [*data.target_tokenizer.encode(texts[number].target), EOS]
            rows = {name: tensor[row].tolist() for name, tensor in batch.items() if name != "index"}
            assert rows["source"][: len(source)] == source
            assert set(rows["source"][len(source) :]) <= {PAD}
            assert rows["target_in"][: len(target)] == [BOS, *target[:-1]]
            assert set(rows["target_in"][len(target) :]) <= {PAD}
            assert rows["targets"][: len(target)] == target
            assert set(rows["targets"][len(target) :]) <= {IGNORED}
        assert (batch["source"][:, -1] != PAD).any()  # no longer than it must be
        assert (batch["targets"][:, -1] != IGNORED).any()


def test_sizes_are_those_of_the_longest_of_all_splits() -> None:
    long = Pair(" ".join(["cat"] * 40), " ".join(["mat"] * 30))
    data = Toy({"train": TRAINING, "val": TRAINING[:3], "test": [long]})
    data.setup()
    assert data.sizes == {
        "source_vocab": data.source_tokenizer.vocab_size,
        "target_vocab": data.target_tokenizer.vocab_size,
        "source_length": 41,
        "target_length": 31,
        "joint": False,
    }


def test_an_example_has_its_words() -> None:
    example = toy().example(2)
    assert example["index"].tolist() == [2]
    for side in ("source", "target"):
        labels = example[f"{side}_labels"]
        text = getattr(TRAINING[2], side)
        assert labels[-1] == SPECIALS[EOS]
        assert "".join(labels[:-1]).replace("￭", "") == text.replace(" ", "")
        assert len(labels) == example["source" if side == "source" else "target_in"].shape[1]


def batches(loader: Loader) -> list[list[int]]:
    return [batch["index"].tolist() for batch in loader]


def test_validation_goes_through_every_pair_once_in_order_of_length() -> None:
    data = toy()
    for split, loader in {"val": data.val_dataloader(), "test": data.test_dataloader()}.items():
        assert loader is not None
        order = list(chain.from_iterable(batches(loader)))
        assert sorted(order) == list(range(data.length(split)))
        lengths = [len(data.source_tokenizer.encode(data.texts[split][n].source)) for n in order]
        assert lengths == sorted(lengths)


@pytest.mark.parametrize("world", [2, 4])
def test_processes_share_out_every_batch(world: int) -> None:
    alone = toy()
    shares = [toy() for _ in range(world)]
    for rank, data in enumerate(shares):
        strategy = SimpleNamespace(root_device=torch.device("cpu"))
        data.trainer = SimpleNamespace(  # type: ignore[assignment]
            global_rank=rank, world_size=world, strategy=strategy
        )
    for name in ("train_dataloader", "val_dataloader", "test_dataloader"):
        parts = [batches(getattr(data, name)()) for data in shares]
        together = [list(chain.from_iterable(part)) for part in zip(*parts, strict=True)]
        assert list(chain(*together)) == list(chain(*batches(getattr(alone, name)())))


# buckets


LENGTHS = torch.randint(1, 60, (4 * 103 * 8 + 5,), generator=torch.Generator().manual_seed(0))


def bucketed(share: Share = Share(), seed: int = 3) -> Bucketed:  # noqa: B008
    shuffled = Shuffled(len(LENGTHS), 8, seed=seed, share=share)
    return Bucketed(shuffled, LENGTHS, seed=seed)


def epoch(order: Bucketed, number: int) -> list[list[int]]:
    indices = order.of_epoch(number)
    return [indices(batch).tolist() for batch in range(len(order))]


def test_an_epoch_takes_every_example_once_but_for_the_last_incomplete_batch() -> None:
    seen = list(chain.from_iterable(epoch(bucketed(), 0)))
    assert len(seen) == len(set(seen)) == len(LENGTHS) // 8 * 8
    assert {len(batch) for batch in epoch(bucketed(), 0)} == {8}


def test_the_lengths_in_a_batch_are_close() -> None:
    def spread(batches: list[list[int]]) -> float:
        ranges = [int(LENGTHS[b].max() - LENGTHS[b].min()) for b in batches]
        return sum(ranges) / len(ranges)

    plain = Shuffled(len(LENGTHS), 8, seed=3, share=Share()).of_epoch(0)
    shuffled = [plain(number).tolist() for number in range(len(bucketed()))]
    assert spread(epoch(bucketed(), 0)) < 59 / POOL + 1 < spread(shuffled) / 10


def test_short_and_long_batches_come_in_no_order() -> None:
    first = [int(LENGTHS[batch].max()) for batch in epoch(bucketed(), 0)]
    rising = sum(a <= b for a, b in pairwise(first)) / len(first)
    assert 0.4 < rising < 0.6


def test_every_seed_and_epoch_has_its_own_batches_and_always_the_same() -> None:
    seen = {str(epoch(bucketed(seed=seed), n)) for seed in (0, 1) for n in (0, 1, 2)}
    assert len(seen) == 6
    order = bucketed()
    epoch(order, 0)
    assert epoch(order, 2) == epoch(bucketed(), 2)


class Numbers(torch.utils.data.Dataset[dict[str, torch.Tensor]]):
    def __getitem__(self, request: Request) -> dict[str, torch.Tensor]:
        return {"index": request.indices}


@pytest.mark.parametrize("start", [0, 1, 411, 412, 413, 700])
@pytest.mark.parametrize("workers", [0, 2])
def test_a_stream_of_buckets_resumes_anywhere(start: int, workers: int) -> None:
    if workers and start not in (1, 412):
        pytest.skip("processes take a while to start")
    assert len(bucketed()) == 412
    whole = [*epoch(bucketed(), 0), *epoch(bucketed(), 1)]
    loader = Loader(Numbers(), Stream(bucketed(), 2 * 412), workers=workers)
    loader.load_state_dict({"batch": start})
    assert batches(loader) == whole[start:]


@pytest.mark.parametrize("world", [2, 4])
def test_processes_share_out_every_bucket(world: int) -> None:
    parts = [
        batches(Loader(Numbers(), Stream(bucketed(Share(rank, world)), 500)))
        for rank in range(world)
    ]
    together = [list(chain.from_iterable(part)) for part in zip(*parts, strict=True)]
    assert together == batches(Loader(Numbers(), Stream(bucketed(), 500)))


def test_fewer_pairs_than_a_batch_are_refused() -> None:
    with pytest.raises(UserError, match=r"data\.batch_size=64: the training split has only 60"):
        toy(batch_size=64).train_dataloader()


# what is dropped


def test_what_is_dropped_is_said(capsys: pytest.CaptureFixture[str]) -> None:
    train = [Pair("a", "b"), Pair("", "b"), Pair("a a a a", "b"), Pair("a", "b b b"), Pair("a", "")]
    data = Toy({"train": train, "val": train, "test": train}, max_length=2, batch_size=1)
    data.setup()
    assert data.texts == {"train": [train[0]], "val": [train[n] for n in (0, 2, 3)], "test": train}
    assert data.numbers == {"train": [0], "val": [0, 2, 3], "test": [0, 1, 2, 3, 4]}
    lines = capsys.readouterr().out.splitlines()
    where = "the first is example 2 of the"
    assert lines == [
        f"ablate: training pairs: 2 with an empty side, dropped; {where} train split",
        f"ablate: validation pairs: 2 with an empty side, dropped; {where} val split",
        "ablate: test pairs: 2 with an empty side, kept, so that the test stays the same; "
        f"{where} test split",
        "ablate: training pairs: 2 dropped, longer than data.max_length=2; the first is example 3 "
        "of the train split, 4 tokens",
    ]
    data.setup()
    assert not capsys.readouterr().out


def test_without_a_limit_nothing_is_dropped_and_nothing_said(
    capsys: pytest.CaptureFixture[str],
) -> None:
    for options in ({}, {"max_length": 100}):
        assert toy(**options).texts["train"] == TRAINING
    assert not capsys.readouterr().out


@pytest.mark.parametrize(
    ("train", "line"),
    [
        ([Pair("", "b")], "the training split has no pair with text on both sides"),
        ([Pair("a a a", "b")], "data.max_length=2: every training pair is longer"),
    ],
)
def test_nothing_left_is_refused(train: list[Pair], line: str) -> None:
    with pytest.raises(UserError, match=line):
        Toy({"train": train, "val": [Pair("a", "b")]}, max_length=2).setup()


@pytest.mark.parametrize("length", [0, 1.5, True, "4"])
def test_a_length_that_is_none_is_refused(length: object) -> None:
    with pytest.raises(UserError, match=r"data.max_length=.*whole number"):
        Toy({}, max_length=length)


# what it is identified by


def test_the_fingerprint_is_over_content_and_split() -> None:
    kept = {"train": TRAINING[:10], "val": TRAINING[10:12]}
    same = Toy(kept, batch_size=2, seed=9, max_length=3).fingerprint()
    assert Toy(kept).fingerprint() == same
    moved = {"train": TRAINING[:9], "val": TRAINING[9:12]}
    changed = {"train": [*TRAINING[:9], Pair("other", "words")], "val": TRAINING[10:12]}
    assert len({same, Toy(moved).fingerprint(), Toy(changed).fingerprint()}) == 3


def test_other_data_is_measured_with_the_tokens_of_training() -> None:
    trained = toy()
    other = Toy({"train": [Pair("new words", "the cat")], "val": [Pair("the new", "cat words")]})
    other.measure_as(trained)
    other.setup()
    assert other.sizes["source_vocab"] == trained.sizes["source_vocab"]
    batch = other.splits["val"][Request(0, torch.tensor([0]))]
    assert batch["source"].tolist() == [[*trained.source_tokenizer.encode("the"), UNKNOWN, EOS]]
    assert batch["targets"][0, 0] == trained.target_tokenizer.encode("cat")[0]


def test_a_typical_batch_is_as_long_as_pairs_are_on_average() -> None:
    data = toy(max_length=9)
    batch, pairs = data.typical_batch(), data.texts["train"]
    sources = [len(data.source_tokenizer.encode(pair.source)) + 1 for pair in pairs]
    targets = [len(data.target_tokenizer.encode(pair.target)) + 1 for pair in pairs]
    assert len(set(sources)) > 1
    for name, lengths in (("source", sources), ("target_in", targets)):
        assert batch[name].shape == (data.batch_size, round(sum(lengths) / len(lengths)))
        assert (batch[name] != PAD).all()
