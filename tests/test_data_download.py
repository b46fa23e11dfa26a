"""Downloads: from a server on this machine, kept, checked, and refused in one line."""

import gzip
import hashlib
import socket
import threading
from contextlib import contextmanager
from functools import partial
from http.server import SimpleHTTPRequestHandler, ThreadingHTTPServer

import make_files
import pytest
from make_data import make

from ablate.data import multi30k, source
from ablate.errors import UserError

CONTENT = ("To be, or not to be, that is the question.\n" * 50).encode()
SHA256 = hashlib.sha256(CONTENT).hexdigest()


class Quiet(SimpleHTTPRequestHandler):
    def log_message(self, *args):
        pass


@contextmanager
def serving(handler):
    with ThreadingHTTPServer(("127.0.0.1", 0), handler) as running:
        threading.Thread(target=running.serve_forever, daemon=True).start()
        yield running
        running.shutdown()


@pytest.fixture(autouse=True)
def own_cache(tmp_path, monkeypatch):
    monkeypatch.setenv("ABLATE_CACHE", str(tmp_path / "cache"))
    for name in ("NO_PROXY", "no_proxy"):
        monkeypatch.setenv(name, "127.0.0.1,localhost")
    return tmp_path / "cache"


@pytest.fixture
def hamlet(tmp_path):
    (tmp_path / "served").mkdir()
    (tmp_path / "served" / "hamlet.txt").write_bytes(CONTENT)
    return tmp_path / "served" / "hamlet.txt"


@pytest.fixture
def server(hamlet):
    with serving(partial(Quiet, directory=str(hamlet.parent))) as running:
        yield running


def url(server, name="hamlet.txt"):
    return f"http://127.0.0.1:{server.server_port}/{name}"


def text(path, sha256=SHA256):
    return make("text", path=str(path), seq_len=16, sha256=sha256)


def kept(cache):
    return [path for path in cache.iterdir() if path.suffix == ".txt"]


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
    text(url(server), sha256).setup()
    assert "100%" in capfd.readouterr().err  # the progress bar
    server.shutdown()
    server.server_close()
    again = text(url(server), sha256)
    again.setup()
    assert "".join(again.texts.values()).encode() == CONTENT


@pytest.mark.usefixtures("any_scheme")
def test_the_fingerprint_is_that_of_the_content_and_with_a_sha256_needs_no_download(server, hamlet):
    before = text("http://127.0.0.1:1/hamlet.txt").fingerprint()  # where nothing is
    others = text(hamlet), text(hamlet, None), text(url(server)), text(url(server), None)
    assert {data.fingerprint() for data in others} == {before}


def test_a_wrong_sha256_is_refused_and_a_damaged_copy_downloaded_again(server, own_cache):
    line = refusal(text(url(server), "0" * 64))
    assert url(server) in line
    assert "does not have data.sha256=000" in line
    assert not kept(own_cache)
    text(url(server)).setup()
    (copy,) = kept(own_cache)
    copy.write_bytes(CONTENT[:100])
    text(url(server)).setup()
    assert copy.read_bytes() == CONTENT


def test_no_more_than_the_limit_is_downloaded(server, own_cache, monkeypatch):
    monkeypatch.setattr(source, "LARGEST", len(CONTENT))
    monkeypatch.delenv(source.LIMIT, raising=False)
    text(url(server)).setup()
    monkeypatch.setattr(source, "LARGEST", len(CONTENT) - 1)
    monkeypatch.setenv("ABLATE_CACHE", str(own_cache / "other"))
    line = refusal(text(url(server)))
    assert f"{url(server)}: holds more than" in line
    assert source.LIMIT in line
    assert [path.name for path in (own_cache / "other").iterdir()] == ["download.lock"]


def test_no_network_is_one_line():
    with socket.socket() as closed:
        closed.bind(("127.0.0.1", 0))
        dead = f"http://127.0.0.1:{closed.getsockname()[1]}/hamlet.txt"
    line = refusal(text(dead))
    assert line.startswith(f"cannot download {dead} (no answer from the network")
    assert line.endswith("data.path=FILE uses a local copy")


def test_a_missing_page_is_one_line_without_its_password(server):
    place = url(server, "macbeth.txt?key=t0ken").replace("//", "//me:pa55word@")
    line = refusal(text(place))
    assert f"{url(server, 'macbeth.txt')} (the server answered: 404" in line
    assert "data.path=FILE" in line
    assert "t0ken" not in line
    assert "pa55word" not in line


def test_http_needs_a_sha256(server, own_cache):
    assert "only https:// is downloaded" in refusal(text(url(server), None))
    assert not own_cache.exists()


def test_a_redirection_to_http_needs_a_sha256(server, own_cache, monkeypatch):
    """The first answer, which stands for one over https, leads to localhost."""
    target = url(server).replace("127.0.0.1", "localhost")

    class Redirect(Quiet):
        def do_GET(self):
            self.send_response(302)
            self.send_header("Location", target)
            self.end_headers()

    monkeypatch.setattr(source, "PLAIN", "http://localhost")
    with serving(Redirect) as first:
        line = refusal(text(url(first), None))
    assert f"the server redirects to {target}, which is not https://" in line
    assert not kept(own_cache)


# Multi30k


@pytest.fixture
def captions(server, hamlet, monkeypatch):
    """Files of a few lines, which the server gives out as the official address does."""
    monkeypatch.chdir(hamlet.parent)
    make_files.write_pairs()
    folder = hamlet.parent / "multi30k"
    sums = {path.name: hashlib.sha256(path.read_bytes()).hexdigest() for path in folder.iterdir()}
    monkeypatch.setattr(multi30k, "SHA256", sums)
    monkeypatch.setattr(multi30k, "URL", url(server, "multi30k/"))
    return folder


def made(root, **changes):
    options = {"tokenizer": "word", "vocab_size": None, "batch_size": 2, "lower": False}
    return make("multi30k", root=root and str(root), **options, **changes)


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
