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
from refusals import refused

from ablate.data import multi30k, source

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


def stop(server):
    server.shutdown()
    server.server_close()


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


@pytest.mark.parametrize("sha256", [SHA256, None])
def test_a_download_is_kept_and_its_fingerprint_is_that_of_the_content(
    server, hamlet, sha256, capfd, monkeypatch
):
    monkeypatch.setattr(source, "PLAIN", "no scheme")  # as if the server spoke https
    before = text("http://127.0.0.1:1/hamlet.txt").fingerprint()  # where nothing is
    text(url(server), sha256).setup()
    assert "100%" in capfd.readouterr().err  # the progress bar
    stop(server)
    again = text(url(server), sha256)
    again.setup()
    assert "".join(again.pieces()).encode() == CONTENT
    assert {data.fingerprint() for data in (again, text(hamlet), text(hamlet, None))} == {before}


def test_a_wrong_sha256_is_refused_and_a_damaged_copy_downloaded_again(server, own_cache):
    with refused(url(server), "does not have data.sha256=000"):
        text(url(server), "0" * 64).setup()
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
    with refused(f"{url(server)}: contains more than", source.LIMIT):
        text(url(server)).setup()
    assert [path.name for path in (own_cache / "other").iterdir()] == ["download.lock"]


def test_what_cannot_be_had_is_one_line_without_its_password(server):
    with socket.socket() as closed:
        closed.bind(("127.0.0.1", 0))
        dead = f"http://127.0.0.1:{closed.getsockname()[1]}/hamlet.txt"
    with refused(f"cannot download {dead} (no answer from the network", "data.path=FILE uses a"):
        text(dead).setup()
    place = url(server, "macbeth.txt?key=t0ken").replace("//", "//me:pa55word@")
    with refused(f"{url(server, 'macbeth.txt')} (the server answered: 404") as caught:
        text(place).setup()
    assert "t0ken" not in str(caught.value)
    assert "pa55word" not in str(caught.value)


def test_http_and_a_redirection_to_it_need_a_sha256(server, own_cache, monkeypatch):
    """The first answer, which stands for one over https, leads to localhost."""
    with refused("only https:// is downloaded"):
        text(url(server), None).setup()
    assert not own_cache.exists()
    target = url(server).replace("127.0.0.1", "localhost")

    class Redirect(Quiet):
        def do_GET(self):
            self.send_response(302)
            self.send_header("Location", target)
            self.end_headers()

    monkeypatch.setattr(source, "PLAIN", "http://localhost")
    with (
        serving(Redirect) as first,
        refused(f"the server redirects to {target}, which is not https://"),
    ):
        text(url(first), None).setup()
    assert not kept(own_cache)


def test_multi30k_is_the_same_packed_plain_and_downloaded(server, hamlet, monkeypatch):
    """From files of a few lines, which the server gives out as the official address does."""
    monkeypatch.chdir(hamlet.parent)
    make_files.write_pairs()
    folder = hamlet.parent / "multi30k"
    sums = {path.name: hashlib.sha256(path.read_bytes()).hexdigest() for path in folder.iterdir()}
    monkeypatch.setattr(multi30k, "SHA256", sums)
    monkeypatch.setattr(multi30k, "URL", url(server, "multi30k/"))

    def made(root, *pair):
        options = {"tokenizer": "word", "vocab_size": None, "batch_size": 2, "lower": False}
        return make("multi30k", root=root and str(root), pair=pair or ("de", "en"), **options)

    for pair in (("de", "en"), ("en", "fr"), ("fr", "de")):
        data = made(folder, *pair)
        data.setup()
        for split, name in {"train": "train", "val": "val", "test": "test_2016_flickr"}.items():
            files = [gzip.decompress((folder / f"{name}.{one}.gz").read_bytes()) for one in pair]
            texts = [file.decode().splitlines() for file in files]
            assert data.texts[split] == list(zip(*texts, strict=True))
    packed = made(folder).fingerprint()
    assert made(folder, "en", "de").fingerprint() != packed
    other = folder / "val.fr.gz"
    right = other.read_bytes()
    other.write_bytes(gzip.compress(b"other\n"))
    with refused(f"cannot download {multi30k.URL}val.fr.gz (the download does not have the"):
        made(None, "fr", "en").setup()
    other.write_bytes(right)
    assert made(None).fingerprint() == packed
    for path in list(folder.iterdir()):
        path.with_suffix("").write_bytes(gzip.decompress(path.read_bytes()))
        path.unlink()
    assert made(folder).fingerprint() == packed
    stop(server)
    assert made(None).fingerprint() == packed  # which was kept
