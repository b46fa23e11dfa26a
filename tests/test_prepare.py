"""python -m ablate.prepare: documents of files become token shards."""

import gzip
import json
import os
import random
import resource
import signal
import subprocess
import sys
import time
from pathlib import Path

import numpy as np
import pytest
from refusals import refused
from test_data_pieces import prose

from ablate.data import preparation, tokenizer
from ablate.data.documents import Corpus, find
from ablate.data.preparation import prepare
from ablate.data.shards import stored
from ablate.data.tokenizer import restored
from ablate.prepare import main

DOCUMENTS = [prose(seed, words=20 + seed) for seed in range(40)]


def lines():
    return "".join(json.dumps({"n": n, "text": text}) + "\n" for n, text in enumerate(DOCUMENTS))


def as_folder(to):
    for n, text in enumerate(DOCUMENTS):
        (to / "texts" / f"{n % 3}").mkdir(parents=True, exist_ok=True)
        (to / "texts" / f"{n % 3}" / f"{n:03}.txt").write_bytes(text.encode())
    return to / "texts"


def as_lines(to):
    (to / "a.jsonl").write_text(lines())
    return to / "a.jsonl"


def as_gzip(to):
    (to / "a.jsonl.gz").write_bytes(gzip.compress(lines().encode()))
    return to / "a.jsonl.gz"


def as_zstd(to):
    import pyarrow

    half = len(lines()) // 2  # two frames
    packed = [
        pyarrow.compress(p.encode(), "zstd", asbytes=True) for p in (lines()[:half], lines()[half:])
    ]
    (to / "a.jsonl.zst").write_bytes(b"".join(packed))
    return to / "a.jsonl.zst"


def as_parquet(to):
    import pyarrow
    import pyarrow.parquet

    table = pyarrow.table({"n": range(len(DOCUMENTS)), "text": DOCUMENTS})
    pyarrow.parquet.write_table(table, to / "a.parquet", row_group_size=7)
    return to / "a.parquet"


def as_saved(to):
    import datasets

    whole = datasets.Dataset.from_dict({"text": DOCUMENTS})
    datasets.DatasetDict({"train": whole, "odd": whole.select(range(1, 40, 2))}).save_to_disk(
        str(to / "saved")
    )
    return to / "saved"


def as_hub(to):
    """A folder in place of a name on the hub."""
    (to / "hub").mkdir()
    (to / "hub" / "train.jsonl").write_text(lines())
    return f"hf:{to / 'hub'}"


@pytest.fixture(autouse=True)
def small_batches(monkeypatch):
    monkeypatch.setattr(preparation, "BATCH", 500)


FORMATS = [as_folder, as_lines, as_gzip, as_zstd, as_parquet, as_saved, as_hub]


def documents(folder, split):
    """The texts of the documents of a split, without what is between them."""
    manifest = json.loads((folder / "manifest.json").read_text())
    made = restored(manifest["tokenizer"]["state"])
    texts, rest = [], []
    for shard in manifest["splits"][split]["shards"]:
        tokens = np.fromfile(folder / shard["file"], manifest["dtype"])
        starts = np.load(folder / shard["index"]).tolist()
        assert (len(tokens), len(starts)) == (shard["tokens"], shard["documents"])
        for start, end in zip([0, *starts], [*starts, len(tokens)], strict=True):
            rest += tokens[start:end].tolist()
            if end < len(tokens) or end in starts:
                texts.append(rest)
                rest = []
    return [made.decode(ids).removesuffix("\n\n") for ids in [*texts, rest] if len(ids)]


def content(folder):
    return {file.name: file.read_bytes() for file in folder.iterdir() if file.suffix != ".json"}


def corpus(*sources, **options):
    return Corpus(find(map(str, sources)), **({"val_share": 0.2} | options))


@pytest.mark.parametrize("write", FORMATS)
def test_every_format_has_the_same_documents(write, tmp_path):
    manifest = prepare(corpus(write(tmp_path)), tmp_path / "to", tokenizer="byte", shard=2000)
    found = {split: documents(tmp_path / "to", split) for split in ("train", "val")}
    assert sorted(found["train"] + found["val"]) == sorted(DOCUMENTS)
    assert 2 <= len(found["val"]) <= 16
    assert len(manifest["splits"]["train"]["shards"]) > 3
    for split, texts in found.items():
        counts = manifest["splits"][split]
        assert counts["documents"] == len(texts)
        assert counts["bytes"] == sum(len(text.encode()) + 2 for text in texts)
        assert counts["characters"] == sum(len(text) + 2 for text in texts)


def test_a_data_set_on_the_hub_is_streamed_once(tmp_path):
    """A call that was stopped after its first shard goes on with the next row."""
    hub, to = as_hub(tmp_path), tmp_path / "to"
    with refused(f"{hub}: is streamed once, and --tokenizer bpe would read it twice"):
        prepare(corpus(hub), to, tokenizer="bpe")
    with refused(f"{hub}: row 1 has no 'words' (its keys are n, text)"):
        prepare(corpus(hub, column="words"), tmp_path / "none", tokenizer="byte")
    with refused(f"{hub}: split 'odd' cannot be streamed ("):
        prepare(corpus(hub, train_split="odd"), tmp_path / "other", tokenizer="byte")
    rows = [*corpus(hub).pieces()]
    assert rows[7:] == [*corpus(hub).pieces(rows[6].after)]


def test_the_split_of_a_document_depends_only_on_its_text(tmp_path):
    files = find([str(as_folder(tmp_path))])
    (tmp_path / "texts" / "copy.txt").write_bytes(DOCUMENTS[3].upper().encode())
    splits = []
    for number, order in enumerate((files, files[::-1])):
        prepare(Corpus(order, val_share=0.3), tmp_path / f"{number}", tokenizer="byte")
        splits.append({s: sorted(documents(tmp_path / f"{number}", s)) for s in ("train", "val")})
    assert splits[0] == splits[1]
    twice = corpus(tmp_path / "texts", val_share=0.3)
    prepare(twice, tmp_path / "2", tokenizer="byte")
    with_copy = documents(tmp_path / "2", "val")
    assert (DOCUMENTS[3] in with_copy) == (DOCUMENTS[3].upper() in with_copy)


def test_validation_by_files_and_by_a_named_split(tmp_path):
    folder, saved = as_folder(tmp_path), as_saved(tmp_path)
    by_files = Corpus(find([f"{folder}/[01]"]), val_files=find([f"{folder}/2/*.txt"]))
    prepare(by_files, tmp_path / "a", tokenizer="byte")
    assert documents(tmp_path / "a", "val") == DOCUMENTS[2::3]
    assert sorted(documents(tmp_path / "a", "train")) == sorted(DOCUMENTS[::3] + DOCUMENTS[1::3])
    prepare(Corpus(find([str(saved)]), val_split="odd"), tmp_path / "b", tokenizer="byte")
    assert documents(tmp_path / "b", "val") == DOCUMENTS[1::2]


@pytest.mark.ci
@pytest.mark.parametrize("name", ["char", "bpe"])
def test_processes_and_stops_change_no_byte(name, tmp_path, monkeypatch):
    (tmp_path / "long.txt").write_text(prose(99, words=60_000))  # of several pieces
    source = corpus(as_lines(tmp_path), tmp_path / "long.txt")
    options = {"tokenizer": name, "shard": 2000}
    prepare(source, tmp_path / "one", **options)
    prepare(source, tmp_path / "two", workers=2, **options)
    close, calls = preparation._Writer.close, []

    def stops(writer, after):
        calls.append(1)
        if len(calls) in (2, 4):
            raise KeyboardInterrupt
        return close(writer, after)

    monkeypatch.setattr(preparation._Writer, "close", stops)
    for _ in range(2):
        with pytest.raises(KeyboardInterrupt):
            prepare(source, tmp_path / "stopped", **options)
    prepare(source, tmp_path / "stopped", **options)
    assert len(calls) > 4
    expected = content(tmp_path / "one")
    assert len(expected) > 6
    assert content(tmp_path / "two") == content(tmp_path / "stopped") == expected
    manifests = {(tmp_path / n / "manifest.json").read_bytes() for n in ("one", "two", "stopped")}
    assert len(manifests) == 1


def test_a_full_disk_keeps_the_finished_shards(tmp_path, monkeypatch):
    source = corpus(as_lines(tmp_path))
    options = {"tokenizer": "byte", "shard": 1000}
    prepare(source, tmp_path / "whole", **options)
    full = tmp_path / "full"
    limits = resource.getrlimit(resource.RLIMIT_FSIZE)
    close, calls = preparation._Writer.close, []

    def fills_up(writer, after):
        calls.append(1)
        if len(calls) == 3:
            resource.setrlimit(resource.RLIMIT_FSIZE, (100, limits[1]))
        return close(writer, after)

    monkeypatch.setattr(preparation._Writer, "close", fills_up)
    try:
        with refused("full/", "the finished shards are kept, and the same command continues"):
            prepare(source, full, **options)
    finally:
        resource.setrlimit(resource.RLIMIT_FSIZE, limits)
    assert len(list(full.glob(".shard-*.json"))) == 2
    prepare(source, full, **options)
    assert content(full) == content(tmp_path / "whole")


def test_a_finished_folder_is_not_made_again_and_not_for_other_options(tmp_path, monkeypatch):
    source, to = corpus(as_lines(tmp_path)), tmp_path / "to"
    made = prepare(source, to, tokenizer="byte")
    prepare(source, tmp_path / "bpe", tokenizer="bpe")
    monkeypatch.setattr(preparation, "_shards", None)
    assert prepare(source, to, tokenizer="byte", workers=2) == made
    with refused("contains shards of other tokenizer: byte there, char here", "another --to"):
        prepare(source, to, tokenizer="char")
    monkeypatch.setattr(preparation, "version", lambda name: "0")
    with refused("contains shards of other versions of tokenizers; choose another --to"):
        prepare(source, tmp_path / "bpe", tokenizer="bpe")
    (tmp_path / "a.jsonl").write_text(lines() + '{"text": "more"}\n')
    with refused("contains shards of other files; choose another --to"):
        prepare(source, to, tokenizer="byte")
    (tmp_path / "mine").mkdir()
    (tmp_path / "mine" / "notes.txt").write_text("x")
    with refused("mine: contains other files; choose another --to"):
        prepare(source, tmp_path / "mine", tokenizer="byte")


def test_documents_end_with_the_token_that_the_tokenizer_has_for_that(tmp_path, monkeypatch):
    import tiktoken

    ranks = {bytes([byte]): byte for byte in range(256)} | {b"th": 256, b" th": 257}
    special = {"<|endoftext|>": 300}
    made = tiktoken.Encoding(
        "tiny", pat_str=r" ?\w+|\s", mergeable_ranks=ranks, special_tokens=special
    )
    monkeypatch.setattr(tiktoken, "get_encoding", lambda name: made)
    (tmp_path / "a.jsonl").write_text('{"text": "the thing"}\n{"text": "th <|endoftext|>"}\n')
    manifest = prepare(
        corpus(tmp_path / "a.jsonl", val_share=0.0), tmp_path / "to", tokenizer="tiktoken:tiny"
    )
    tokens = np.fromfile(tmp_path / "to" / "train-00000.bin", "<u2").tolist()
    assert tokens[:6] == [256, ord("e"), 257, *b"ing"]
    assert [n for n, token in enumerate(tokens) if token == 300] == [6, len(tokens) - 1]
    assert (manifest["end"], manifest["vocab_size"]) == (300, 301)
    assert manifest["splits"]["train"]["bytes"] == len("the thing" + "th <|endoftext|>")
    again = restored(json.loads(json.dumps(manifest["tokenizer"]["state"])))
    assert again.encode("the thing") == tokens[:6]
    assert (
        again.decode([256, 280, *"é".encode(), 300]) == "th\N{REPLACEMENT CHARACTER}é<|endoftext|>"
    )
    assert again.bytes_of(280) == 3  # as it is decoded


def test_a_vocabulary_beyond_16_bits_has_32(tmp_path, monkeypatch):
    monkeypatch.setattr(tokenizer.Byte, "vocab_size", 70_000)
    prepare(corpus(as_lines(tmp_path)), tmp_path / "to", tokenizer="byte")
    assert np.fromfile(tmp_path / "to" / "train-00000.bin", "<u4").max() < 256
    assert len(stored(tmp_path / "to").splits["train"]) > 1000


MISTAKES = [
    ({"b.jsonl": '{"txt": "x"}'}, [], "b.jsonl: line 1 has no 'text'; did you mean 'txt'?"),
    ({"b.jsonl": '{"text": "x"}\n{"text'}, [], "b.jsonl: line 2 is not JSON"),
    ({"b.jsonl": "[1]"}, [], "b.jsonl: line 1 is not a JSON object"),
    ({"b.jsonl": '{"text": 3}'}, [], "b.jsonl: line 1: the text is int, must be a string"),
    ({"b.jsonl": '{"text": "\\ud800"}'}, [], "b.jsonl: line 1: has half of a surrogate pair"),
    ({"B.JSONL.GZ": "plain"}, [], "B.JSONL.GZ: damaged or truncated"),
    ({"B.JSONL.ZST": "plain"}, [], "B.JSONL.ZST: cannot be read"),
    ({"b.parquet": "plain"}, [], "b.parquet: cannot be read as Parquet"),
    ({"b.txt": "a\0b"}, [], "b.txt: has a NUL byte at byte offset 1"),
    ({"b.txt": "x"}, ["c.txt"], "c.txt: no such file or folder; did you mean 'b.txt'?"),
    ({"b.txt": "x"}, ["--tokenizer", "bpee"], "data.tokenizer=bpee: must be char, byte or bpe"),
    ({"b.txt": "x"}, ["--vocab-size", "9", "--tokenizer", "byte"], "has a fixed vocabulary"),
    ({"b.txt": "x"}, ["--val", "1"], "--val: must be a number from 0 to less than 1, is 1"),
    ({"b.txt": "x"}, ["--workers", "0"], "--workers: must be a positive integer, is 0"),
    ({"b.txt": "x"}, ["--val-files", "b.txt"], "b.txt: is in SOURCE and in --val-files"),
    ({"b.txt": "x"}, ["--val-split", "val"], "b.txt: has no named splits; --train-split and"),
    ({"b.txt": "x"}, ["--train-split", "all"], "b.txt: has no named splits; --train-split and"),
    ({"b.txt": "x"}, ["--val-split", "train"], "--val-split train: is the split that trains"),
    ({"b.json": '{"txt": "x"}\n' * 2}, [], "b.json: line 1 has no 'text'; did you mean 'txt'?"),
    ({"b.json": '{"txt": "x"}'}, ["--column", "txd"], "b.json: line 1 has no 'txd'; did you"),
    ({"b.json": "{\n}"}, ["--column", "txd"], "--column txd: no source has keys or columns"),
    ({"b.txt": "x"}, ["--column", "body"], "--column body: no source has keys or columns"),
    ({"b.txt": ""}, ["--tokenizer", "byte"], "to: no training document in 1 files"),
    ({"b.txt": "x"}, ["--tokenizer", "char", "--val", "0.9999999"], "no training document in 1"),
]


@pytest.mark.parametrize(("files", "more", "line"), MISTAKES)
def test_a_mistake_is_one_line(files, more, line, tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    for name, text in files.items():
        Path(name).write_text(text)
    sources = [*files, *(word for word in more if word == "c.txt")]
    options = [word for word in more if word != "c.txt"]
    monkeypatch.setattr(
        sys, "argv", ["prepare", *sources, "--to", "to", "--workers", "1", *options]
    )
    with refused(line):
        main()


def run(monkeypatch, *words):
    monkeypatch.setattr(sys, "argv", ["prepare", *words, "--workers", "1", "--tokenizer", "byte"])
    main()


def test_a_file_is_read_once_and_the_output_never(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    Path("a.txt").write_text("one")
    Path("b.txt").symlink_to("a.txt")
    for _ in range(2):
        run(monkeypatch, ".", "a.txt", str(tmp_path / "a.txt"), "--to", "to", "--val", "0")
    assert documents(Path("to"), "train") == ["one"]
    with refused("is in SOURCE and in --val-files"):
        run(monkeypatch, "a.txt", "--val-files", str(tmp_path / "b.txt"), "--to", "two")


def test_json_lines_are_found_by_their_content_too(tmp_path):
    (tmp_path / "A.JSONL").write_text(lines())
    (tmp_path / "c4.json.gz").write_bytes(gzip.compress(b'{"text": "one"}\n{"text": "two"}\n'))
    (tmp_path / "package.json").write_text('{"name": "x"}\n')
    prepare(corpus(tmp_path, val_share=0.0), tmp_path / "to", tokenizer="byte")
    found = documents(tmp_path / "to", "train")
    assert sorted(found) == sorted([*DOCUMENTS, "one", "two", '{"name": "x"}\n'])


def test_nothing_is_kept_of_a_corpus_with_a_mistake(tmp_path):
    file, to = tmp_path / "a.jsonl", tmp_path / "to"
    file.write_text(lines() + "{")
    with refused("line 41 is not JSON"):
        prepare(corpus(file), to, tokenizer="byte")
    file.write_text(lines())
    prepare(corpus(file, val_share=0.0), to, tokenizer="byte")
    assert {*content(to)} == {".lock", "train-00000.bin", "train-00000.npy"}


def test_names_of_files_may_be_any_bytes(tmp_path):
    Path(os.fsdecode(os.fsencode(tmp_path) + b"/\xe9.txt")).write_text("one")
    for _ in range(2):
        prepare(corpus(tmp_path / "?.txt", val_share=0.0), tmp_path / "to", tokenizer="byte")
    assert len(stored(tmp_path / "to").splits["train"]) == len("one\n\n")


def test_a_link_to_nothing_is_one_line(tmp_path):
    for name in ("gone", "self"):
        (tmp_path / name).mkdir()
        (tmp_path / name / "a.txt").symlink_to("a.txt" if name == "self" else "b.txt")
        with refused(f"{name}/a.txt: cannot be read ("):
            prepare(corpus(tmp_path / name), tmp_path / "to", tokenizer="byte")


def test_a_pipe_is_rejected(tmp_path):
    os.mkfifo(tmp_path / "pipe")
    for name in ("pipe", "p*"):
        with refused("pipe: is neither a file nor a folder"):
            find([str(tmp_path / name)])


@pytest.mark.parametrize(("library", "write"), [("pyarrow", as_parquet), ("datasets", as_saved)])
def test_a_missing_library_is_named_with_the_command(library, write, tmp_path, monkeypatch):
    source = corpus(write(tmp_path))
    for name in [library, f"{library}.parquet"]:
        monkeypatch.setitem(sys.modules, name, None)
    with refused(f"needs the library {library}: pip install 'ablate-attention[data]'"):
        prepare(source, tmp_path / "to", tokenizer="byte")


@pytest.mark.slow
def test_kills_change_no_byte(tmp_path):
    (tmp_path / "a.jsonl").write_text(lines() * 1000)
    words = ["--tokenizer", "byte", "--shard", "100000", "--workers"]
    command = [sys.executable, "-m", "ablate.prepare", str(tmp_path / "a.jsonl"), *words]
    subprocess.run([*command, "1", "--to", str(tmp_path / "one")], check=True)
    two, rng, kills = tmp_path / "two", random.Random(0), 0
    while not (two / "manifest.json").exists():
        done = len(list(two.glob(".shard-*.json")))
        begun = subprocess.Popen([*command, "2", "--to", str(two)], start_new_session=True)
        while begun.poll() is None and len(list(two.glob(".shard-*.json"))) == done:
            time.sleep(0.01)
        time.sleep(0.1 * rng.random())
        if kills < 20 and begun.poll() is None:
            os.killpg(begun.pid, signal.SIGKILL)
            kills += 1
        begun.wait()
    assert kills == 20
    assert content(two) == content(tmp_path / "one")
