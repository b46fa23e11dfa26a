"""Parallel text in two files, plain or gzip: line n of one is the translation of line n of the
other."""

from typing import Any, ClassVar, Literal

from ablate.config.rules import Count, Fraction, Vocabulary
from ablate.data import source as files
from ablate.data.pair_tokenizer import PairTokenizer, make
from ablate.data.pairs import Pair, Pairs
from ablate.data.split import position, text_key, warn_of_shared
from ablate.errors import UserError

VALIDATION = 0.05  # share of the training files, if no validation data is given


class Translations(Pairs):
    """Base of data sets of sentence pairs: their tokenizers."""

    for_training: ClassVar[tuple[str, ...]] = (
        *Pairs.for_training,
        *("tokenizer", "vocab_size", "min_count", "joint"),
    )

    def __init__(
        self,
        *,
        tokenizer: Literal["char", "word", "bpe"],
        vocab_size: Vocabulary | None,
        min_count: Count,
        joint: bool,
        lower: bool,
        **options: Any,
    ) -> None:
        super().__init__(**options)
        self.tokenizer = tokenizer
        self.vocab_size = vocab_size
        self.min_count = min_count
        self.joint, self.lower = joint, lower
        if vocab_size is not None and tokenizer != "bpe":
            raise UserError(f"data.vocab_size={vocab_size}: needs data.tokenizer=bpe")
        if min_count > 1 and tokenizer != "word":
            raise UserError(f"data.min_count={min_count}: needs data.tokenizer=word")

    def make_tokenizers(self, training: list[Pair]) -> tuple[PairTokenizer, PairTokenizer]:
        sources, targets = [p.source for p in training], [p.target for p in training]
        if self.joint:
            both = self._tokenizer(sources + targets)
            return both, both
        return self._tokenizer(sources), self._tokenizer(targets)

    def _tokenizer(self, texts: list[str]) -> PairTokenizer:
        return make(
            self.tokenizer,
            texts,
            vocab_size=self.vocab_size,
            min_count=self.min_count,
            lower=self.lower,
        )

    def learned(self, pair: Pair) -> Pair:
        """The pair without spaces at the ends, lower-cased if `lower`."""
        source, target = (line.strip() for line in pair)
        return Pair(source.lower(), target.lower()) if self.lower else Pair(source, target)


class Parallel(Translations):
    """val_fraction, test_fraction: chosen by a hash of each source so that the same sentence, as
    `text_key` compares, is never in two splits. null if files are given; a message then counts
    their sentences that are also in training.
    """

    def __init__(
        self,
        *,
        source: str,
        target: str,
        val_source: str | None,
        val_target: str | None,
        test_source: str | None,
        test_target: str | None,
        val_fraction: Fraction | None,
        test_fraction: Fraction | None,
        **options: Any,
    ) -> None:
        super().__init__(**options)
        self.files = {"train": Pair(source, target)}  # their names, by split
        self._give("val", val_source, val_target)
        self._give("test", test_source, test_target)
        self.shares = {
            "val": self._taken("val", val_fraction, VALIDATION),
            "test": self._taken("test", test_fraction, 0.0),
        }
        if sum(self.shares.values()) >= 1:
            raise UserError(
                f"data.val_fraction={self.shares['val']} and "
                f"data.test_fraction={self.shares['test']} leave nothing to train on"
            )

    def _give(self, split: str, source: str | None, target: str | None) -> None:
        """Use the files of a split, both or neither."""
        if source is not None and target is not None:
            self.files[split] = Pair(source, target)
        elif target is not None:
            raise UserError(f"data.{split}_target={target}: requires data.{split}_source")
        elif source is not None:
            raise UserError(f"data.{split}_source={source}: requires data.{split}_target")

    def _taken(self, split: str, share: float | None, default: float) -> float:
        """The share of the training files that goes to a split."""
        if share is None:
            return 0.0 if split in self.files else default
        if split in self.files:
            raise UserError(
                f"data.{split}_fraction={share}: data.{split}_source is also set; set one to null"
            )
        return share

    def read(self) -> dict[str, list[Pair]]:
        read = {split: [self.learned(pair) for pair in self._lines(split)] for split in self.files}
        everything = read["train"]
        if self.whole and len(self.files) == 1:
            self.lines = {"val": list(range(len(everything)))}
            return {"val": everything}
        self.lines = self._divided(everything)
        read |= {s: [everything[line] for line in lines] for s, lines in self.lines.items()}
        return {split: read[split] for split in ("train", "val", "test") if split in read}

    def _lines(self, split: str) -> list[Pair]:
        prefix = "" if split == "train" else f"{split}_"
        keys = f"data.{prefix}source", f"data.{prefix}target"
        source, target = self.files[split]
        read = lines(source, keys[0]), lines(target, keys[1])
        return aligned(*read, f"{keys[0]}={source}", f"{keys[1]}={target}")

    def load(self) -> None:
        super().load()
        if len(self.files) > 1:
            sources = {s: [pair.source for pair in pairs] for s, pairs in self.texts.items()}
            warn_of_shared(sources, "sources")

    def location(self, split: str, number: int) -> str:
        files = self.files.get(split, self.files["train"])
        line = self.lines[split][number] if split in self.lines else number
        return f"line {line + 1} of {files.source} and {files.target}"

    def _divided(self, pairs: list[Pair]) -> dict[str, list[int]]:
        """Line numbers of the training files for each split taken from them."""
        divided: dict[str, list[int]] = {"train": []}
        divided |= {split: [] for split, share in self.shares.items() if share}
        for line, pair in enumerate(pairs):
            at = position(text_key(pair.source))
            if at < self.shares["val"]:
                divided["val"].append(line)
            elif at >= 1 - self.shares["test"]:
                divided["test"].append(line)
            else:
                divided["train"].append(line)
        for split, chosen in divided.items():
            if not chosen:
                shares = ", ".join(f"data.{s}_fraction={v}" for s, v in self.shares.items() if v)
                raise UserError(f"{shares}: the {split} split of {len(pairs)} pairs would be empty")
        return divided


def aligned(source: list[str], target: list[str], first: str, second: str) -> list[Pair]:
    """Line n of one file with line n of the other. first, second: the files, for messages."""
    if len(source) != len(target):
        raise UserError(
            f"{first} has {len(source)} lines and {second} has {len(target)}; they must be aligned"
            " line by line"
        )
    return [Pair(*both) for both in zip(source, target, strict=True)]


def lines(path: str, key: str) -> list[str]:
    r"""The lines of a text file. Only \n ends one: Unicode's other line boundaries occur within
    sentences, and would misalign the two files.
    """
    return split_lines(files.text(files.read(path, key=key), path, key=key))


def split_lines(text: str) -> list[str]:
    return text.removesuffix("\n").split("\n")
