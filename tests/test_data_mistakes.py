"""What a person can get wrong with data: each mistake is one line."""

import errno
import gzip
import io

import pytest
from make_files import FILES
from make_systems import list_of_systems
from omegaconf import OmegaConf

from ablate.config.keys import option_content
from ablate.config.make import make as made
from ablate.config.tree import config_file
from ablate.data import source
from ablate.errors import UserError

pytestmark = pytest.mark.usefixtures("small_files")


def refusal(name, **changes):
    """The line that the constructor says, or reading."""
    content = option_content(config_file(f"data/{name}.yaml"))[0]
    with pytest.raises(UserError) as caught:
        made(OmegaConf.merge(content, FILES[name], changes), seed=0).setup()
    assert "\n" not in str(caught.value)
    return str(caught.value)


BOTH = {"val_source": "lines.de", "val_target": "lines.en", "val_fraction": 0.1}
ONE_YEAR = {"years": [2015, 2015], "locales": ["sv_SE"], "test_examples": 100}
CENTURIES = {"years": [1900, 2099], "styles": ["short"]}
MISTAKES = [
    (
        "text",
        {"tokenizer": "bpee"},
        "must be char, byte or bpe, or hf:NAME_OR_PATH, or tiktoken:NAME; did you",
    ),
    ("text", {"vocab_size": 300}, "data.vocab_size=300: data.tokenizer=char has a fixed vocab"),
    ("text", {"tokenizer": "bpe", "vocab_size": 9000}, "allowed: 256 (the 256 bytes) to "),
    ("text", {"tokenizer": "bpe", "vocab_size": 200}, "allowed: 256 (the 256 bytes) to "),
    ("text", {"sha256": "abc"}, "data.sha256=abc: must be 64 hexadecimal digits"),
    ("text", {"sha256": "0" * 64}, "set data.sha256=null to use it anyway"),
    ("text", {"path": "txet.txt"}, "no such file; did you mean 'text.txt'?"),
    ("parallel", {"val_source": "a"}, "data.val_source=a: requires data.val_target"),
    ("parallel", {"test_target": "a"}, "data.test_target=a: requires data.test_source"),
    ("parallel", {"val_fraction": 0.5, "test_fraction": 0.5}, "leave nothing to train on"),
    ("parallel", {"val_fraction": 0.0001}, "the val split of 80 pairs would be empty"),
    ("parallel", {"test_fraction": 0.9499}, "the train split of 80 pairs would be empty"),
    ("parallel", {"tokenizer": "word", "vocab_size": 9}, "needs data.tokenizer=bpe"),
    ("parallel", {"min_count": 2}, "data.min_count=2: needs data.tokenizer=word"),
    ("parallel", {"vocab_size": 200}, "allowed: 260 (the 256 bytes and 4 special tokens) to 1024"),
    ("parallel", {"target": "text.txt"}, "data.source=lines.de has 80 lines and data.target=text"),
    ("parallel", BOTH, "data.val_fraction=0.1: data.val_source is also set; set one to null"),
    ("multi30k", {"pair": ["de", "de"]}, "two different"),
    ("multi30k", {"pair": ["de", "xx"]}, "de, en or fr"),
    ("reverse", {"min_length": 26}, "data.min_length=26: is above data.max_train_length=4"),
    ("dates", {"locales": ["xx_YY"]}, "Babel has no locale 'xx_YY'; write them as in"),
    ("dates", {"locales": ["en_USA"]}, "no locale 'en_USA'; did you mean 'en_US'"),
    ("dates", {"locales": ["zh_CN"]}, "no locale 'zh_CN'; did you mean 'zh_Hans_CN'"),
    ("dates", {"locales": ["fr_FR", "fr_FR"]}, "data.locales: names fr_FR twice"),
    ("dates", {"years": [2049, 1950]}, "must be the first year and the last"),
    ("dates", CENTURIES, "short dates of en_US (M/d/yy) can be read as other dates"),
    ("dates", ONE_YEAR, "data.test_examples=100: data.locales, data.styles"),
    ("digits", {"randaugment": "rand-m9"}, "a width of 8 pixels"),
    ("cifar10", {"randaugment": "rand-m9-x3"}, "must be null or a timm policy"),
    ("cifar10", {"repeats": 3, "batch_size": 20}, "data.batch_size=20 must be a multiple of it"),
    ("cifar10", {"flip": "yes"}, "data.flip=yes: must be true or false"),
    ("digit_strings", {"min_digits": 3}, "data.min_digits=3: is above data.max_digits=2"),
    ("digit_strings", {"max_digits": 4}, "side by side they need 32 pixels, and data.width="),
    ("digit_strings", {"height": 7}, "data.height=7"),
    ("recall", {"pairs": [40]}, "data.vocab_size=32 has only 15 keys, at least data.vocab_size=82"),
    ("recall", {"pairs": [3]}, "data.seq_len=8: 3 pairs and their queries need at least 12"),
    ("recall", {"pairs": [2, 2]}, "data.pairs=[2, 2]: duplicate number"),
    *list_of_systems("MISTAKES"),
]


@pytest.mark.ci
@pytest.mark.parametrize(("name", "changes", "line"), MISTAKES)
def test_a_value_that_cannot_be_is_refused(name, changes, line):
    assert line in refusal(name, **changes)


# The content of a text of which 16 tokens are to be read.
TEXTS = [
    (b"", "the file is empty"),
    (b"fine so far \xff\xfe", "not UTF-8 at byte offset 12 (0xff)"),
    (gzip.compress(bytes(range(97, 123)) * 9, mtime=0)[:30], "damaged gzip file"),
    (gzip.compress(b"", mtime=0), "empty inside"),
    (b"a", "1 characters, 0 are for training"),
    (b"short text", "data.seq_len=16: the train split has 9 tokens and needs at least 17"),
    (b"long" * 30, "data.seq_len=16: the val split has 12 tokens and needs at least 17"),
]


@pytest.mark.parametrize(("content", "line"), TEXTS)
def test_a_bad_text_is_refused(tmp_path, content, line):
    path = tmp_path / "t"
    path.write_bytes(content)
    assert line in refusal("text", path=str(path), seq_len=16, val_fraction=0.1)


@pytest.mark.parametrize("key", ["source", "val_source", "test_target"])
def test_a_missing_file_of_pairs_is_named_with_its_key(key):
    files = {f"{split}_{side}": "lines.de" for split in ("val", "test")
             for side in ("source", "target")}  # fmt: skip
    changes = files | {"val_fraction": None, key: "gone"}
    assert refusal("parallel", **changes).startswith(f"data.{key}=gone: no such file")


def test_a_file_without_permission_is_refused(monkeypatch):
    def denied(file, shown, key):
        raise PermissionError(13, "Permission denied", str(file))

    monkeypatch.setattr(source, "require_file", denied)
    assert "cannot be read (Permission denied)" in refusal("text")


class FailingDisk(io.FileIO):
    def read(self, size=-1):
        raise OSError(errno.EIO, "Input/output error")


@pytest.mark.parametrize("name", ["text", "mnist", "parallel"])
def test_a_disk_that_fails_is_said_with_the_file(monkeypatch, name):
    monkeypatch.setattr(source, "open", lambda file, _: FailingDisk(file), raising=False)
    line = refusal(name)
    assert line.startswith("data.")
    assert line.endswith("cannot be read (Input/output error)")


@pytest.mark.parametrize(
    "name", [name for name in FILES if isinstance(FILES[name].get("root"), str)]
)
def test_a_folder_without_the_files_is_refused(name, tmp_path):
    assert str(tmp_path) in refusal(name, root=str(tmp_path))
    line = refusal(name, root="nowhere")
    assert "data.root=nowhere" in line
    if name in ("mnist", "cifar10", "cmudict", "multi30k"):
        assert "data.root=null downloads" in line
