"""Multi30k: captions of photographs in English, German and French, 29,000 to train on.

Elliott et al. 2016, section 3 (arXiv 1605.00459); French: Elliott et al. 2017 (arXiv 1710.07177).
Task 1 of github.com/multi30k/dataset as published, neither tokenized nor lower-cased.
"""

from collections.abc import Sequence
from typing import Annotated, Any

from ablate.config.rules import ListOf, OneOf
from ablate.data import source
from ablate.data.pairs import Pair
from ablate.data.parallel import Translations, aligned, split_lines
from ablate.errors import UserError

URL = (
    "https://raw.githubusercontent.com/multi30k/dataset/"
    "a3d2e0d26b56f3846f66a952536ffed4e401d05a/data/task1/raw/"
)
FILES = {"train": "train", "val": "val", "test": "test_2016_flickr"}
SHA256 = {  # of the files at URL
    "test_2016_flickr.de.gz": "9204244e408ccb38d2a55cfcd344df15005fc42a07a6e55ca6c52b6ababb8cc8",
    "test_2016_flickr.en.gz": "611d361c6334bc7246101d48097c13cf5c4413c5befc793cc629934359d532d9",
    "test_2016_flickr.fr.gz": "6d326e188d259fb1d04ac19eae3af956559b3a0b93d7635e56c90987c40c8b90",
    "train.de.gz": "726e39b2fa9eb9ffb6dc763fb35a179f80fae06ffc5d28b6ace5faa883de28a6",
    "train.en.gz": "d79cfa999dd4c51d2cb42499b6796d5a882c3a8a961923c25a898c90f8bbd56f",
    "train.fr.gz": "622e75069e9f4c577425c4f277116ce66e63a2401c0a2312d90073cb12379a3c",
    "val.de.gz": "f0cba2f995189cf5770f29a8a9a537a3ad3f51657ad873405082ff6863a5e75a",
    "val.en.gz": "14f7d25ddd868909a9213e361768460edcacdd6ab9d1e77b92560dc10c10dc28",
    "val.fr.gz": "ca3106f1a72390591d25f6c45cb4cd39dec4cd3f123e099748a3ce5256c160e9",
}


class Multi30k(Translations):
    """root: a folder with the files of FILES and SHA256, gzip or plain. The test split is test 2016
    (Flickr).
    """

    def __init__(
        self,
        *,
        pair: Annotated[Sequence[str], ListOf(OneOf(("de", "en", "fr")), length=2)],
        root: str | None,
        **options: Any,
    ) -> None:
        super().__init__(**options)
        self.pair = tuple(pair)
        if len(set(self.pair)) == 1:
            raise UserError(f"data.pair=[{','.join(self.pair)}]: must be two different languages")
        self.root = root

    def read(self) -> dict[str, list[Pair]]:
        return {split: self._split_of(name) for split, name in FILES.items()}

    def location(self, split: str, number: int) -> str:
        source, target = (f"{FILES[split]}.{language}" for language in self.pair)
        return f"line {number + 1} of {source} and {target}"

    def _split_of(self, name: str) -> list[Pair]:
        source, target = (f"{name}.{language}" for language in self.pair)
        read = self._lines(f"{source}.gz"), self._lines(f"{target}.gz")
        return [*map(self.learned, aligned(*read, f"data.root={self.root}: {source}", target))]

    def _lines(self, file: str) -> list[str]:
        raw = source.member(self.root, file, url=f"{URL}{file}", sha256=SHA256[file])
        return split_lines(source.text(raw, file, key="data.root"))
