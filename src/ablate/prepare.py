"""Tokenize text into shards for data=tokens: python -m ablate.prepare SOURCE... --to DIR

A source is a file, a folder, a pattern such as 'corpus/*.jsonl.zst', a folder of save_to_disk of
Hugging Face datasets, or a data set on its hub, which is streamed once: hf:NAME or hf:NAME:CONFIG.
A document is a line of .jsonl or .ndjson, or of a .json file of such lines, a row of .parquet or of
a data set, or a whole text file; .gz and .zst are decompressed. A call that was stopped or killed
is continued by the same command; the shards do not depend on --workers.

python -m ablate.prepare corpus/ --to shards --tokenizer bpe --vocab-size 32000
python -m ablate.prepare hf:HuggingFaceFW/fineweb:sample-10BT --to fineweb --tokenizer tiktoken:gpt2
python -m ablate data=tokens data.root=shards
"""

import os
from argparse import ArgumentTypeError
from pathlib import Path
from typing import Any

from ablate.cli.command import Arguments, command
from ablate.errors import UserError


def main() -> None:
    parser = Arguments(prog="python -m ablate.prepare", description=__doc__)
    parser.add_argument("source", nargs="+", help="file, folder, pattern, or data set")
    parser.add_argument("--to", type=Path, required=True, metavar="DIR", help="output directory")
    parser.add_argument(
        "--tokenizer",
        default="bpe",
        metavar="NAME",
        help="char, byte, bpe (trained here), hf:NAME_OR_PATH, tiktoken:NAME (default: bpe)",
    )
    parser.add_argument(
        "--vocab-size", type=_count, metavar="N", help="tokens of bpe (default: 1024 at most)"
    )
    parser.add_argument(
        "--column", default="text", help="key or column that contains the text (default: text)"
    )
    validation = parser.add_mutually_exclusive_group()
    validation.add_argument(
        "--val",
        type=_share,
        default=0.01,
        metavar="SHARE",
        help="share of the documents that validates, chosen by a hash of each (default: 0.01)",
    )
    validation.add_argument(
        "--val-files", nargs="+", metavar="SOURCE", help="sources whose documents validate"
    )
    validation.add_argument(
        "--val-split", metavar="NAME", help="split of a data set that validates"
    )
    parser.add_argument(
        "--train-split", default="train", metavar="NAME", help="split that trains (default: train)"
    )
    parser.add_argument(
        "--workers",
        type=_count,
        default=os.cpu_count() or 1,
        metavar="N",
        help="processes that tokenize (default: one per core)",
    )
    parser.add_argument(
        "--shard", type=_count, default=2**27, metavar="N", help="tokens of a shard (default: 2^27)"
    )
    args = parser.parse_args()
    from ablate.data.documents import Corpus, find
    from ablate.data.preparation import prepare

    to = args.to.resolve()
    files, val_files = (
        {path.resolve(): path for path in find(sources) if to not in path.resolve().parents}
        for sources in (args.source, args.val_files or ())
    )
    if both := files.keys() & val_files.keys():
        raise UserError(f"{files[min(both)]}: is in SOURCE and in --val-files")
    corpus = Corpus(
        [*files.values()],
        column=args.column,
        val_share=0.0 if val_files or args.val_split else args.val,
        val_files=[*val_files.values()],
        train_split=args.train_split,
        val_split=args.val_split,
    )
    manifest = prepare(
        corpus,
        args.to,
        tokenizer=args.tokenizer,
        vocab_size=args.vocab_size,
        workers=args.workers,
        shard=args.shard,
    )
    print(summary(args.to, manifest))


def summary(folder: Path, manifest: dict[str, Any]) -> str:
    lines = [
        f"{split}: {of['tokens']:,} tokens of {of['documents']:,} documents,"
        f" {len(of['shards'])} shard{'s' * (len(of['shards']) > 1)}"
        for split, of in manifest["splits"].items()
    ]
    vocabulary = f"{manifest['tokenizer']['name']}, {manifest['vocab_size']:,} tokens"
    train = f"python -m ablate data=tokens data.root={folder}"
    if "val" not in manifest["splits"]:
        lines.append("no document validates: data.val_fraction=0.01 takes the last tokens for that")
        train = f"{train} data.val_fraction=0.01"
    return "\n".join([f"{folder}: {vocabulary}", *lines, train])


def _count(text: str) -> int:
    if not text.isdecimal() or not int(text):
        raise ArgumentTypeError(f"must be a positive integer, is {text}")
    return int(text)


def _share(text: str) -> float:
    try:
        share = float(text)
    except ValueError:
        share = -1.0
    if not 0 <= share < 1:
        raise ArgumentTypeError(f"must be a number from 0 to less than 1, is {text}")
    return share


if __name__ == "__main__":
    command(main)
