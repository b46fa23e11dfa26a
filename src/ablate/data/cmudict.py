"""The CMU Pronouncing Dictionary: from the spelling of English words to their phonemes.

    aardvark -> AA R D V AA R K

Version 0.7b and later, github.com/cmusphinx/cmudict. A word's further pronunciations are numbered,
as in `aalen(2)`; the digits of vowels are their stress; # starts a comment.
"""

import re
from typing import Any, ClassVar, Literal

from ablate.data import source
from ablate.data.pair_tokenizer import Characters, PairTokenizer, Words
from ablate.data.pairs import Pair, Pairs
from ablate.data.split import split_of
from ablate.errors import UserError

FILE = "cmudict.dict"
URL = f"https://raw.githubusercontent.com/cmusphinx/cmudict/0f8072f814306c5ee4fbf992ed853601b12c01f9/{FILE}"
SHA256 = "81917843c7f44ce2b094ac63873c2c7a4cf802040792c455ba3ca406891c3d22"
# Upper ends of the hash interval of each split: val and test are small because decoding is slow.
BOUNDS = {"train": 0.90, "val": 0.95, "test": 1.0}
ENTRY = re.compile(r"(?P<word>[^\s(]+)(?:\((?P<variant>\d+)\))?\s+(?P<phonemes>[A-Z0-2 ]+)")


class CMUDict(Pairs):
    """Split by a hash of the word, so that its pronunciations stay together."""

    item: str | None = "phoneme"
    joint: ClassVar[bool] = False  # source and target have no vocabulary in common

    def __init__(
        self,
        *,
        root: str | None,
        stress: bool,
        variants: Literal["first", "all"],
        **options: Any,
    ) -> None:
        super().__init__(**options)
        self.root, self.stress = root, stress
        self.variants = variants

    def read(self) -> dict[str, list[Pair]]:
        raw = source.member(self.root, FILE, url=URL, sha256=SHA256)
        pairs: dict[str, list[Pair]] = {split: [] for split in BOUNDS}
        self.lines: dict[str, list[int]] = {split: [] for split in BOUNDS}
        seen: set[Pair] = set()
        for number, line in enumerate(source.text(raw, FILE, key="data.root").split("\n")):
            entry = line.partition("#")[0].strip()
            if not entry or (pair := self._pair(entry, number)) is None or pair in seen:
                continue
            seen.add(pair)  # two pronunciations can differ only in their stress
            split = split_of(pair.source.encode(), BOUNDS)
            pairs[split].append(pair)
            self.lines[split].append(number)
        return pairs

    def make_tokenizers(self, training: list[Pair]) -> tuple[PairTokenizer, PairTokenizer]:
        return Characters(p.source for p in training), Words.of(p.target for p in training)

    def location(self, split: str, number: int) -> str:
        return f"line {self.lines[split][number] + 1} of {FILE}"

    def _pair(self, entry: str, number: int) -> Pair | None:
        """None for a pronunciation that is left out."""
        match = ENTRY.fullmatch(entry)
        if match is None:
            raise UserError(
                f"data.root={self.root}: line {number + 1} of {FILE} is not a word and its "
                f"phonemes: {entry[:40]!a}"
            )
        if match["variant"] and self.variants == "first":
            return None
        phonemes = match["phonemes"] if self.stress else re.sub(r"\d", "", match["phonemes"])
        return Pair(match["word"], " ".join(phonemes.split()))
