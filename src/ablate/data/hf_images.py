"""Images of a Hugging Face data set, whose rows are read one by one with `datasets`."""

from collections.abc import Sequence
from functools import cached_property
from hashlib import sha256
from typing import Any

from PIL import Image

from ablate.config.rules import HUGGING_FACE
from ablate.data import digest, image_file, source
from ablate.data.class_folders import OTHER_NAMES, class_numbers
from ablate.data.documents import ROWS, is_saved
from ablate.data.image_folder import Encoded, EncodedImages
from ablate.data.images import Source
from ablate.data.split import HELD_OUT, stratified
from ablate.errors import UserError, first_line, shortened, suggest
from ablate.machine.terminal.bar import progress
from ablate.machine.version import require


class Rows(Encoded):
    """The images of a table, which has only their column. split: its name, for messages."""

    def __init__(
        self, table: Any, labels: Sequence[int], size: int, background: str | None, split: str
    ) -> None:
        super().__init__(table, labels, size, background)
        self.split = split

    def read(self, number: int) -> Image.Image:
        (cell,) = self.contents[number].values()
        where = f"of row {number} of {self.split}"
        content = _content(cell, where)
        return image_file.read(where, key="data.root", background=self.background, content=content)


class HFImages(EncodedImages):
    """label: a column of classes, numbers or strings.

    The splits are those of the data set. Without a validation split, one in twelve training images
    of each class validates, chosen by a hash of the row's number.
    """

    def __init__(self, *, root: str, image: str, label: str, **options: Any) -> None:
        super().__init__(**options)
        self.root, self.image, self.label = root, image, label

    @cached_property
    def tables(self) -> dict[str, Any]:
        """The rows of each split, opened but not read, with encoded images."""
        datasets = require("datasets", f"data.root={self.root}", "data")
        folder = source.local(self.root)
        on_hub = self.root.startswith(HUGGING_FACE)
        if not on_hub and not folder.exists():
            raise UserError(f"data.root={self.root}: no such folder or file; of the Hub: hf:NAME")
        try:
            if on_hub:
                name, _, config = self.root.removeprefix(HUGGING_FACE).partition(":")
                found = datasets.load_dataset(name, config or None)
            elif is_saved(folder):
                found = datasets.load_from_disk(str(folder))
            else:
                where = "data_dir" if folder.is_dir() else "data_files"
                found = datasets.load_dataset("parquet", **{where: str(folder)})
        except Exception as error:  # its errors are of many classes
            raise UserError(
                f"data.root={self.root}: cannot be read by datasets ({first_line(error)})"
            ) from None
        given = found if isinstance(found, dict) else {"train": found}
        tables = {
            OTHER_NAMES[name.lower()]: table
            for name, table in given.items()
            if name.lower() in OTHER_NAMES
        }
        if "train" not in tables:
            raise UserError(f"data.root={self.root}: has no split train, only {', '.join(given)}")
        for split, table in tables.items():
            for key, column in (("image", self.image), ("label", self.label)):
                if column not in table.column_names:
                    names = table.column_names
                    raise UserError(
                        f"data.{key}={column}: {split} of data.root={self.root} has no such column"
                        f"{suggest(column, names)} (it has {', '.join(names)})"
                    )
            encoded = datasets.Image(decode=False)
            try:
                tables[split] = table.with_format(None).cast_column(self.image, encoded)
            except Exception as error:  # as above
                raise UserError(
                    f"data.image={self.image}: {split} of data.root={self.root} has no images in"
                    f" this column ({first_line(error)})"
                ) from None
        return tables

    def fingerprint(self) -> str:
        """A hash over every image and label, so as slow as the disk."""
        content = sha256()
        for split, table in sorted(self.tables.items()):
            for start in progress(range(0, len(table), ROWS), f"reading {split}", "batches"):
                rows = table[start : start + ROWS]
                for n, cell in enumerate(rows[self.image]):
                    content.update(f"{split}/{rows[self.label][n]}\0".encode())
                    content.update(
                        sha256(_content(cell, f"of row {start + n} of {split}")).digest()
                    )
        return digest(content.hexdigest(), self._names, HELD_OUT)

    def read(self) -> dict[str, Source]:
        tables, labels = dict(self.tables), {split: self._labels(split) for split in self.tables}
        self.class_names = [*(self.known_classes or self._names or sorted({*labels["train"]}))]
        targets = class_numbers(self.class_names, labels, f"data.root={self.root}")
        if self.whole and "val" not in tables:
            tables, targets = {"val": tables["train"]}, {"val": targets["train"]}
        elif "val" not in tables:
            own, keys = targets["train"], [f"{row}".encode() for row in range(len(tables["train"]))]
            for split, rows in stratified(keys, labels["train"], HELD_OUT).items():
                tables[split] = self.tables["train"].select(rows)
                targets[split] = [own[row] for row in rows]
        self.require_room(len(next(iter(tables.values()))))
        sources: dict[str, Source] = {}
        for split, table in tables.items():
            images = table.select_columns([self.image])
            sources[split] = Rows(images, targets[split], self.size, self.background, split)
        return sources

    @property
    def _names(self) -> list[str] | None:
        """Of the classes, if the data set has them in order."""
        return getattr(self.tables["train"].features[self.label], "names", None)

    def _labels(self, split: str) -> list[str]:
        """The class of each row, by name."""
        table = self.tables[split]
        values = table.select_columns([self.label])[:][self.label]
        names = getattr(table.features[self.label], "names", None)
        for row, value in enumerate(values):
            if not isinstance(value, int | str) or (names is not None and value == -1):
                shown = shortened(str(value), 40)
                raise UserError(
                    f"data.label={self.label}: row {row} of {split} has the label {shown}, must be"
                    " a class, as a number or a string"
                )
        return [str(value) if names is None else names[value] for value in values]


def _content(cell: Any, where: str) -> bytes:
    """The bytes of a file, from a cell of datasets.Image(decode=False)."""
    if not cell or (cell["bytes"] is None and cell["path"] is None):
        raise UserError(f"data.image: the image {where} is missing")
    stored: bytes | None = cell["bytes"]
    return source.contents(cell["path"], key="data.root") if stored is None else stored
