"""data=tokens: shards of ablate.prepare and of other programs, mapped from disk."""

import json
import math
import multiprocessing
import os
import pickle
import random
import shutil
import socket
import time

import numpy as np
import pytest
import torch
from lightning.pytorch.utilities import rank_zero_only
from make_data import make, ready
from refusals import refused
from test_prepare import as_lines, corpus
from tiny import built

import ablate
from ablate.data.preparation import prepare
from ablate.data.shards import Shard, Shards, windows
from ablate.data.text import RandomWindows
from ablate.task.attention import attention_maps
from ablate.task.causal_lm import CausalLM
from ablate.training.difference import difference

SMALL = {"seq_len": 8, "batch_size": 4}
MODEL = ["model.dim=16", "model.depth=1", "model.heads=2"]
TWO_STEPS = [
    *("data=tokens", "data.seq_len=8", "data.batch_size=4", *MODEL, "trainer.max_steps=2"),
    *("trainer.val_check_interval=2", "schedule.warmup=1", "logger=none"),
]


def parts(folder, counts, dtype="<u2", offset=0):
    rng = np.random.default_rng(0)
    files = []
    for number, count in enumerate(counts):
        path = folder / f"{number}.bin"
        tokens = rng.integers(0, 1000, count).astype(dtype)
        path.write_bytes(b"\0" * offset + tokens.tobytes())
        files.append(Shard(path, dtype, count, offset))
    whole = np.concatenate([Shards([file]).arrays()[0] for file in files if file.tokens])
    return files, torch.from_numpy(whole)


@pytest.mark.parametrize(("dtype", "offset"), [("<u2", 0), ("<u4", 6), ("<u2", 1024)])
def test_shards_are_one_sequence(dtype, offset, tmp_path):
    files, whole = parts(tmp_path, [50, 3, 0, 1, 70], dtype, offset)
    shards = Shards(files)
    assert len(shards) == 124
    where = torch.randint(124, (7, 5, 2))
    assert shards[where].equal(whole[where].long())
    for length in (1, 4, 60, 124):
        starts = torch.arange(124 - length + 1)
        assert windows(shards, starts, length).equal(windows(whole, starts, length))
        assert windows(shards, starts, length).dtype == torch.int64
    for start, stop in ((0, 124), (49, 55), (54, 124), (60, 61)):
        part = shards.between(start, stop)
        assert part[torch.arange(len(part))].equal(whole[start:stop].long())
    assert pickle.loads(pickle.dumps(shards))[where].equal(shards[where])
    assert len(pickle.dumps(shards)) < 2000  # not the tokens


@pytest.fixture
def shards(tmp_path, monkeypatch):
    monkeypatch.setattr("ablate.data.preparation.BATCH", 500)
    prepare(corpus(as_lines(tmp_path)), tmp_path / "shards", tokenizer="bpe", shard=1500)
    return tmp_path / "shards"


def test_the_batches_are_windows_drawn_by_seed_and_step_from_all_shards(shards):
    data = ready("tokens", root=str(shards), **SMALL)
    assert len(data.tokens["train"].files) > 2
    whole = torch.from_numpy(np.concatenate(data.tokens["train"].arrays()))
    order = data.train_order()
    for epoch in range(2):
        indices = order.of_epoch(epoch)
        for number in range(len(order)):
            request = ablate.data.Request(epoch, indices(number))
            batch = data.splits["train"][request]
            expected = RandomWindows(whole, 8)[request]
            assert batch["tokens"].equal(expected["tokens"])
            assert batch["targets"].equal(expected["targets"])
    assert (data.sizes.vocab_size, data.sizes.length) == (data.tokenizer.vocab_size, 8)
    assert sum(len(b["tokens"]) for b in data.val_dataloader()) == data.length("val")


def test_bits_per_byte_are_of_the_text_of_a_split(shards):
    data = ready("tokens", root=str(shards), **SMALL)
    tokens, text = np.concatenate(data.tokens["val"].arrays()), ""
    documents = np.split(tokens, data.tokens["val"].firsts()[1:])
    for document in documents:  # its first token is given
        first = data.tokenizer.decode(document[:1].tolist())
        text += data.tokenizer.decode(document.tolist())[len(first) :]
    count = len(tokens) - len(documents)
    assert data.per_token("val") == pytest.approx(
        {"char": len(text) / count, "byte": len(text.encode()) / count}
    )
    cfg = ablate.compose(*TWO_STEPS, f"data.root={shards}", f"output_dir={shards.parent}")
    metrics = ablate.run(cfg)["metrics"]
    bits = metrics["val/loss"] / math.log(2)
    assert metrics["val/bits_per_byte"] == pytest.approx(bits / data.per_token("val")["byte"])
    assert metrics["val/bits_per_char"] >= metrics["val/bits_per_byte"]  # some have two bytes


def test_bits_per_byte_count_a_token_that_is_a_part_of_a_character(tmp_path):
    """Each document begins with one, which is given."""
    texts = [f"日本語 {n}" for n in range(60)]
    file = tmp_path / "a.jsonl"
    file.write_text("".join(f'{{"text": "{text}"}}\n' for text in texts))
    prepare(corpus(file), tmp_path / "to", tokenizer="byte")
    data = ready("tokens", root=str(tmp_path / "to"), **SMALL)
    assert data.per_token("val")["byte"] == 1


def test_the_fingerprint_is_of_the_content_and_reads_no_shard(shards, tmp_path, monkeypatch):
    data = make("tokens", root=str(shards), **SMALL)
    shutil.copytree(shards, tmp_path / "copy")
    assert make("tokens", root=str(tmp_path / "copy"), **SMALL).fingerprint() == data.fingerprint()
    prepare(corpus(tmp_path / "a.jsonl", val_share=0.1), tmp_path / "other", tokenizer="bpe")
    assert make("tokens", root=str(tmp_path / "other"), **SMALL).fingerprint() != data.fingerprint()
    manifest = json.loads((shards / "manifest.json").read_text())
    for key in ("sha256", "index_sha256"):
        before = make("tokens", root=str(shards), **SMALL).fingerprint()
        manifest["splits"]["train"]["shards"][0][key] = "0" * 64
        (shards / "manifest.json").write_text(json.dumps(manifest))
        assert make("tokens", root=str(shards), **SMALL).fingerprint() != before


TOKENS = np.random.default_rng(1).integers(0, 300, 500)


def with_header(path, magic, version, part, dtype):
    head = np.array([magic, version, len(part), *[0] * 253], "<i4")
    path.write_bytes(head.tobytes() + part.astype(dtype).tobytes())


def llm_c(folder):
    files = {"train_000001": (0, 300), "train_000002": (300, 400), "val_0": (400, 500)}
    for name, (first, last) in files.items():
        with_header(folder / f"a_{name}.bin", 20240520, 1, TOKENS[first:last], "<u2")


def llama(folder):
    for name, part in (("train", TOKENS[:400]), ("val", TOKENS[400:])):
        with_header(folder / f"{name}.bin", 20240801, 7, part, "<u4")


def nano_gpt(folder):
    TOKENS[:400].astype("<u2").tofile(folder / "train.bin")
    TOKENS[400:].astype("<u2").tofile(folder / "val.bin")
    (folder / "meta.pkl").write_bytes(b"cos\nsystem\n(S'false'\ntR.")  # is not unpickled


def megatron(folder):
    for name, part in (("x_train", TOKENS[:400]), ("x_validation", TOKENS[400:])):
        lengths = np.array([len(part) - 30, 30], "<i4")
        head = b"MMIDIDX\0\0" + (1).to_bytes(8, "little") + bytes([4])
        head += (2).to_bytes(8, "little") + (3).to_bytes(8, "little")
        pointers = np.array([0, 4 * lengths[0]], "<i8").tobytes()
        documents = np.arange(3, dtype="<i8").tobytes()
        (folder / f"{name}.idx").write_bytes(head + lengths.tobytes() + pointers + documents)
        part.astype("<i4").tofile(folder / f"{name}.bin")


def olmo(folder):
    (folder / "val").mkdir()
    TOKENS[:250].astype("<u2").tofile(folder / "part-0.npy")  # without NumPy's header
    TOKENS[250:400].astype("<u2").tofile(folder / "part-1.npy")
    TOKENS[400:].astype("<u2").tofile(folder / "val" / "part-0.npy")


def numpys(folder):
    np.save(folder / "train.npy", TOKENS[:400].astype(np.uint32))
    np.save(folder / "val.npy", TOKENS[400:].astype(np.uint16))


OTHERS = [llm_c, llama, nano_gpt, megatron, olmo, numpys]


@pytest.mark.parametrize("write", OTHERS)
def test_shards_of_other_programs_are_read_as_they_are(write, tmp_path):
    write(tmp_path)
    data = ready("tokens", root=str(tmp_path), vocab_size=300, **SMALL)
    assert np.concatenate(data.tokens["train"].arrays()).tolist() == TOKENS[:400].tolist()
    assert np.concatenate(data.tokens["val"].arrays()).tolist() == TOKENS[400:].tolist()
    assert data.sizes.vocab_size == 300
    assert data.per_token("val") == {}
    assert data.tokenizer.encode(data.tokenizer.decode([5, 299])) == [5, 299]
    for pattern in ("*.bin", "**/*.npy"):
        if read := sorted(tmp_path.glob(pattern)):
            by_pattern = ready("tokens", root=f"{tmp_path}/{pattern}", vocab_size=300, **SMALL)
            assert {s: len(t) for s, t in by_pattern.tokens.items()} == {"train": 400, "val": 100}
            assert len(read) == sum(len(of.files) for of in by_pattern.tokens.values())
    whole = {"root": str(tmp_path), "tokenizer": "byte", "val_fraction": 0.25}
    with refused("data.val_fraction=0.25: ", "has a validation split"):
        ready("tokens", **whole, **SMALL)


def test_the_last_tokens_validate_if_no_file_does(tmp_path):
    _, whole = parts(tmp_path, [50, 60])
    data = ready("tokens", root=f"{tmp_path}/*.bin", vocab_size=1000, val_fraction=0.3, **SMALL)
    train, val = (np.concatenate(data.tokens[split].arrays()) for split in ("train", "val"))
    assert (len(train), len(val)) == (77, 33)
    assert np.concatenate([train, val]).tolist() == whole.tolist()


def change_manifest(**changes):
    def change(folder):
        content = json.loads((folder / "manifest.json").read_text())
        (folder / "manifest.json").write_text(json.dumps(content | changes))

    return change


def cut(name, size):
    return lambda folder: (folder / name).write_bytes((folder / name).read_bytes()[:size])


MISTAKES = [
    (cut("train-00001.bin", -2), {}, "train-00001.bin: has "),
    (
        lambda folder: (folder / "val-00000.npy").unlink(),
        {},
        "val-00000.npy: cannot be read (No such file or directory)",
    ),
    (cut("val-00000.npy", -8), {}, "val-00000.npy: damaged or truncated"),
    (cut("val-00000.npy", 0), {"documents": "mask"}, "val-00000.npy: damaged or truncated"),
    (change_manifest(tokenizer={"name": "bpe", "state": {}}), {}, "it has no tokenizer.state.kind"),
    (
        lambda folder: (folder / "manifest.json").rename(folder / ".plan.json"),
        {},
        "has not finished there; the same command continues",
    ),
    (None, {"tokenizer": "byte"}, "data.tokenizer=byte: the shards of data.root="),
    (None, {"vocab_size": 50257}, "data.vocab_size=50257: the shards of data.root="),
    (None, {"val_fraction": 0.1}, "has a validation split; set data.val_fraction=null"),
    (None, {"seq_len": 10**6}, "data.seq_len=1000000: the train split has "),
    (change_manifest(version=2), {}, "version 2 is of another release of ablate"),
    (change_manifest(splits={"train": {}}), {}, "it has no splits.train."),
    (change_manifest(format="x"), {}, "manifest.json: was not written by python -m ablate.prepare"),
]


@pytest.mark.parametrize(("damage", "options", "line"), MISTAKES)
def test_a_mistake_is_one_line(damage, options, line, shards):
    if damage:
        damage(shards)
    with refused(line):
        ready("tokens", root=str(shards), **(SMALL | options))


def test_the_difference_by_a_mask_of_documents_is_seen(shards):
    typed = [*MODEL, "data=tokens", f"data.root={shards}", "data.seq_len=64", "data.batch_size=4"]
    cfgs = ablate.compose(*typed), ablate.compose(*typed, "data.documents=mask")
    assert difference(*cfgs).output > 0


def of_one(name, content):
    return lambda folder: (folder / name).write_bytes(content)


HEAD = np.array([20240520, 1, 9, *[0] * 253], "<i4").tobytes()
DAMAGED = [
    (of_one("a.bin", HEAD + b"ab"), {"vocab_size": 9}, "9 tokens have 1,042: it is truncated"),
    (of_one("a.bin", HEAD[:4] + HEAD[8:] * 2), {"vocab_size": 9}, "version 9 of llm.c's format"),
    (of_one("a.bin", b"abc"), {"vocab_size": 9}, "a.bin: has 3 bytes, and 1 tokens have 2"),
    (of_one("a.bin", b"ab"), {"vocab_size": 70_000}, "a vocabulary of 70,000 does not fit"),
    (of_one("a.bin", b"ab"), {}, "do not name their tokenizer: set either data.tokenizer="),
    (of_one("a.bin", b"ab"), {"tokenizer": "bpe"}, "data.tokenizer=bpe: is trained on a text"),
    (of_one("a.npy", b"\x93NUMPYabc"), {"vocab_size": 9}, "a.npy: damaged or truncated"),
    (of_one("val.bin", b"ab" * 9), {"vocab_size": 9}, "no training split, only val"),
    (of_one("a.bin", b"ab" * 9), {"vocab_size": 9}, "has no validation split; set data.val_frac"),
    (
        lambda to: (to / "a.bin").symlink_to("b"),
        {"vocab_size": 9},
        "a.bin: cannot be read (No such",
    ),
    (of_one("a.txt", b"ab"), {}, "has no manifest.json of python -m ablate.prepare, *.bin or"),
    (nano_gpt, {"vocab_size": 300, "documents": "mask"}, "mask: the shards of data.root="),
]


@pytest.mark.parametrize(("write", "options", "line"), DAMAGED)
def test_a_damaged_file_of_another_program_is_one_line(write, options, line, tmp_path):
    write(tmp_path)
    with refused(line):
        ready("tokens", root=str(tmp_path), **(SMALL | options))


def test_attention_maps_stay_within_documents(shards):
    keys = ["data.seq_len=32", "data.batch_size=4", f"data.root={shards}", "data.documents=mask"]
    task = built("data=tokens", *MODEL, *keys)
    examples = map(task.data.example, range(task.data.length("val")))
    example = next(each for each in examples if each["documents"].max() > 1)
    number = example["documents"][0]
    (one,) = attention_maps(task, example)
    assert not one.weights[:, number[:, None] != number].any()


def test_damaged_tokens_are_one_line(shards, tmp_path):
    (shards / "val-00000.bin").write_bytes(b"\xff" * (shards / "val-00000.bin").stat().st_size)
    np.save(tmp_path / "train.npy", np.arange(-9, 90))
    np.save(tmp_path / "val.npy", np.arange(-9, 90))
    for root, token in ((shards, 65535), (f"{tmp_path}/*.npy", -9)):
        known = None if root is shards else 90
        data = ready("tokens", root=str(root), vocab_size=known, **SMALL)
        with refused(f"contain token {token}", "damaged", "data.vocab_size is of other shards"):
            list(data.val_dataloader())


def test_an_index_of_megatron_is_checked(tmp_path):
    megatron(tmp_path)
    for change, line in (
        (lambda raw: b"", "x_train.idx: is not an index of Megatron-LM"),
        (lambda raw: raw[:20], "x_train.idx: is not an index of Megatron-LM"),
        (lambda raw: raw[:17] + b"\x06" + raw[18:], "has type 6, which is not of tokens"),
        (lambda raw: raw[:36], "x_train.idx: is truncated"),
        (lambda raw: raw[:34] + b"\1" + raw[35:], "x_train.bin: has 1,600 bytes"),
    ):
        index = tmp_path / "x_train.idx"
        before = index.read_bytes()
        index.write_bytes(change(before))
        with refused(line):
            ready("tokens", root=str(tmp_path), vocab_size=300, **SMALL)
        index.write_bytes(before)
    index.unlink()
    index.symlink_to("gone")
    with refused("x_train.idx: cannot be read (No such file or directory)"):
        ready("tokens", root=str(tmp_path), vocab_size=300, **SMALL)


def test_a_model_is_measured_only_on_tokens_of_its_tokenizer(shards, tmp_path):
    data = ready("tokens", root=str(shards), **SMALL)
    other = tmp_path / "other"
    prepare(corpus(tmp_path / "a.jsonl"), other, tokenizer="byte")
    on_text = make("text", path=str(tmp_path / "a.txt"), seq_len=8, batch_size=2)
    (tmp_path / "a.txt").write_text("the cat's déjà vu " * 300)
    on_text.measure_as(data)
    on_text.setup()
    assert on_text.tokenizer is data.tokenizer
    wrong = make("tokens", root=str(other), **SMALL)
    wrong.measure_as(data)
    with refused("its tokens are of another tokenizer than the model's"):
        wrong.setup()


def test_other_shards_are_measured_whole_unless_they_have_a_validation_split(shards, tmp_path):
    data = ready("tokens", root=str(shards), **SMALL)
    ours = [tmp_path / "train", tmp_path / "test"]  # each with the only split that it is called
    manifest = json.loads((shards / "manifest.json").read_text())
    for folder in ours:
        shutil.copytree(shards, folder)
        splits = {"splits": {folder.name: manifest["splits"]["train"]}}
        (folder / "manifest.json").write_text(json.dumps(manifest | splits))
    for root, split in ((ours[0], "train"), (ours[1], "train"), (shards, "val")):
        other = make("tokens", root=str(root), **SMALL, documents="mask")
        other.measure_as(data)
        other.whole = True
        other.setup()
        assert {*other.splits} == {"val"}
        assert len(other.tokens["val"]) == len(data.tokens[split])
        assert other.per_token("val") == data.per_token(split)


def test_documents_are_found_in_every_part_of_the_shards(shards):
    """Also if a split is cut in the middle of one, and shards are read as one sequence."""
    tokens = ready("tokens", root=str(shards), **SMALL).tokens["train"]
    first = tokens.firsts()
    text = np.concatenate(tokens.arrays())
    assert first[0] == 0
    assert len(first) > 3
    whole = ready("tokens", root=str(shards), **SMALL).tokenizer
    assert len({whole.decode(part.tolist()) for part in np.split(text, first[1:])}) > 3
    cut = int(first[2]) + 1
    before, after = tokens.between(0, cut), tokens.between(cut, len(tokens))
    assert before.firsts().tolist() == first[:3].tolist()
    assert after.firsts().tolist() == [0, *(first[3:] - cut).tolist()]


@pytest.mark.ci
@pytest.mark.parametrize("documents", ["mask", "align", "pack"])
def test_a_model_is_trained_within_documents(shards, documents):
    """Validation rows are the same for every layout, but attention is not."""
    keys = [*TWO_STEPS, f"data.root={shards}", f"output_dir={shards.parent}"]
    losses = [
        ablate.run(ablate.compose(*keys, f"data.documents={layout}"))["metrics"]
        for layout in ("ignore", documents)
    ]
    assert losses[0]["val/loss"] != losses[1]["val/loss"]
    plain, within = (
        ready("tokens", root=str(shards), documents=layout, **SMALL).splits["val"]
        for layout in ("ignore", documents)
    )
    every = ablate.data.Request(0, torch.arange(len(plain)))
    assert within[every].keys() - plain[every].keys() == {"documents"}
    assert all(plain[every][name].equal(within[every][name]) for name in ("tokens", "targets"))


KILLS = int(os.environ.get("ABLATE_KILLS", "6"))  # 100 take half an hour


def life(cfg, folder, drawn, rank, world, port):
    """One of `world` processes that torchrun started; it notes the batches that it trains on."""
    ranks = {"RANK": rank, "LOCAL_RANK": rank, "WORLD_SIZE": world, "LOCAL_WORLD_SIZE": world}
    others = {"MASTER_ADDR": "127.0.0.1", "MASTER_PORT": port, "TORCHELASTIC_RUN_ID": "kills"}
    os.environ |= {name: str(value) for name, value in (ranks | others).items()}
    rank_zero_only.rank = rank  # lightning has read it at the import
    losses = CausalLM.losses

    def noted(task, batch):
        line = json.dumps([task.global_step, rank, world, batch["tokens"].tolist()]) + "\n"
        with open(drawn, "ab", buffering=0) as file:
            file.write(line.encode())
        return losses(task, batch)

    CausalLM.losses = noted
    ablate.run(cfg, folder)


@pytest.mark.slow
def test_kills_change_no_batch_in_any_number_of_processes(shards, tmp_path):
    """Killed at random times, and resumed in 1, 2 and 4 processes."""
    steps, folder, drawn = 5 * KILLS, tmp_path / "outputs" / "run", tmp_path / "drawn"
    words = (
        f"data=tokens data.root={shards} data.seq_len=8 data.batch_size=8 model.dim=16"
        f" model.depth=1 model.heads=2 trainer=ddp trainer.accelerator=cpu"
        f" trainer.max_steps={steps} trainer.val_check_interval={steps // 2} schedule.warmup=1"
        f" checkpoint_every=1 logger=none output_dir={tmp_path / 'outputs'}"
    ).split()
    cfgs = {n: ablate.compose(*words, f"trainer.devices={n}") for n in (1, 2, 4)}
    rng, kills, resumed = random.Random(0), 0, set()
    drawn.touch()
    fork = multiprocessing.get_context("fork")
    while kills < KILLS or not finished(folder):
        assert not finished(folder), f"only {kills} kills in {steps} steps"
        world = rng.choice([*cfgs])
        with socket.socket() as free:
            free.bind(("127.0.0.1", 0))
            port = free.getsockname()[1]
        begun = len(drawn.read_bytes().splitlines())
        processes = [
            fork.Process(target=life, args=(cfgs[world], folder, drawn, rank, world, port))
            for rank in range(world)
        ]
        for process in processes:
            process.start()
        wanted = begun + world * rng.randint(1, 4) if kills < KILLS else math.inf
        while len(drawn.read_bytes().splitlines()) < wanted and processes[0].is_alive():
            time.sleep(0.02)
        time.sleep(0.05 * rng.random())
        if wanted < math.inf:
            assert processes[0].is_alive(), f"ended by itself with {processes[0].exitcode}"
            kills += 1
            resumed.add(world)
            for process in processes:
                process.kill()
        for process in processes:
            process.join()
    data = ready("tokens", root=str(shards), seq_len=8, batch_size=8)
    data.train_batches = steps
    expected = [batch["tokens"] for batch in data.train_dataloader()]
    found = [json.loads(line) for line in drawn.read_text().splitlines()]
    for step, rank, world, tokens in found:
        assert tokens == expected[step].tensor_split(world)[rank].tolist()
    assert {step for step, *_ in found} == {*range(steps)}
    assert resumed == {*cfgs}


def finished(folder):
    result = folder / "result.json"
    return result.exists() and json.loads(result.read_text())["status"] == "finished"
