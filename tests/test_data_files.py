"""Files that are no data: what a file is and how much it holds is looked at before it is read."""

import gzip
import os
import re
import signal
import socket
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from make_data import make
from make_files import write_planetoid
from PIL import Image

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


# What a file is


def folder(path):
    path.mkdir()


def dead_link(path):
    path.symlink_to(path.with_name("gone"))


def a_socket(path):
    # The path of a socket is short: it is made in a folder that is opened.
    with socket.socket(socket.AF_UNIX) as made, pytest.MonkeyPatch.context() as patch:
        patch.chdir(path.parent)
        made.bind(path.name)


def link(target):
    return lambda path: path.symlink_to(target)


def large(path):
    path.write_bytes(b"a" * (LIMIT + 1))


def bomb(path):
    path.write_bytes(gzip.compress(b"a" * (LIMIT + 1)))


KINDS: dict[str, tuple[Callable[[Path], None], str]] = {
    "pipe": (os.mkfifo, "is a pipe, must be a file"),
    "zeros": (link("/dev/zero"), "is a device, must be a file"),
    "noise": (link("/dev/urandom"), "is a device, must be a file"),
    "socket": (a_socket, "is a socket, must be a file"),
    "folder": (folder, "is a folder, must be a file"),
    "dead link": (dead_link, "no such file"),
    "of the kernel": (link("/proc/self/maps"), "the file is empty"),  # as /proc/kmsg, which waits
    "large": (large, "holds more than 1e-05 GB"),
    "bomb": (bomb, "holds more than 1e-05 GB"),
}
kinds = pytest.mark.parametrize("kind", KINDS)


@kinds
@pytest.mark.parametrize("name", ["text", "series", "parallel"])
def test_a_file_that_is_none_is_refused(tmp_path, kind, name):
    made, line = KINDS[kind]
    made(tmp_path / "it")
    place = str(tmp_path / "it")
    given: dict[str, Any] = {"path": place}
    if name == "series":
        given["columns"] = ["a"]
    if name == "parallel":
        given = {"source": place, "target": place}
    key = "source" if name == "parallel" else "path"
    data = make(name, **given)
    # The fingerprint of a text is that of the file before decompression.
    for read in [data.setup] if kind == "bomb" else [data.setup, data.fingerprint]:
        with pytest.raises(UserError) as caught:
            read()
        assert str(caught.value).startswith(f"data.{key}={place}: {line}")


def _all(data):
    """Read everything."""
    data.setup()
    data.fingerprint()
    for loader in (data.train_dataloader(), data.val_dataloader(), data.test_dataloader()):
        list(loader or ())


@kinds
@pytest.mark.parametrize("name", ["image_folder", "text_files"])
def test_an_entry_of_a_folder_that_is_no_file_is_refused(tmp_path, kind, name):
    made, line = KINDS[kind]
    for of in ("one", "other"):
        (tmp_path / of).mkdir()
    ending = ".png" if name == "image_folder" else ".txt"
    for n in range(30):
        path = tmp_path / ("one" if n % 2 else "other") / f"{n}{ending}"
        if name == "image_folder":
            Image.new("RGB", (4, 4), (n, n, n)).save(path)
        else:
            path.write_text(f"the text with number {n}")
    bad = tmp_path / "one" / f"bad{ending}"
    made(bad)
    if kind == "bomb" and name == "image_folder":
        line = "cannot decode the image"
    data = make(name, root=str(tmp_path))
    with pytest.raises(UserError) as caught:
        _all(data)
    assert str(bad) in str(caught.value)
    assert line in str(caught.value)


def test_the_limit_is_stated_with_its_switch(tmp_path, monkeypatch):
    bomb(tmp_path / "it")
    with pytest.raises(UserError, match=r"ABLATE_MAX_FILE_GB sets another limit"):
        source.read(str(tmp_path / "it"))
    monkeypatch.setenv(source.LIMIT, "1e-4")
    assert len(source.read(str(tmp_path / "it"))) == LIMIT + 1
    monkeypatch.setenv(source.LIMIT, "much")
    with pytest.raises(UserError, match=r"ABLATE_MAX_FILE_GB=much: must be a number"):
        source.read(str(tmp_path / "it"))


@pytest.mark.parametrize(
    ("path", "line"),
    [
        ("~nobody-has-this-name/x", "no such file"),
        ("a\0b", "is no path"),
        ("a" * 5000, "cannot be read (File name too long)"),
    ],
)
def test_a_path_that_can_be_none_is_refused(path, line):
    with pytest.raises(UserError, match=re.escape(line)):
        source.read(path)


# Text


# Folders of classes


def images(root, *classes):
    for name in classes:
        where = os.path.join(os.fsencode(root), os.fsencode(name))
        os.makedirs(where)
        for n in range(20):
            Image.new("RGB", (4, 4), (n, n, n)).save(os.fsdecode(where) + f"/{n}.png")
    return root


def test_one_class_is_refused(tmp_path):
    with pytest.raises(UserError, match=r"has the one class cats, and a classifier needs two"):
        make("image_folder", root=str(images(tmp_path, "cats"))).setup()


def test_names_that_are_not_utf_8_are_refused(tmp_path):
    data = make("image_folder", root=str(images(tmp_path, "cats", b"d\xf6gs")))
    for read in (data.setup, data.fingerprint):
        with pytest.raises(UserError, match=r"d\\udcf6gs/.*is not UTF-8; rename it") as caught:
            read()
        str(caught.value).encode()


# Graphs


def changed(**arrays):
    return lambda known: known | arrays


@pytest.mark.parametrize(
    ("change", "line"),
    [
        (changed(shape=[12]), "do not make a graph"),
        (changed(shape=[12, 10**9]), "takes at least"),
        (changed(shape=["twelve", "nine"]), "do not make a graph"),
        (changed(feat_row=[0, 1]), "do not make a graph"),
        (changed(feat_row=[-1], feat_col=[0], feat_val=[1.0]), "whole, from 0 on"),
        (changed(feat_row=[0], feat_col=[0], feat_val=[np.nan]), "or numbers of features"),
        (changed(edges=[0, 1, 2]), "of edges"),
        (changed(edges=[[0, 12]]), "of edges"),
        (changed(label=[0, 1, 2]), "do not make a graph"),
        (changed(label=[7] * 12), "of classes"),
        (changed(label=[-1] * 12), "of train, val, test"),
        (changed(train=[]), "of train"),
        (changed(test=[12]), "do not make a graph"),
        (lambda known: {key: known[key] for key in known if key != "edges"}, "lacks the arrays"),
    ],
)  # fmt: skip
def test_arrays_that_make_no_graph_are_refused(tmp_path, change, line):
    write_planetoid(tmp_path, "cora", np.random.default_rng(0))
    file = tmp_path / "cora.npz"
    with np.load(file) as found:
        known = dict(found)
    np.savez(file, **change(known))
    data = make("planetoid", root=str(tmp_path))
    for read in (data.setup, data.fingerprint):
        with pytest.raises(UserError, match=re.escape(line)):
            read()


@pytest.mark.parametrize("damage", ["cut", "text", "bomb", "pipe"])
def test_a_damaged_npz_is_refused(tmp_path, damage):
    write_planetoid(tmp_path, "cora", np.random.default_rng(0))
    file = tmp_path / "cora.npz"
    content = file.read_bytes()
    if damage == "cut":
        file.write_bytes(content[:300])
    elif damage == "text":
        file.write_text("no npz")
    elif damage == "bomb":
        np.savez_compressed(file, shape=np.zeros(10 * LIMIT))
    else:
        file.unlink()
        os.mkfifo(file)
    line = {"bomb": "holds more than", "pipe": "no such file"}.get(damage, "is damaged")
    with pytest.raises(UserError, match=line):
        make("planetoid", root=str(tmp_path)).setup()


# Series
