"""Data: tokenizers, files, splits, lengths."""

from ablate.config.facts import SERIES
from ablate.config.rules import Conflict

DATA: list[Conflict] = [
    Conflict(
        lambda c: c("data.vocab_size") is not None and c("data.tokenizer") != "bpe",
        "data.vocab_size={data.vocab_size}: data.tokenizer={data.tokenizer} takes what it finds;"
        " use data.tokenizer=bpe, or data.vocab_size=null",
    ),
    Conflict(
        lambda c: c("data.min_count") > 1 and c("data.tokenizer") != "word",
        "data.min_count={data.min_count} has no effect with data.tokenizer={data.tokenizer}; use"
        " data.tokenizer=word, or data.min_count=1",
    ),
    Conflict(
        lambda c: (c("data.val_source") is None) != (c("data.val_target") is None),
        "data.val_source={data.val_source} and data.val_target={data.val_target}: set both, or"
        " neither",
    ),
    Conflict(
        lambda c: (c("data.test_source") is None) != (c("data.test_target") is None),
        "data.test_source={data.test_source} and data.test_target={data.test_target}: set both, or"
        " neither",
    ),
    Conflict(
        lambda c: c("data.val_fraction") is not None and c("data.val_source") is not None,
        "data.val_fraction={data.val_fraction} has no effect beside data.val_source; set one null",
    ),
    Conflict(
        lambda c: c("data.test_fraction") is not None and c("data.test_source") is not None,
        "data.test_fraction={data.test_fraction} has no effect beside data.test_source; set one"
        " null",
    ),
    Conflict(
        lambda c: len(set(c("data.pair"))) == 1,
        "data.pair={data.pair}: must be two different languages",
    ),
    Conflict(
        lambda c: c("data.min_length") > min(c("data.max_train_length"), c("data.test_max_length")),
        "data.min_length={data.min_length} is above data.max_train_length={data.max_train_length}"
        " or data.test_max_length={data.test_max_length}",
    ),
    Conflict(
        lambda c: c("data.min_digits") > c("data.max_digits"),
        "data.min_digits={data.min_digits} is above data.max_digits={data.max_digits}",
    ),
    Conflict(
        lambda c: 8 * c("data.max_digits") > c("data.width"),
        "data.width={data.width} is too narrow for data.max_digits={data.max_digits} side by side,"
        " 8 pixels each",
    ),
    Conflict(
        lambda c: c.kind == SERIES and c("data.columns") is not None and c("data.path") is None,
        "data.columns={data.columns}: the sunspots have one column; set data.path=FILE, or"
        " data.columns=null",
    ),
    Conflict(
        lambda c: (c("data.period") or 0) > c("data.window"),
        "data.window={data.window}: the seasonal naive forecast repeats the last"
        " data.period={data.period} values, so the window must hold as many",
    ),
    Conflict(
        lambda c: (
            c.kind == SERIES and (c("data.val_fraction") or 0) + (c("data.test_fraction") or 0) >= 1
        ),
        "data.val_fraction={data.val_fraction} and data.test_fraction={data.test_fraction} leave"
        " nothing to train on",
    ),
]
