"""Files that are no data: what a file is and how much it holds is looked at before it is read."""

import gzip
import os
import signal
import socket
from itertools import chain, product

import pytest
from make_data import make
from make_systems import rows_of_systems
from PIL import Image
from refusals import refused

from ablate.data import source
from ablate.errors import UserError

LIMIT = 10_000  # bytes of a file


@pytest.fixture(autouse=True)
def _bounded(monkeypatch):
    """A small limit, and an error where a test would hang."""
    monkeypatch.setenv(source.LIMIT, str(LIMIT / 1e9))
    signal.alarm(20)
    yield
    signal.alarm(0)


def a_socket(path):
    # The path of a socket is short: it is made in a folder that is opened.
    with socket.socket(socket.AF_UNIX) as made, pytest.MonkeyPatch.context() as patch:
        patch.chdir(path.parent)
        made.bind(path.name)


def link(target):
    return lambda path: path.symlink_to(target)


def bomb(path):
    path.write_bytes(gzip.compress(b"a" * (LIMIT + 1)))


KINDS = {
    "pipe": (os.mkfifo, "is a pipe, must be a file"),
    "zeros": (link("/dev/zero"), "is a device, must be a file"),
    "socket": (a_socket, "is a socket, must be a file"),
    "folder": (os.mkdir, "is a folder, must be a file"),
    "dead link": (link("gone"), "no such file"),
    "of the kernel": (link("/proc/self/maps"), "the file is empty"),  # as /proc/kmsg, which waits
    "large": (lambda path: path.write_bytes(b"a" * (LIMIT + 1)), "contains more than 1e-05 GB"),
    "bomb": (bomb, "contains more than 1e-05 GB"),
}


def classes(root, *names, ending=".png"):
    """A folder of images, or of texts, for each class."""
    for name in names:
        where = os.path.join(os.fsencode(root), os.fsencode(name))
        os.makedirs(where)
        for n in range(20):
            path = os.fsdecode(where) + f"/{n}{ending}"
            if ending == ".png":
                Image.new("RGB", (4, 4), (n, n, n)).save(path)
            else:
                with open(path, "w") as file:
                    file.write(f"the text with number {n}")
    return str(root)


READERS = {"parallel": {}, "image_folder": {}, "text_files": {}} | rows_of_systems("FILE_READERS")


@pytest.mark.parametrize(
    ("name", "kind"),
    [("text", kind) for kind in KINDS] + [*product(READERS, ("pipe", "large", "bomb"))],
)
def test_what_is_no_file_of_data_is_refused(tmp_path, name, kind):
    made, line = KINDS[kind]
    bad, given = tmp_path / "it", dict(READERS.get(name, {}))
    if ending := {"image_folder": ".png", "text_files": ".txt"}.get(name):
        given["root"] = classes(tmp_path, "one", "other", ending=ending)
        bad = tmp_path / "one" / f"bad{ending}"
    else:
        keys = ("source", "target") if name == "parallel" else ("path",)
        given |= dict.fromkeys(keys, str(bad))
        if (name, kind) == ("text", "folder"):
            line = f"{bad}: the folder has no files"
        else:
            line = f"data.{keys[0]}={bad}: {line}"
    made(bad)
    if kind == "bomb" and name == "image_folder":
        line = "cannot decode the image"
    data = make(name, **given)
    with refused(str(bad), line):
        data.setup()
        list(chain(data.train_dataloader(), data.val_dataloader(), data.test_dataloader()))
    if kind != "bomb":  # the fingerprint is that of the file before decompression
        with refused(str(bad), line):
            data.fingerprint()


def test_the_limit_is_stated_with_its_switch(tmp_path, monkeypatch):
    bomb(tmp_path / "it")
    with refused("ABLATE_MAX_FILE_GB sets another limit"):
        source.read(str(tmp_path / "it"))
    monkeypatch.setenv(source.LIMIT, "1e-4")
    assert len(source.read(str(tmp_path / "it"))) == LIMIT + 1
    for wrong in ("much", "nan", "0"):
        monkeypatch.setenv(source.LIMIT, wrong)
        with refused(f"ABLATE_MAX_FILE_GB={wrong}: must be a number"):
            source.read(str(tmp_path / "it"))


@pytest.mark.parametrize(
    ("path", "line"),
    [
        ("~nobody-has-this-name/x", "no such file"),
        ("a\0b", "is not a path"),
        ("a" * 5000, "cannot be read (File name too long)"),
    ],
)
def test_a_path_that_can_be_none_is_refused(path, line):
    with refused(line):
        source.read(path)


def test_one_class_is_refused_and_so_are_names_that_are_not_utf_8(tmp_path):
    with refused("only one class found (cats); classification needs at least two"):
        make("image_folder", root=classes(tmp_path, "cats")).setup()
    data = make("image_folder", root=classes(tmp_path, b"d\xf6gs"))
    for read in (data.setup, data.fingerprint):
        with pytest.raises(UserError, match=r"d\\udcf6gs/.*is not UTF-8; rename it") as caught:
            read()
        str(caught.value).encode()
