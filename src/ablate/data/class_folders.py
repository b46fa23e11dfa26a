"""Image or text files on disk with one folder for each class.

    root/train/CLASS/*.jpg  root/val/CLASS/*.jpg  root/test/CLASS/*.jpg     the given splits
    root/CLASS/*.jpg                                split by a hash of each file's relative path

Files in sub-folders of a class belong to it, as in torchvision's ImageFolder; hidden files and
folders are skipped. With train/ but without val/, the validation split is held out of train/ by a
hash of the paths; without test/ no test split. Splits made here have the same shares of
every class.
"""

import logging
import math
import re
from collections import Counter
from collections.abc import Iterable, Mapping, Sequence, Set
from hashlib import sha256
from itertools import chain
from pathlib import Path

from lightning.pytorch.utilities import rank_zero_only as on_first_process

from ablate.data import digest, source
from ablate.data.split import (
    BOUNDS,
    HELD_OUT,
    VALIDATION,
    hold_out,
    stratified,
    text_key,
    three_way,
    warn_of_copies,
)
from ablate.errors import UserError, suggest
from ablate.machine.terminal.bar import progress

log = logging.getLogger(__name__)

# Other names of the splits.
OTHER_NAMES = {
    **{"training": "train", "valid": "val", "validation": "val", "dev": "val", "testing": "test"},
    **{split: split for split in BOUNDS},
}


class ClassFolders:
    """root: the folder, as given in data.root. what: "images" or "texts". only: the single folder
    to read instead of one for each class.

    Files with other endings than those given are ignored. UserError if files are missing.
    """

    def __init__(self, root: str, *, endings: Set[str], what: str, only: str | None = None) -> None:
        self.root, self.endings, self.what = root, endings, what
        self.only = only
        self.folder = source.local(root)

    def fingerprint(self, beside: Iterable[Path] = ()) -> str:
        """A hash over every path and every byte, so as slow as the disk, and over the bytes of
        files next to them."""
        content = sha256()
        given = self._given_files()
        for split, files in given.items():
            for path in progress(files, f"reading {split or 'files'}", "files"):
                content.update(f"{split}/{self._key(path)}\0".encode())
                content.update(sha256(source.contents(path, key="data.root")).digest())
        for path in beside:
            content.update(sha256(source.contents(path, key="data.root")).digest())
        by_class = [] if self.only or "val" in given else ["by class"]
        return digest(content.hexdigest(), BOUNDS, VALIDATION, *by_class)

    def splits(self, *, whole: bool = False) -> dict[str, list[Path]]:
        """The files of each split, in order; none of the splits is empty. whole: all of a folder
        without splits are for validation."""
        given = self._given_files()
        files = {"val": given[""]} if whole and "" in given else self._split(given)
        for split, paths in files.items():
            if not paths:
                raise UserError(
                    f"data.root={self.root}: the {split} split would be empty: of"
                    f" {sum(map(len, files.values()))} files none falls into it; add some, or"
                    " divide them into train, val and test yourself"
                )
        return files

    def warn_of_copies(self, splits: Mapping[str, Sequence[Path]]) -> None:
        """Warn of files of the other splits that are also in training, under other names."""
        sizes = {s: [path.stat().st_size for path in paths] for s, paths in splits.items()}
        common = set(sizes.get("train", ())) & set(
            chain(*(sizes[s] for s in sizes if s != "train"))
        )
        keys = {
            split: [
                (size, _start(path)) if size and size in common else path
                for path, size in zip(paths, sizes[split], strict=True)
            ]
            for split, paths in splits.items()
        }
        warn_of_copies(keys, self.what)

    def labels(
        self, splits: dict[str, list[Path]], known: Sequence[str] = ()
    ) -> tuple[list[str], dict[str, list[int]]]:
        """The class names, sorted, and the label of each file; a given train/ contains every class.
        known: the names, if the model was trained on other files."""
        files = self._given_files()
        found = {self.class_of(path) for path in files.get("train", files.get("", []))}
        names = list(known) or sorted(found)
        classes = {split: [*map(self.class_of, paths)] for split, paths in splits.items()}
        labels = class_numbers(names, classes, f"data.root={self.root}")
        warn_of_spellings(Counter(chain(*classes.values())), f"data.root={self.root}")
        return names, labels

    def class_of(self, path: Path) -> str:
        return self.folder_of(path).name

    def folder_of(self, path: Path) -> Path:
        """The folder of a file's class."""
        first, second, *_ = path.relative_to(self.folder).parts
        return self.folder / first / second if first in BOUNDS else self.folder / first

    def _split(self, files: dict[str, list[Path]]) -> dict[str, list[Path]]:
        if "val" in files:
            return files
        paths = files.get("train", files.get("", []))
        keys = [self._key(path).encode() for path in paths]
        if self.only is None:
            shares = [HELD_OUT] if "train" in files else []
            numbers = stratified(keys, [self.class_of(path) for path in paths], *shares)
        elif "train" in files:
            numbers = dict(zip(("train", "val"), hold_out(keys), strict=True))
        else:
            numbers = three_way(keys)
        chosen = {name: [paths[number] for number in own] for name, own in numbers.items()}
        return {split: paths for split, paths in files.items() if split} | chosen

    def _key(self, path: Path) -> str:
        return path.relative_to(self.folder).as_posix()

    def _given_files(self) -> dict[str, list[Path]]:
        """The files of each given split, sorted; of the split "" if none is given."""
        if not self.folder.is_dir():
            raise UserError(f"data.root={self.root}: no such folder")
        folders = {path.name for path in self.folder.iterdir() if path.is_dir()}
        present = [split for split in BOUNDS if split in folders]
        others = {name: OTHER_NAMES.get(name.lower()) for name in sorted(folders - set(present))}
        if "train" in [*present, *others.values()]:
            for name, split in others.items():
                if split is not None:
                    raise UserError(
                        f"data.root={self.root}: the folder {name} is not a split (train, val,"
                        f" test); rename it to {split}"
                    )
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
                    f"data.root={self.root}: no {self.what} found {where}{classes};"
                    f" known endings: {' '.join(sorted(self.endings))}"
                )
        if self.only is None:
            self._require_full(files)
        return files

    def _require_full(self, files: dict[str, list[Path]]) -> None:
        """Raise UserError for a class without a file in training, as ImageFolder does."""
        where, paths = ("train", files["train"]) if "train" in files else ("", files[""])
        known = {self.class_of(path) for path in paths}
        for path in sorted((self.folder / where).iterdir()):
            if path.is_dir() and not source.hidden(path.name) and path.name not in known:
                raise UserError(
                    f"data.root={self.root}: the folder {path.name} has no {self.what}, so it is"
                    f" not a class; remove it, or add some (known endings:"
                    f" {' '.join(sorted(self.endings))})"
                )

    def _files(self, folder: Path) -> list[Path]:
        inside = folder / self.only if self.only else folder
        paths = sorted(
            path
            for path in source.visible(inside)
            if path.suffix.lower() in self.endings and path.parent != folder
        )
        for path in paths:
            try:
                str(path).encode()
            except UnicodeEncodeError:
                raise UserError(
                    f"data.root={self.root}: the name of {str(path)!a} is not UTF-8; rename it"
                ) from None
        return paths


def _start(path: Path) -> bytes:
    """A hash of the first bytes; with the size, it identifies an image."""
    with path.open("rb") as file:
        return sha256(file.read(2**16)).digest()


def class_numbers(
    names: Sequence[str], classes: Mapping[str, Sequence[str]], where: str
) -> dict[str, list[int]]:
    """The number of the class of each example of each split. names: of all classes. classes: of
    each example, by name. UserError for a single class, and for one that is not among the names."""
    if len(names) < 2:
        raise UserError(
            f"{where}: only one class found ({', '.join(names)}); classification needs at least two"
        )
    numbers = {name: number for number, name in enumerate(names)}
    for split, of_split in classes.items():
        if unknown := {*of_split} - {*names}:
            raise UserError(
                f"{where}: class {min(unknown)} of {split} is not in training"
                f"{suggest(min(unknown), names)}"
            )
    return {split: [numbers[name] for name in of_split] for split, of_split in classes.items()}


def warn_of_spellings(classes: Mapping[str, int], where: str) -> None:
    """Describe classes whose names differ only in spelling. classes: their examples."""
    spellings: dict[float | bytes, list[str]] = {}
    for name in classes:
        spellings.setdefault(_meaning(name), []).append(name)
    if several := [names for names in spellings.values() if len(names) > 1]:
        counted = "; ".join(
            " and ".join(f"{name} ({classes[name]:,})" for name in names) for names in several
        )
        on_first_process(log.warning)(
            "ablate: %s: these are different classes, whose names differ only in how they are"
            " written: %s",
            *(where, counted),
        )


def _meaning(name: str) -> float | bytes:
    """The number that a name is, or its text without hyphens and underscores."""
    try:
        number = float("" if "_" in name else name)
    except ValueError:
        number = math.nan
    return number if math.isfinite(number) else text_key(re.sub("[-_]", " ", name))
