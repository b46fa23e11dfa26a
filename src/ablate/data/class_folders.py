"""Image or text files on disk with one folder for each class.

    root/train/CLASS/*.jpg  root/val/CLASS/*.jpg  root/test/CLASS/*.jpg     the given splits
    root/CLASS/*.jpg                                split by a hash of each file's relative path

With train/ but without val/, the validation split is held out of train/ by a hash of the paths;
without test/ there is no test split.
"""

from collections.abc import Iterable, Set
from hashlib import sha256
from pathlib import Path

from ablate.data import digest, source
from ablate.data.split import BOUNDS, VALIDATION, hold_out, three_way
from ablate.errors import UserError


class ClassFolders:
    """root: the folder, as given in data.root. what: "images", or "texts". only: the one folder
    that is read instead of one for each class.

    Files with other endings than those given are ignored. UserError if files are missing.
    """

    def __init__(self, root: str, *, endings: Set[str], what: str, only: str | None = None) -> None:
        self.root, self.endings, self.what = root, endings, what
        self.only = only
        self.folder = source.local(root)

    def fingerprint(self, beside: Iterable[Path] = ()) -> str:
        """A hash over every path and every byte, so as slow as the disk, and over the bytes of
        files beside them."""
        content = sha256()
        for split, files in self._given_files().items():
            for path in files:
                content.update(f"{split}/{self._key(path)}\0".encode())
                raw = source.contents(path, key="data.root")
                content.update(bytes.fromhex(source.hashed(raw)))
        for path in beside:
            content.update(sha256(source.contents(path, key="data.root")).digest())
        return digest(content.hexdigest(), BOUNDS, VALIDATION)

    def splits(self) -> dict[str, list[Path]]:
        """The files of each split, in order; none of the splits is empty."""
        files = self._split(self._given_files())
        for split, paths in files.items():
            if not paths:
                raise UserError(
                    f"data.root={self.root}: the {split} split would be empty: of"
                    f" {sum(map(len, files.values()))} files the hash of no name falls into it; add"
                    " some, or divide them into train, val and test yourself"
                )
        return files

    def labels(self, splits: dict[str, list[Path]]) -> tuple[list[str], dict[str, list[int]]]:
        """The class names, sorted, and the label of each file; a given train/ holds every class."""
        files = self._given_files()
        names = sorted({path.parent.name for path in files.get("train", files.get("", []))})
        if len(names) < 2:
            raise UserError(
                f"data.root={self.root}: has the one class {names[0]}, and a classifier needs two"
            )
        for split, paths in splits.items():
            for path in paths:
                if path.parent.name not in names:
                    raise UserError(
                        f"data.root={self.root}: class {path.parent.name} of {split} is not in"
                        " train"
                    )
        numbers = {name: number for number, name in enumerate(names)}
        return names, {
            split: [numbers[path.parent.name] for path in paths] for split, paths in splits.items()
        }

    def _split(self, files: dict[str, list[Path]]) -> dict[str, list[Path]]:
        if "train" not in files:
            return _chosen(files[""], three_way(self._keys(files[""])))
        if "val" in files:
            return files
        train, val = hold_out(self._keys(files["train"]))
        return files | _chosen(files["train"], {"train": train, "val": val})

    def _keys(self, paths: list[Path]) -> list[bytes]:
        return [self._key(path).encode() for path in paths]

    def _key(self, path: Path) -> str:
        return path.relative_to(self.folder).as_posix()

    def _given_files(self) -> dict[str, list[Path]]:
        """The files of each given split, sorted; of the split "" if none is given."""
        if not self.folder.is_dir():
            raise UserError(f"data.root={self.root}: no such folder")
        present = [split for split in BOUNDS if (self.folder / split).is_dir()]
        if present and "train" not in present:
            raise UserError(
                f"data.root={self.root}: has {' and '.join(present)} but no train folder"
            )
        files = {split: self._files(self.folder / split) for split in present or [""]}
        for split, paths in files.items():
            if not paths:
                where = Path(self.root, split, self.only or "CLASS", "FILE")
                classes = "" if self.only else ", a folder for each class"
                raise UserError(
                    f"data.root={self.root}: there are no {self.what} {where}{classes};"
                    f" known endings: {' '.join(sorted(self.endings))}"
                )
        return files

    def _files(self, folder: Path) -> list[Path]:
        paths = sorted(
            path
            for path in folder.glob(f"{self.only or '*'}/*")
            if path.suffix.lower() in self.endings
        )
        for path in paths:
            try:
                str(path).encode()
            except UnicodeEncodeError:
                raise UserError(
                    f"data.root={self.root}: the name of {str(path)!a} is not UTF-8; rename it"
                ) from None
        return paths


def _chosen(paths: list[Path], split: dict[str, list[int]]) -> dict[str, list[Path]]:
    return {name: [paths[number] for number in numbers] for name, numbers in split.items()}
