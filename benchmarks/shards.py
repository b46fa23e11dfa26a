"""Token shards: how fast they are prepared and read, and how a run on 20 GB of them starts.

    python benchmarks/shards.py [--megabytes 10]

Rates are tokens per second of CPU time of one process, so that other load changes them little:
ablate.prepare next to `encode_batch_fast` of tokenizers on the same texts, and windows of 1,024
tokens at random places of the shards. Runs on sparse shards of 20 GB, on a small shard and on the
default text take turns: CPU seconds until the first step is done, and the largest memory then.
"""

import argparse
import json
import os
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable
from pathlib import Path
from pydoc_data.topics import topics
from statistics import median

import numpy as np
import torch

from ablate.data.documents import Corpus
from ablate.data.loader import Request
from ablate.data.preparation import LOCK, SHARD, TOKENIZER, prepare
from ablate.data.shards import FORMAT
from ablate.data.tokenizer import Bpe, Char
from ablate.data.tokens import Tokens

ROUNDS = 3  # of which the fastest counts
DOCUMENT = 1000  # tokens of each in the sparse shards
PAIRS = 5  # rounds of the runs that take turns; the median counts
FIRST_STEP = """
import os, resource, runpy, sys, time
from ablate.task.causal_lm import CausalLM

def ended(task, *_):
    memory = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss / 1024
    print(f"ended {time.process_time()} {memory}", flush=True)
    os._exit(0)

CausalLM.on_train_batch_end = ended
runpy.run_module("ablate", run_name="__main__")
"""


def rate(work: Callable[[], int]) -> float:
    """Tokens per CPU second."""
    begun = time.process_time()
    tokens = work()
    return tokens / (time.process_time() - begun)


def preparing(folder: Path, megabytes: float) -> None:
    texts = list(topics.values())
    texts *= max(1, round(megabytes * 1e6 / sum(map(len, texts))))
    corpus = folder / "corpus.jsonl"
    corpus.write_text("".join(json.dumps({"text": text}) + "\n" for text in texts))
    made = Bpe.of(iter(texts[: len(topics)]), vocab_size=8000)

    def library() -> int:
        return sum(len(one.ids) for one in made.model.encode_batch_fast(texts))

    def ours(to: Path) -> int:
        manifest = prepare(Corpus([corpus], val_share=0.01), to, tokenizer="bpe", vocab_size=8000)
        return sum(split["tokens"] for split in manifest["splits"].values())

    rates: dict[str, list[float]] = {"library": [], "ablate.prepare": []}
    for number in range(ROUNDS):
        to = folder / f"{number}"
        to.mkdir()
        (to / LOCK).touch()
        (to / TOKENIZER).write_text(json.dumps(made.state()))  # learned before
        rates["library"].append(rate(library))
        rates["ablate.prepare"].append(rate(lambda to=to: ours(to)))
    for name, found in rates.items():
        print(f"{name}: {max(found):,.0f} tokens/s, {max(found) / max(rates['library']):.2f}")


def sparse(folder: Path, shards_of_training: int, tokens_of_each: int = SHARD) -> Path:
    """Shards of zeros that take no room, with a character tokenizer."""
    folder.mkdir()
    state = Char.of(["".join(map(chr, range(32, 127)))], []).state()
    splits = {}
    for split, count in (("train", shards_of_training), ("val", 1)):
        shards = []
        for number in range(count):
            tokens = tokens_of_each if split == "train" else 2**20
            shard = {"file": f"{split}-{number:05}.bin", "index": f"{split}-{number:05}.npy"}
            os.close(os.open(folder / shard["file"], os.O_CREAT))
            os.truncate(folder / shard["file"], 2 * tokens)
            starts = np.arange(0, tokens, DOCUMENT)
            np.save(folder / shard["index"], starts)
            counts = {"tokens": tokens, "documents": len(starts), "sha256": "0" * 64}
            shards.append(shard | counts)
        counts = {"characters": 1, "bytes": 1, "unknown": 0, "restores": True}
        splits[split] = counts | {"shards": shards}
    tokenizer = {"name": "char", "state": state}
    content = FORMAT | {"dtype": "<u2", "tokenizer": tokenizer, "splits": splits}
    (folder / "manifest.json").write_text(json.dumps(content))
    return folder


def reading(root: Path, windows: int = 32, batches: int = 300) -> None:
    data = Tokens(
        root=str(root), tokenizer=None, vocab_size=None, seq_len=1024, batch_size=windows,
        val_fraction=None, seed=0,
    )  # fmt: skip
    data.setup()
    order, found = data.train_order().of_epoch(0), []
    for _ in range(ROUNDS):
        begun = time.process_time()
        for number in range(batches):
            data.splits["train"][Request(0, order(number))]
        found.append(batches * windows * 1024 / (time.process_time() - begun))
    print(f"windows of 1,024: {max(found):,.0f} tokens/s of {len(data.tokens['train']):,}")


def starting(roots: dict[str, Path], folder: Path) -> None:
    common = f"data.seq_len=64 trainer.max_steps=1 logger=none output_dir={folder}/runs"
    runs = {"the default text": ["data=pydoc"]} | {
        name: ["data=tokens", f"data.root={root}"] for name, root in roots.items()
    }
    found: dict[str, list[list[float]]] = {name: [] for name in runs}
    for number in range(PAIRS):
        for name, words in runs.items():
            typed = [*words, *common.split(), f"seed={number}"]
            command = [sys.executable, "-c", FIRST_STEP, *typed]
            out = subprocess.run(command, capture_output=True, text=True).stdout
            found[name].append([float(each) for each in out.split("ended ")[1].split()])
    for name, measured in found.items():
        seconds, memory = map(median, zip(*measured, strict=True))
        print(f"first step, {name}: {seconds:.2f} s of CPU, {memory:,.0f} MiB")


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--megabytes", type=float, default=10)
    args = parser.parse_args()
    os.environ["TOKENIZERS_PARALLELISM"] = "false"
    torch.set_num_threads(1)
    with tempfile.TemporaryDirectory() as name:
        folder = Path(name)
        preparing(folder, args.megabytes)
        root = sparse(folder / "sparse", round(20e9 / 2 / SHARD))
        reading(root)
        small = sparse(folder / "small", 1, 2**20)
        starting({"1 shard of 2 MB": small, "20 GB of shards": root}, folder)


if __name__ == "__main__":
    main()
