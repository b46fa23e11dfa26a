"""Masked text: shares, segments, passes, and that what is hidden is nowhere to be read."""

from math import sqrt

import numpy as np
import pytest
import torch
from make_data import make

from ablate.data import Request
from ablate.data.masked import Masked, MaskedText, WithSpecials, uniform
from ablate.errors import UserError

PUBLISHED = {"next_sentence": True, "mask_rate": 0.15, "mask_share": 0.8, "random_share": 0.1}
LENGTH = 64


def masked(seed=0, **changes):
    """pydoc, cut for BERT; changes: of the data and of what is masked."""
    of_task = {key: changes.pop(key, value) for key, value in PUBLISHED.items()}
    data = make("pydoc", seed=seed, seq_len=LENGTH, **changes)
    data.task_settings = Masked(**of_task)
    data.setup()
    return data


def batch(data, rows=400, *, epoch=0, split="train"):
    return data.splits[split][Request(epoch, torch.arange(rows) * 7)]


def restored(examples):
    """The tokens with what was hidden put back."""
    return examples["tokens"].scatter(1, examples["positions"], examples["targets"])


def assert_share(hits, share):
    """Within four standard deviations of as many independent draws."""
    assert abs(hits.float().mean() - share) < 4 * sqrt(share * (1 - share) / hits.numel())


@pytest.fixture(scope="module")
def pairs():
    return masked()


@pytest.fixture(scope="module")
def singles():
    return masked(next_sentence=False)


# What is hidden


def test_the_published_shares(pairs):
    examples, special = batch(pairs, 1000), pairs.tokenizer
    assert examples["targets"].shape == (1000, round(0.15 * 61))
    read = examples["tokens"].gather(1, examples["positions"])
    hidden, changed = read == special.mask, read != examples["targets"]
    assert_share(hidden, 0.8)
    assert_share(changed & ~hidden, 0.1 * (1 - 1 / special.text_size))
    assert_share(~changed, 0.1 * (1 + 1 / special.text_size))


def test_another_token_is_any_of_the_text():
    data = masked(mask_share=0.0, random_share=1.0)
    examples, size = batch(data, 1000), data.tokenizer.text_size
    counts = examples["tokens"].gather(1, examples["positions"]).flatten().bincount()
    assert len(counts) == size  # and none is special
    expected = counts.sum() / size
    # Chi-squared: its mean is the degrees of freedom, its variance twice that.
    chi = ((counts - expected) ** 2 / expected).sum()
    assert abs(chi - (size - 1)) < 4 * sqrt(2 * (size - 1))


def test_every_position_is_masked_equally_often(singles):
    counts = batch(singles, 2000)["positions"].flatten().bincount(minlength=LENGTH)
    assert counts[0] == counts[-1] == 0  # [CLS] and [SEP]
    share = round(0.15 * 62) / 62
    assert ((counts[1:-1] / 2000 - share).abs() < 4.5 * sqrt(share * (1 - share) / 2000)).all()


def test_where_nothing_is_predicted_the_text_is_read_as_it_is(singles):
    starts = torch.arange(400)[:, None] * 7 + torch.arange(62)
    text = singles.tokens["train"][starts].long()
    assert torch.equal(restored(batch(singles))[:, 1:-1], text)
    # Validation reads the split once.
    read = torch.cat([restored(examples)[:, 1:-1] for examples in singles.val_dataloader()])
    tokens = singles.tokens["val"]
    assert len(tokens) - read.numel() < 62
    assert torch.equal(read.flatten(), tokens[: read.numel()].long())


# Passes, seeds, batches


def same(first, second):
    return all(torch.equal(first[key], second[key]) for key in first)


def test_each_training_pass_hides_others_and_the_seed_repeats_them(pairs):
    second, other = batch(pairs, epoch=1), masked(seed=5)
    assert same(second, batch(masked(), epoch=1))
    for examples in (batch(pairs), batch(other, epoch=1)):
        assert not torch.equal(second["positions"], examples["positions"])
    assert same(batch(pairs, 50, split="val"), batch(other, 50, epoch=3, split="val"))


def test_an_example_does_not_depend_on_its_batch(pairs):
    whole = batch(pairs, 9)
    for row in range(9):
        alone = pairs.splits["train"][Request(0, torch.tensor([7 * row]))]
        assert same({key: value[row : row + 1] for key, value in whole.items()}, alone)


def test_numbers_are_splitmix64s():
    """Against the published sequence of seed 1234567, in integers of Python."""
    state, expected = 1234567, []
    for _ in range(6):
        state = (state + 0x9E3779B97F4A7C15) % 2**64
        x = ((state ^ (state >> 30)) * 0xBF58476D1CE4E5B9) % 2**64
        x = ((x ^ (x >> 27)) * 0x94D049BB133111EB) % 2**64
        expected.append(x ^ (x >> 31))
    assert expected[0] == 6457827717110365317
    found = uniform(1234567, torch.arange(3), 2).flatten().numpy()
    assert np.allclose(found, np.array(expected) / 2**64, rtol=0, atol=2**-52)


# Pairs


def test_half_of_the_second_segments_follow_and_are_said_to(pairs):
    examples, sep = batch(pairs, 2000), pairs.tokenizer.sep
    assert_share(examples["next"] == 0, 0.5)
    text = pairs.tokens["train"].long()
    for start, tokens, following, segments in zip(
        range(0, 14_000, 7), restored(examples), examples["next"], examples["segments"], strict=True
    ):
        first = int((tokens == sep).nonzero()[0]) - 1
        assert torch.equal(tokens[1 : first + 1], text[start : start + first])
        follows = torch.equal(tokens[first + 2 : -1], text[start + first : start + 61])
        assert follows == (following == 0)
        assert segments.tolist() == [0] * (first + 2) + [1] * (62 - first)  # 0: the first [SEP]


def test_the_first_segment_ends_anywhere_in_the_middle_half(pairs):
    lengths = LENGTH - 2 - batch(pairs, 5000)["segments"].sum(1)
    assert set(lengths.tolist()) == set(range(15, 47))
    assert abs(lengths.float().mean() - 30.5) < 0.6


def test_elsewhere_is_anywhere_but_near():
    """In a text whose tokens are their own places."""
    count, size = 1000, 29

    class Places(WithSpecials):
        def __init__(self):
            self.text_size, self.vocab_size = count, count + 3
            self.cls, self.sep, self.mask = range(count, count + 3)

    shown = Masked(next_sentence=True, mask_rate=0.02, mask_share=0.0, random_share=0.0)
    options = {"step": 1, "seq_len": 32, "tokenizer": Places(), "seed": 0}
    data = MaskedText(torch.arange(count), masked=shown, **options)
    assert len(data) == count - size + 1
    starts = torch.arange(len(data)).repeat(20)
    found = [data[Request(epoch, torch.arange(len(data)))] for epoch in range(20)]
    joined = {key: torch.cat([one[key] for one in found]) for key in found[0]}
    away = joined["next"] == 1
    last = joined["tokens"][:, -2][away]  # of the second segment
    begins = last - joined["segments"].sum(1)[away] + 2
    assert (begins >= 0).all()
    assert ((begins >= starts[away] + size) | (last < starts[away])).all()
    counts = begins.bincount(minlength=len(data))
    assert (counts > 0).float().mean() > 0.99
    assert counts[100:-100].float().std() < 1.3 * counts.float().mean().sqrt()


# Tokens


def test_special_tokens_in_what_a_person_types_and_not_in_the_text(pairs, singles):
    special = pairs.tokenizer
    typed = special.encode("a[MASK]b[SEP]")
    a, b = special.plain.encode("a")[0], special.plain.encode("b")[0]
    assert typed == [a, special.mask, b, special.sep]
    assert special.decode([special.cls, *typed]) == "[CLS]a[MASK]b[SEP]"
    assert list(special.array("[CLS]")) == special.plain.encode("[CLS]")
    own = pairs.from_text("a[MASK]c[SEP]d")
    assert own["labels"] == ["[CLS]", "a", "[MASK]", "c", "[SEP]", "d", "[SEP]"]
    assert own["positions"].tolist() == [[2]]
    assert own["segments"].tolist() == [[0, 0, 0, 0, 0, 1, 1]]
    assert "segments" not in singles.from_text("a")


def test_a_text_too_short_for_an_elsewhere_is_refused():
    with pytest.raises(UserError, match=r"data.seq_len=64: the val split has .*at least 192"):
        masked(val_fraction=0.0003)
    masked(val_fraction=0.0003, next_sentence=False)
