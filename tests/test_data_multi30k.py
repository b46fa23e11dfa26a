"""Multi30k from local files and from a server, and one line where there is neither."""

import gzip
import hashlib
import threading
from collections.abc import Iterator
from functools import partial
from http.server import SimpleHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from typing import Any

import pytest
from make_data import make

from ablate.data import multi30k
from ablate.data.multi30k import Multi30k
from ablate.errors import UserError


def data(root: Path | None, **changes: Any) -> Multi30k:
    options = {"tokenizer": "word", "vocab_size": None, "batch_size": 2} | changes
    made = make("multi30k", root=root and str(root), **options)
    assert isinstance(made, Multi30k)
    return made


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    """The files, of a few lines each."""
    made = tmp_path / "files"
    made.mkdir()
    for name in multi30k.SHA256:
        language = name.split(".")[1]
        lines = [f"{language} {name} {n}\n" for n in range(6)]
        (made / name).write_bytes(gzip.compress("".join(lines).encode()))
    return made


def refusal(made: Multi30k) -> str:
    with pytest.raises(UserError) as caught:
        made.setup()
    assert "\n" not in str(caught.value)
    return str(caught.value)


@pytest.mark.slow
def test_the_real_files(shared_data: Path) -> None:
    root = shared_data / "multi30k"
    made = data(root, tokenizer="bpe", vocab_size=8000)
    made.setup()
    assert {split: len(pairs) for split, pairs in made.texts.items()} == {
        "train": 29_000,
        "val": 1_014,
        "test": 1_000,
    }
    assert made.sizes["source_vocab"] == made.sizes["target_vocab"] == 8000
    pair = made.texts["test"][0]
    assert pair.target == "a man in an orange hat starring at something."
    for side in ("source", "target"):
        tokenizer = getattr(made, f"{side}_tokenizer")
        for example in made.texts["test"]:
            text = getattr(example, side)
            assert tokenizer.decode(tokenizer.encode(text)) == text
    for name, expected in multi30k.SHA256.items():
        assert hashlib.sha256((root / name).read_bytes()).hexdigest() == expected


@pytest.mark.parametrize("pair", [["de", "en"], ["en", "fr"], ["fr", "de"]])
def test_each_pair_of_languages(folder: Path, pair: list[str]) -> None:
    made = data(folder, pair=pair)
    made.setup()
    for split, name in {"train": "train", "val": "val", "test": "test_2016_flickr"}.items():
        assert made.texts[split][3] == tuple(f"{x} {name}.{x}.gz 3" for x in pair)


def test_long_captions_are_named_by_their_line(
    folder: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    lines = [f"de {n}\n" for n in range(5)] + ["ein " * 9 + "\n"]
    (folder / "train.de.gz").write_bytes(gzip.compress("".join(lines).encode()))
    data(folder, max_length=8).setup()
    said = capsys.readouterr().out
    assert "1 dropped, longer than data.max_length=8; the first is line 6 of train.de and" in said
    assert "train.en, 9 tokens" in said


def test_plain_files_do_as_well(folder: Path) -> None:
    packed = data(folder).fingerprint()
    for path in list(folder.iterdir()):
        path.with_suffix("").write_bytes(gzip.decompress(path.read_bytes()))
        path.unlink()
    assert data(folder).fingerprint() == packed
    assert data(folder, pair=["en", "de"]).fingerprint() != packed


class Quiet(SimpleHTTPRequestHandler):
    def log_message(self, *args: Any) -> None:
        pass


@pytest.fixture
def server(
    folder: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> Iterator[ThreadingHTTPServer]:
    """Gives out the files as the official address does; the cache is empty."""
    monkeypatch.setenv("ABLATE_CACHE", str(tmp_path / "cache"))
    monkeypatch.setenv("NO_PROXY", "127.0.0.1")
    monkeypatch.setenv("no_proxy", "127.0.0.1")
    sums = {path.name: hashlib.sha256(path.read_bytes()).hexdigest() for path in folder.iterdir()}
    monkeypatch.setattr(multi30k, "SHA256", sums)
    handler = partial(Quiet, directory=str(folder))
    with ThreadingHTTPServer(("127.0.0.1", 0), handler) as running:
        monkeypatch.setattr(multi30k, "URL", f"http://127.0.0.1:{running.server_port}/")
        threading.Thread(target=running.serve_forever, daemon=True).start()
        yield running
        running.shutdown()


def test_a_download_is_the_same_and_is_kept(server: ThreadingHTTPServer, folder: Path) -> None:
    local = data(folder).fingerprint()
    assert data(None).fingerprint() == local
    server.shutdown()
    server.server_close()
    assert data(None).fingerprint() == local


def test_a_download_that_is_another_file_is_refused(
    server: ThreadingHTTPServer, folder: Path
) -> None:
    (folder / "val.en.gz").write_bytes(gzip.compress(b"other\n"))
    line = refusal(data(None))
    assert line.startswith(f"cannot download {multi30k.URL}val.en.gz (what came does not have the")
    assert line.endswith("data.root=FOLDER uses a local copy")


def test_no_network_is_one_line(server: ThreadingHTTPServer) -> None:
    server.shutdown()
    server.server_close()
    line = refusal(data(None))
    assert line.startswith(f"cannot download {multi30k.URL}train.de.gz (no answer from the network")
    assert line.endswith("data.root=FOLDER uses a local copy")


def test_mistakes_are_one_line(folder: Path, tmp_path: Path) -> None:
    assert "no such folder; data.root=null downloads" in refusal(data(tmp_path / "none"))
    (folder / "val.de.gz").write_bytes(gzip.compress(b"one\ntwo\n"))
    line = refusal(data(folder))
    assert "val.de has 2 lines and val.en has 6" in line
    (folder / "val.de.gz").unlink()
    assert "val.de.gz: no such file" in refusal(data(folder))
    for pair, said in {("de", "de"): "two different", ("de", "xx"): "de, en or fr"}.items():
        with pytest.raises(Exception, match="Error in call") as caught:
            data(folder, pair=list(pair))
        assert said in str(caught.value.__cause__)
