"""Read the documents of files one by one, to tokenize them (ablate.data.preparation).

A document is a line of .jsonl or .ndjson, or of a .json file of such lines, a row of .parquet or of
a data set saved by Hugging Face datasets (save_to_disk) or streamed from its hub (hf:NAME or
hf:NAME:CONFIG), or a whole file of any other name, as UTF-8 text. All but Parquet may be
compressed, as .gz or .zst.
"""

import gzip
import hashlib
import io
import json
import os
import zlib
from abc import ABC, abstractmethod
from collections.abc import Iterable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from functools import partial
from glob import glob
from itertools import chain, islice, pairwise
from pathlib import Path
from typing import IO, Any, NamedTuple, cast

from ablate.config.rules import HUGGING_FACE
from ablate.data import source, split
from ablate.data.pieces import recut
from ablate.errors import UserError, first_line, suggest
from ablate.machine.version import require

SAVED_TO_DISK = ("dataset_dict.json", "dataset_info.json", "state.json")
LINES = (".jsonl", ".ndjson")
TABLES = (*LINES, ".parquet")  # files with many documents
PACKED = (".gz", ".zst")
FIRST_LINE = 2**26  # bytes of it, at most, in a .json file
ROWS = 1000  # read at a time
BETWEEN = "\n\n"  # documents, if the tokenizer has no token for their end
Document = Iterable[str]  # a text in pieces
Place = tuple[int, int, int]  # numbers of a file, of a document in it, and of a piece of that


class Piece(NamedTuple):
    """A part of a document. first, last: whether the document begins and ends with it. after: the
    place of the next piece."""

    split: str
    text: str
    first: bool
    last: bool
    after: Place


class TextSource(ABC):
    """A text in pieces that can be tokenized one by one (`recut`), each in one split.

    notes: lines for the user of the text.
    """

    notes: Sequence[str] = ()

    @abstractmethod
    def pieces(self, start: Place = (0, 0, 0)) -> Iterator[Piece]:
        """The pieces from a place on."""

    @abstractmethod
    def texts(self, split: str) -> Iterator[str]:
        """The text of a split, for the training of its tokenizer."""


@dataclass(frozen=True)
class Corpus(TextSource):
    """Files with documents, and which of them validate.

    column: of the text, in JSON lines and tables. val_share: of the documents of `files`, chosen by
    a hash of the first characters of each, so that equal documents are in one split in any order.
    val_files: files whose documents all validate. train_split, val_split: of a data set with named
    splits; val_split None: `val_share` of the training split.
    """

    files: Sequence[Path]
    column: str = "text"
    val_share: float = 0.0
    val_files: Sequence[Path] = ()
    train_split: str = "train"
    val_split: str | None = None

    def __post_init__(self) -> None:
        """UserError for an option that has no effect on these files, or for equal splits."""
        if self.val_split == self.train_split:
            raise UserError(f"--val-split {self.val_split}: is the split that trains")
        if self.val_split is not None or self.train_split != "train":
            for path in self.files:
                if not (is_hub(path) or (path / SAVED_TO_DISK[0]).is_file()):
                    raise UserError(
                        f"{path}: has no named splits; --train-split and --val-split are of data"
                        " sets of Hugging Face with several splits"
                    )
        if self.column != "text" and not any(
            _has_columns(path, self.column) for path in (*self.files, *self.val_files)
        ):
            raise UserError(f"--column {self.column}: no source has keys or columns")

    @property
    def parts(self) -> list[tuple[Path, str | None, str]]:
        """Each file with the split of its documents, None if a hash decides, and the name of the
        split to read."""
        split = "train" if self.val_files or self.val_split else None
        parts = [(file, split, self.train_split) for file in self.files]
        if self.val_split is not None:
            parts += [(file, "val", self.val_split) for file in self.files]
        return [*parts, *((file, "val", self.train_split) for file in self.val_files)]

    def pieces(self, start: Place = (0, 0, 0)) -> Iterator[Piece]:
        first_file, first_document, first_piece = start
        for file, (path, of_all, name) in enumerate(self.parts[first_file:], first_file):
            documents = self._documents(path, name, first_document)
            for number, document in enumerate(documents, first_document):
                yield from self._pieces(document, of_all, (file, number, first_piece))
                first_piece = 0
            first_document = first_piece = 0

    def texts(self, split: str) -> Iterator[str]:
        for piece in self.pieces():
            if piece.split == split:
                yield piece.text + BETWEEN * piece.last

    def _pieces(self, document: Document, of_all: str | None, start: Place) -> Iterator[Piece]:
        file, number, skipped = start
        pieces = recut(document)
        if (head := next(pieces, None)) is None:
            return
        key = split.text_key(head)
        part = of_all or ("val" if split.position(key) < self.val_share else "train")
        numbered = islice(enumerate(chain([head], pieces)), skipped, None)
        for (at, text), (following, _) in pairwise(chain(numbered, [(0, "")])):
            after = (file, number, following) if following else (file, number + 1, 0)
            yield Piece(part, text, at == 0, not following, after)

    def _documents(self, path: Path, name: str, start: int) -> Iterator[Document]:
        if is_hub(path):
            return _streamed(path, self.column, name, start)
        if path.is_dir():
            return _saved(path, self.column, name, start)
        if kind(path) == ".parquet":
            return _parquet(path, self.column, start)
        if kind(path) in LINES or _has_lines(path, self.column):
            return _json_lines(path, self.column, start)
        return iter([_text(path)][start:])


def kind(path: Path) -> str:
    """The ending of a name without that of a compression."""
    endings = (ending.lower() for ending in reversed(path.suffixes))
    return next((ending for ending in endings if ending not in PACKED), "")


def find(sources: Iterable[str]) -> list[Path]:
    """The files of paths, folders and patterns of names, in order and each once; a folder of
    save_to_disk counts as a file. UserError for one that has none."""
    found: list[Path] = []
    for text in sources:
        path = source.local(text)
        if is_hub(Path(text)):
            found.append(Path(text))
        elif path.is_file() or is_saved(path):
            found.append(path)
        elif path.is_dir():
            saved = {inner.parent for inner in path.rglob("*.json") if is_saved(inner.parent)}
            files = {file for file in source.visible(path) if not saved & {*file.parents}}
            nested = {inner for inner in saved if not saved & {*inner.parents}}
            found += (inside := sorted(files | nested))
            if not inside:
                raise UserError(f"{text}: the folder has no files")
        elif path.exists():
            raise UserError(f"{text}: is neither a file nor a folder")
        else:
            found += find(matching := sorted(glob(str(path), recursive=True)))
            if not matching:
                near = [p.name for p in path.parent.iterdir()] if path.parent.is_dir() else []
                raise UserError(f"{text}: no such file or folder{suggest(path.name, near)}")
    return list({os.path.abspath(path): path for path in found}.values())


def is_saved(folder: Path) -> bool:
    """Whether this is a folder of save_to_disk."""
    if (folder / SAVED_TO_DISK[0]).is_file():
        return True
    return all((folder / name).is_file() for name in SAVED_TO_DISK[1:])


def is_hub(path: Path) -> bool:
    """Whether this is the name of a data set on the hub of Hugging Face."""
    return str(path).startswith(HUGGING_FACE)


def files_in(path: Path) -> list[Path]:
    """A file, or those of a folder of save_to_disk."""
    files = sorted(path.rglob("*")) if path.is_dir() else [path]
    return [file for file in files if file.is_file()]


def bytes_in(path: Path) -> int:
    return sum(file.stat().st_size for file in files_in(path))


def sha256(path: Path) -> str:
    """Of a file as it is. UserError if it cannot be read."""
    try:
        with open(path, "rb") as file:
            return hashlib.file_digest(file, "sha256").hexdigest()
    except OSError as error:
        raise UserError(f"{path}: cannot be read ({error.strerror})") from None


def _has_columns(path: Path, column: str) -> bool:
    return is_hub(path) or path.is_dir() or kind(path) in TABLES or _has_lines(path, column)


def _has_lines(path: Path, column: str) -> bool:
    """Whether this is a .json file of JSON lines, as those of C4: its first line is a whole object.
    A single object without `text` is read as one text, unless another column was asked for."""
    if kind(path) != ".json":
        return False
    with _opened(path) as file:
        first, second = _row(file), _row(file)
    return first is not None and (column in first or column != "text" or second is not None)


def _row(file: IO[bytes]) -> dict[str, Any] | None:
    """The object of the next line; None if it has none."""
    try:
        row = json.loads(file.readline(FIRST_LINE))
    except (ValueError, RecursionError):
        return None
    return row if isinstance(row, dict) else None


@contextmanager
def _opened(path: Path) -> Iterator[IO[bytes]]:
    """A file, decompressed by its ending. UserError if it cannot be read or is damaged."""
    damaged: tuple[type[Exception], ...] = (EOFError, zlib.error, gzip.BadGzipFile)
    try:
        if path.suffix.lower() == ".gz":
            with gzip.open(path, "rb") as file:
                yield cast(IO[bytes], file)
        elif path.suffix.lower() == ".zst":
            arrow = require("pyarrow", path, "data")
            with arrow.input_stream(str(path), compression="zstd") as stream:
                yield cast(IO[bytes], io.BufferedReader(stream, source.CHUNK))
        else:
            with open(path, "rb") as file:
                yield file
    except damaged as error:
        raise UserError(f"{path}: damaged or truncated ({error})") from None
    except OSError as error:
        raise UserError(f"{path}: cannot be read ({error.strerror or error})") from None


def _text(path: Path) -> Document:
    with _opened(path) as file:
        chunks = iter(partial(file.read, source.CHUNK), b"")
        yield from source.decoded(chunks, str(path), key="file")


def _json_lines(path: Path, column: str, start: int) -> Iterator[Document]:
    with _opened(path) as file:
        for number, line in enumerate(islice(file, start, None), start + 1):
            if not line.strip():
                yield ()
                continue
            try:
                row = json.loads(line)
            except (ValueError, RecursionError) as error:
                raise UserError(f"{path}: line {number} is not JSON ({error})") from None
            if not isinstance(row, dict):
                raise UserError(f"{path}: line {number} is not a JSON object")
            yield _value(row, column, f"{path}: line {number}")


def _value(row: dict[str, Any], column: str, where: str) -> Document:
    """The text of a row; a row without one has no document."""
    if column not in row:
        raise UserError(
            f"{where} has no {column!r}{suggest(column, row)} (its keys are"
            f" {', '.join(map(str, row))}); python -m ablate.prepare --column names it"
        )
    return _whole(row[column], where)


def _whole(text: object, where: str) -> Document:
    if text is None:
        return ()
    if not isinstance(text, str):
        raise UserError(f"{where}: the text is {type(text).__name__}, must be a string")
    try:
        text.encode()
    except UnicodeEncodeError as error:
        raise UserError(f"{where}: has half of a surrogate pair ({error.reason})") from None
    return (text[at : at + source.CHUNK] for at in range(0, len(text), source.CHUNK))


def _parquet(path: Path, column: str, start: int) -> Iterator[Document]:
    parquet = require("pyarrow.parquet", path, "data")
    arrow = require("pyarrow", path, "data")
    try:
        file = parquet.ParquetFile(path)
        _require_column(path, column, file.schema_arrow.names)
        row = 0
        for group in range(file.num_row_groups):
            end = row + file.metadata.row_group(group).num_rows
            if end > start:
                for batch in file.iter_batches(ROWS, row_groups=[group], columns=[column]):
                    skipped = max(0, min(start - row, len(batch)))
                    for text in batch.column(0)[skipped:].to_pylist():
                        yield _whole(text, f"{path}: column {column}")
                    row += len(batch)
            row = end
    except (arrow.ArrowException, OSError) as error:
        raise UserError(f"{path}: cannot be read as Parquet ({first_line(error)})") from None


def _saved(path: Path, column: str, name: str, start: int) -> Iterator[Document]:
    datasets = require("datasets", path, "data")
    try:
        saved = datasets.load_from_disk(str(path))
    except Exception as error:  # its errors are of many classes
        raise UserError(f"{path}: cannot be read by datasets ({first_line(error)})") from None
    if isinstance(saved, datasets.DatasetDict):
        if name not in saved:
            raise UserError(
                f"{path}: has no split {name!r}{suggest(name, saved)} (it has"
                f" {', '.join(saved)}); --train-split and --val-split name those to read"
            )
        saved = saved[name]
    _require_column(path, column, saved.column_names)
    saved = saved.select_columns(column).with_format(None)
    for rows in saved.select(range(min(start, len(saved)), len(saved))).iter(ROWS):
        for text in rows[column]:
            yield _whole(text, f"{path}: column {column}")


def _streamed(path: Path, column: str, name: str, start: int) -> Iterator[Document]:
    datasets = require("datasets", path, "data")
    data_set, _, config = str(path).removeprefix(HUGGING_FACE).partition(":")
    try:
        rows = datasets.load_dataset(data_set, config or None, split=name, streaming=True)
        for number, row in enumerate(rows.skip(start), start + 1):
            yield _value(row, column, f"{path}: row {number}")
    except UserError:
        raise
    except Exception as error:  # of the network, or of datasets: of many classes
        raise UserError(
            f"{path}: split {name!r} cannot be streamed ({first_line(error)})"
        ) from None


def _require_column(path: Path, column: str, names: Sequence[str]) -> None:
    if column not in names:
        raise UserError(
            f"{path}: has no column {column!r}{suggest(column, names)} (it has"
            f" {', '.join(names)}); python -m ablate.prepare --column names it"
        )
