"""What a person can get wrong with a text: each mistake is one line."""

import gzip
from pathlib import Path
from typing import Any

import pytest
from make_data import make
from test_data_text import POEM, poem, text

from ablate.config.rules import Either, OneOf
from ablate.config.stated import parameter_rules
from ablate.data.text import TextData
from ablate.data.tokenizer import TOKENIZERS
from ablate.errors import UserError

__all__ = ["poem"]  # the fixture


def refusal(data: TextData) -> str:
    with pytest.raises(UserError) as caught:
        data.setup()
    assert "\n" not in str(caught.value)
    return str(caught.value)


def refused(name: str, **changes: Any) -> str:
    """The line a bad value gets; Hydra wraps what a constructor raises."""
    with pytest.raises(Exception, match="Error in call") as caught:
        make(name, **changes)
    assert isinstance(caught.value.__cause__, UserError)
    assert "\n" not in str(caught.value.__cause__)
    return str(caught.value.__cause__)


@pytest.mark.parametrize(
    ("content", "line"),
    [
        (b"", "the file is empty"),
        (b"fine so far \xff\xfe", "not UTF-8 at byte offset 12 (0xff)"),
        (gzip.compress(POEM.encode(), mtime=0)[:60], "damaged gzip file"),
        (gzip.compress(b"", mtime=0), "empty inside"),
        (b"a", "1 characters gives 0 to training"),
        (b"short text", "data.seq_len=16: the train split has 9 tokens and needs at least 17"),
        (b"long" * 30, "data.seq_len=16: the val split has 12 tokens and needs at least 17"),
    ],
)
def test_a_bad_file_is_refused(tmp_path: Path, content: bytes, line: str) -> None:
    (tmp_path / "t").write_bytes(content)
    assert line in refusal(text(tmp_path / "t"))


def test_a_missing_file_is_refused_with_the_nearest_name(poem: Path) -> None:
    assert "no such file; did you mean 'poem.txt'?" in refusal(text(poem.with_name("pome.txt")))
    assert "is a folder" in refusal(text(poem.parent))
    with pytest.raises(UserError, match="no such file"):
        text(poem.with_name("pome.txt")).fingerprint()


def test_a_file_without_permission_is_refused(poem: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def denied(path: Path) -> bytes:
        raise PermissionError(13, "Permission denied", str(path))

    monkeypatch.setattr(Path, "read_bytes", denied)
    assert "cannot be read (Permission denied)" in refusal(text(poem))


def test_a_local_file_is_checked_against_the_sha256(poem: Path) -> None:
    line = refusal(text(poem, sha256="0" * 64))
    assert "is not the file with data.sha256=0000" in line
    assert "set data.sha256=null to use it anyway" in line


def test_more_bpe_tokens_than_the_text_gives_are_refused(poem: Path) -> None:
    assert "data.vocab_size=9000: the training text gives at most" in refusal(
        text(poem, tokenizer="bpe", vocab_size=9000)
    )


@pytest.mark.parametrize(
    ("changes", "line"),
    [
        (
            {"tokenizer": "bpee"},
            "data.tokenizer=bpee: must be char, byte or bpe, or hf:NAME_OR_PATH; did you",
        ),
        ({"vocab_size": 300}, "data.vocab_size=300: data.tokenizer=char has a fixed vocabulary"),
        ({"tokenizer": "bpe", "vocab_size": 0}, "data.vocab_size=0: must be a whole number"),
        ({"seq_len": 0}, "data.seq_len=0: must be a whole number of at least 1"),
        ({"seq_len": "many"}, "data.seq_len=many: must be a whole number"),
        ({"batch_size": 2.5}, "data.batch_size=2.5: must be a whole number"),
        ({"val_fraction": 1}, "data.val_fraction=1: must be a number more than 0 and"),
        ({"val_fraction": True}, "data.val_fraction=true: must be a number more than 0 and"),
        ({"sha256": "abc"}, "data.sha256=abc: must be 64 hexadecimal digits"),
        ({"path": None}, "data.path=None: must be a text file or a URL"),
    ],
)
def test_a_bad_value_is_refused(changes: dict[str, Any], line: str) -> None:
    assert line in refused("text", **{"path": "x", **changes})
    if "path" not in changes and "sha256" not in changes:
        assert line in refused("pydoc", **changes)


def test_the_command_line_knows_every_tokenizer() -> None:
    rule = parameter_rules(TextData)["tokenizer"]
    assert isinstance(rule, Either)
    own, theirs = rule.rules
    assert isinstance(own, OneOf)
    assert set(own.options) == {*TOKENIZERS}
    assert theirs.allows("hf:gpt2")
    assert not theirs.allows("hf:")


def test_bpe_needs_room_for_the_bytes(poem: Path) -> None:
    assert "starts from the 256 bytes" in refusal(text(poem, tokenizer="bpe", vocab_size=200))
