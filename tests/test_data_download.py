"""Downloads: from a server on this machine, kept, checked, and refused in one line."""

import gzip
import hashlib
import socket
import threading
from functools import partial
from http.server import SimpleHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from typing import Any

import make_files
import pytest
from make_data import make

from ablate.data import multi30k, source
from ablate.data.multi30k import Multi30k
from ablate.data.text import Text
from ablate.errors import UserError

CONTENT = ("To be, or not to be, that is the question.\n" * 50).encode()
SHA256 = hashlib.sha256(CONTENT).hexdigest()


class Quiet(SimpleHTTPRequestHandler):
    def log_message(self, *args: Any) -> None:
        pass


@pytest.fixture(autouse=True)
def own_cache(tmp_path, monkeypatch):
    monkeypatch.setenv("ABLATE_CACHE", str(tmp_path / "cache"))
    monkeypatch.setenv("NO_PROXY", "127.0.0.1")
    monkeypatch.setenv("no_proxy", "127.0.0.1")
    return tmp_path / "cache"


@pytest.fixture
def server(tmp_path):
    folder = tmp_path / "served"
    folder.mkdir()
    (folder / "hamlet.txt").write_bytes(CONTENT)
    handler = partial(Quiet, directory=str(folder))
    with ThreadingHTTPServer(("127.0.0.1", 0), handler) as running:
        threading.Thread(target=running.serve_forever, daemon=True).start()
        yield running
        running.shutdown()


def url(server, name="hamlet.txt"):
    return f"http://127.0.0.1:{server.server_port}/{name}"


def text(path, **changes):
    data = make("text", path=path, seq_len=16, **changes)
    assert isinstance(data, Text)
    return data


def refusal(data):
    with pytest.raises(UserError) as caught:
        data.setup()
    assert "\n" not in str(caught.value)
    return str(caught.value)


@pytest.fixture
def any_scheme(monkeypatch):
    """As if the server on this machine spoke https."""
    monkeypatch.setattr(source, "PLAIN", "no scheme")


@pytest.mark.usefixtures("any_scheme")
@pytest.mark.parametrize("sha256", [SHA256, None])
def test_a_download_is_kept(server, sha256, capfd):
    first = text(url(server), sha256=sha256)
    first.setup()
    assert "100%" in capfd.readouterr().err  # the progress bar
    server.shutdown()
    server.server_close()
    second = text(url(server), sha256=sha256)
    second.setup()
    assert first.texts == second.texts
    assert "".join(second.texts.values()).encode() == CONTENT


def test_the_fingerprint_does_not_need_the_download(server):
    data = text(url(server), sha256=SHA256)
    server.shutdown()
    before = data.fingerprint()
    local = Path(str(server.RequestHandlerClass.keywords["directory"])) / "hamlet.txt"
    assert before == text(str(local)).fingerprint()
    assert before == text(str(local), sha256=SHA256).fingerprint()


@pytest.mark.usefixtures("any_scheme")
def test_a_download_without_sha256_has_the_fingerprint_of_its_content(server):
    assert text(url(server)).fingerprint() == text(url(server), sha256=SHA256).fingerprint()


def test_a_wrong_sha256_is_refused_and_not_kept(server, own_cache):
    line = refusal(text(url(server), sha256="0" * 64))
    assert url(server) in line
    assert "does not have data.sha256=000" in line
    assert not [path for path in own_cache.iterdir() if path.suffix == ".txt"]


def test_a_damaged_copy_is_downloaded_again(server, own_cache):
    text(url(server), sha256=SHA256).setup()
    (kept,) = (path for path in own_cache.iterdir() if path.suffix == ".txt")
    kept.write_bytes(CONTENT[:100])
    text(url(server), sha256=SHA256).setup()
    assert kept.read_bytes() == CONTENT


def test_no_more_than_the_limit_is_downloaded(server, own_cache, monkeypatch):
    monkeypatch.setattr(source, "LARGEST", len(CONTENT))
    monkeypatch.delenv(source.LIMIT, raising=False)
    text(url(server), sha256=SHA256).setup()
    monkeypatch.setattr(source, "LARGEST", len(CONTENT) - 1)
    monkeypatch.setenv("ABLATE_CACHE", str(own_cache / "other"))
    line = refusal(text(url(server), sha256=SHA256))
    assert f"{url(server)}: holds more than" in line
    assert source.LIMIT in line
    assert [path.name for path in (own_cache / "other").iterdir()] == ["download.lock"]


def test_no_network_is_one_line():
    with socket.socket() as closed:
        closed.bind(("127.0.0.1", 0))
        dead = f"http://127.0.0.1:{closed.getsockname()[1]}/hamlet.txt"
    line = refusal(text(dead, sha256=SHA256))
    assert line.startswith(f"cannot download {dead} (no answer from the network")
    assert line.endswith("data.path=FILE uses a local copy")


def test_a_missing_page_is_one_line_without_its_password(server):
    place = url(server, "macbeth.txt?key=t0ken").replace("//", "//me:pa55word@")
    line = refusal(text(place, sha256=SHA256))
    assert f"{url(server, 'macbeth.txt')} (the server answered: 404" in line
    assert "data.path=FILE" in line
    assert "t0ken" not in line
    assert "pa55word" not in line


def test_http_needs_a_sha256(server, own_cache):
    assert "only https:// is downloaded" in refusal(text(url(server)))
    assert not own_cache.exists()


def test_a_redirection_to_http_needs_a_sha256(server, own_cache, monkeypatch):
    """The first answer, which stands for one over https, leads to localhost."""
    target = url(server).replace("127.0.0.1", "localhost")

    class Redirect(Quiet):
        def do_GET(self) -> None:
            self.send_response(302)
            self.send_header("Location", target)
            self.end_headers()

    monkeypatch.setattr(source, "PLAIN", "http://localhost")
    monkeypatch.setenv("NO_PROXY", "127.0.0.1,localhost")
    monkeypatch.setenv("no_proxy", "127.0.0.1,localhost")
    with ThreadingHTTPServer(("127.0.0.1", 0), Redirect) as first:
        threading.Thread(target=first.serve_forever, daemon=True).start()
        line = refusal(text(url(first)))
        first.shutdown()
    assert f"the server redirects to {target}, which is not https://" in line
    assert not [path for path in own_cache.iterdir() if path.suffix == ".txt"]


# Multi30k


@pytest.fixture
def captions(server, tmp_path, monkeypatch):
    """Files of a few lines, which the server gives out as the official address does."""
    monkeypatch.chdir(tmp_path / "served")
    make_files.write_pairs()
    folder = tmp_path / "served" / "multi30k"
    sums = {path.name: hashlib.sha256(path.read_bytes()).hexdigest() for path in folder.iterdir()}
    monkeypatch.setattr(multi30k, "SHA256", sums)
    monkeypatch.setattr(multi30k, "URL", url(server, "multi30k/"))
    return folder


def made(root, **changes):
    options = {"tokenizer": "word", "vocab_size": None, "batch_size": 2, "lower": False} | changes
    data = make("multi30k", root=root and str(root), **options)
    assert isinstance(data, Multi30k)
    return data


@pytest.mark.parametrize("pair", [["de", "en"], ["en", "fr"], ["fr", "de"]])
def test_each_pair_of_languages(captions, pair):
    data = made(captions, pair=pair)
    data.setup()
    for split, name in {"train": "train", "val": "val", "test": "test_2016_flickr"}.items():
        files = [gzip.decompress((captions / f"{name}.{one}.gz").read_bytes()) for one in pair]
        texts = [file.decode().splitlines() for file in files]
        assert data.texts[split] == list(zip(*texts, strict=True))


def test_packed_plain_and_downloaded_files_are_the_same(server, captions):
    packed = made(captions).fingerprint()
    assert made(None).fingerprint() == packed
    assert made(captions, pair=["en", "de"]).fingerprint() != packed
    for path in list(captions.iterdir()):
        path.with_suffix("").write_bytes(gzip.decompress(path.read_bytes()))
        path.unlink()
    assert made(captions).fingerprint() == packed
    server.shutdown()
    server.server_close()
    assert made(None).fingerprint() == packed  # which was kept


def test_a_download_that_is_another_file_is_refused(captions):
    (captions / "val.en.gz").write_bytes(gzip.compress(b"other\n"))
    line = refusal(made(None))
    assert line.startswith(f"cannot download {multi30k.URL}val.en.gz (what came does not have the")
    assert line.endswith("data.root=FOLDER uses a local copy")
