"""Raw bytes and text from a file or a URL, with a one-line UserError for everything that can fail.

Every data file that a user names is read here: only regular files, which no pipe or device is, and
only up to `largest()` bytes, as downloads are. The messages name the config key of the path, `key`.
A text can be read in pieces (`text_pieces`), so that it need not be in memory.
"""

import codecs
import gzip
import hashlib
import io
import logging
import math
import os
import re
import stat
import zlib
from collections.abc import Callable, Iterable, Iterator
from contextlib import contextmanager
from errno import EIO, ESTALE
from functools import partial
from io import BufferedReader, FileIO
from itertools import chain
from pathlib import Path
from typing import IO, Any, cast

from ablate.errors import UserError, suggest

# Seconds without an answer after which a server counts as unreachable.
PATIENCE = 20
PLAIN = "http://"  # whose downloads anybody on the way can change
KEY = "data.path"
# Bytes of a file, and of a gzip file's content.
LARGEST = 2e9
LIMIT = "ABLATE_MAX_FILE_GB"  # the environment variable that sets another limit
# Folders that macOS, NAS, Windows, Linux and Python put among others.
JUNK = {
    *("__MACOSX", "@eaDir", "#recycle", "$RECYCLE.BIN", "System Volume Information", "lost+found"),
    "__pycache__",
}
CHUNK = 2**20  # bytes read at a time
# The first bytes of files that are not text, and their formats' names.
FORMATS = {
    b"PAR1": "a Parquet file", b"ARROW1": "an Arrow file", b"PK\3\4": "a ZIP archive",
    b"\x28\xb5\x2f\xfd": "compressed by zstd", b"BZh": "compressed by bzip2",
    b"\xfd7zXZ": "compressed by xz", b"\x93NUMPY": "a NumPy array", b"%PDF": "a PDF file",
    b"SQLite format 3": "an SQLite database", b"\x89HDF": "an HDF5 file", b"\x80\x04": "a pickle",
    codecs.BOM_UTF16_LE: "UTF-16", codecs.BOM_UTF16_BE: "UTF-16",
}  # fmt: skip


class NoCache(UserError):
    """The folder of downloads cannot be written."""


def largest() -> float:
    """The most bytes of a file, plain or decompressed: $ABLATE_MAX_FILE_GB, or `LARGEST`."""
    limit = os.environ.get(LIMIT)
    if not limit:
        return LARGEST
    try:
        most = float(limit) * 1e9
    except ValueError:
        most = math.nan
    if not most > 0:  # true for NaN as well
        raise UserError(f"{LIMIT}={limit}: must be a number of gigabytes")
    return most


def cache() -> Path:
    """The folder of downloads: $ABLATE_CACHE, or ~/.cache/ablate."""
    folder = Path(os.environ.get("ABLATE_CACHE") or Path.home() / ".cache" / "ablate")
    try:
        folder.mkdir(parents=True, exist_ok=True)
    except OSError as error:
        raise NoCache(
            f"cannot write downloads to {folder} ({error.strerror}); "
            "set the environment variable ABLATE_CACHE to a folder that can be written"
        ) from None
    return folder


def is_url(path: str, *, key: str = KEY) -> bool:
    if "://" in path and not path.startswith(("http://", "https://")):
        raise UserError(f"{key}={path}: must be a file or an http:// or https:// URL")
    return "://" in path


def read(path: str, sha256: str | None = None, *, key: str = KEY) -> bytes:
    """The bytes of a local file or of a download, decompressed if they are gzip.

    sha256: of the file before decompression.
    """
    with opened(path, sha256, key=key) as file:
        return b"".join(iter(partial(file.read, CHUNK), b""))


def member(root: str | None, name: str, *, url: str, sha256: str) -> bytes:
    """A file of a published data set: from the folder `root`, or downloaded if that is null."""
    if root is None:
        fetched = fetch(url, sha256, key="data.root", local="FOLDER")
        return read(str(fetched), key="data.root")
    path = local(root)
    if not path.is_dir():
        raise UserError(f"data.root={root}: no such folder; data.root=null downloads the data")
    either = [path / name, path / name.removesuffix(".gz")]
    existing = next((file for file in either if file.is_file()), either[0])
    return read(str(existing), key="data.root")


@contextmanager
def opened(path: str, sha256: str | None = None, *, key: str = KEY) -> Iterator[IO[bytes]]:
    """A local file or a download to read in pieces, decompressed if it is gzip; `read` has its
    content. sha256: as there."""
    file = fetch(path, sha256, key=key) if is_url(path, key=key) else local(path)
    with _regular(file, path, key) as raw:
        found = sha256 and hashlib.file_digest(raw, "sha256").hexdigest()
        if found != sha256:
            raise UserError(
                f"{key}={path}: is not the file with data.sha256={sha256} (it has {found}); "
                "set data.sha256=null to use it anyway"
            )
        raw.seek(0)
        packed = raw.read(2) == b"\x1f\x8b"
        raw.seek(0)
        yield cast(IO[bytes], _Gunzipped(raw, path, key)) if packed else raw


class _Gunzipped:
    """The content of a gzip file; UserError if it is damaged, empty, or longer than `largest()`."""

    def __init__(self, raw: IO[bytes], shown: str, key: str) -> None:
        self.unpacked, self.count = gzip.GzipFile(fileobj=raw), 0
        self.shown, self.key = shown, key

    def read(self, size: int) -> bytes:
        try:
            part: bytes = self.unpacked.read(size)
        except (OSError, EOFError, zlib.error) as error:
            raise UserError(f"{self.key}={self.shown}: damaged gzip file ({error})") from None
        self.count += len(part)
        require_room(self.count, self.shown, key=self.key)
        if not self.count:
            raise UserError(f"{self.key}={self.shown}: the gzip file is empty inside")
        return part


def content_hash(path: str, sha256: str | None) -> str:
    """The sha256 of the file before decompression; of a download, its expected sha256, if any."""
    if is_url(path) and sha256 is not None:
        return sha256
    file = fetch(path, None) if is_url(path) else local(path)
    with _regular(file, path, KEY) as raw:
        return hashlib.file_digest(raw, "sha256").hexdigest()


def text(raw: bytes, path: str, *, key: str = KEY) -> str:
    """Decode strict UTF-8, without a byte order mark; line ends are kept."""
    return "".join(decoded([raw], path, key=key))


def text_pieces(path: str, sha256: str | None) -> Iterator[str]:
    """The text of a file in pieces; see `text`."""
    with opened(path, sha256) as file:
        yield from decoded(iter(partial(file.read, CHUNK), b""), path)


def decoded(pieces: Iterable[bytes], path: str, *, key: str = KEY) -> Iterator[str]:
    """Decode strict UTF-8, without a byte order mark. UserError names a known binary format, or
    NUL, since UTF-16 without a mark would be read as letters with NULs in between."""
    decoder, at = codecs.getincrementaldecoder("utf-8")(), 0
    for piece in chain(pieces, [b""]):
        if at == 0:
            known = (what for begin, what in FORMATS.items() if piece.startswith(begin))
            if what := next(known, None):
                raise UserError(
                    f"{key}={path}: is {what}, and plain UTF-8 text is read; convert it first"
                )
        if (nul := piece.find(b"\0")) >= 0:
            raise UserError(
                f"{key}={path}: has a NUL byte at byte offset {at + nul}, so it is UTF-16 or no"
                " text; convert it to UTF-8 first, for example with iconv"
            )
        held: bytes = decoder.getstate()[0]
        try:
            part = decoder.decode(piece, final=not piece)
        except UnicodeDecodeError as error:
            raise UserError(
                f"{key}={path}: not UTF-8 at byte offset {at - len(held) + error.start} "
                f"(0x{(held + piece)[error.start]:02x}); convert it first, for example with iconv"
            ) from None
        if part:
            yield part.removeprefix("\ufeff") if at == 0 else part
        at += len(piece)


def lines(text: str) -> list[str]:
    r"""Its lines, which end with \n, \r\n or \r. Not str.splitlines, which divides at Unicode's
    other line boundaries as well: they occur within sentences."""
    *every, last = re.split(r"\r\n?|\n", text)
    return [*every, last] if last else every


def fetch(url: str, sha256: str | None, *, key: str = KEY, local: str = "FILE") -> Path:
    """The cached copy of a download, checked against its sha256 every time.

    local: the value of `key` for a local copy, for messages.
    """
    import pooch
    import requests
    from filelock import FileLock

    if sha256 is None and url.startswith(PLAIN):
        raise UserError(f"{key}={url}: without data.sha256 only https:// is downloaded")
    pooch.get_logger().setLevel(logging.WARNING)  # the progress bar shows it
    folder = cache()
    hooks = {} if sha256 else {"response": partial(_require_https, key=key)}
    download = pooch.HTTPDownloader(progressbar=True, timeout=PATIENCE, hooks=hooks)

    def bounded(url: str, path: str, pooch: Any) -> None:
        with _Bounded(FileIO(path, "w"), lambda size: require_room(size, url, key=key)) as file:
            download(url, file, pooch)

    try:
        with FileLock(folder / "download.lock"):
            return Path(
                pooch.retrieve(
                    url,
                    known_hash=f"sha256:{sha256}" if sha256 else None,
                    path=folder,
                    downloader=bounded,
                )
            )
    except requests.HTTPError as error:
        reason = f"the server answered: {error}".partition(" for url")[0]
    except requests.RequestException as error:
        reason = f"no answer from the network, {type(error).__name__}"
    except ValueError:
        if key == KEY:  # the only key with a sha256 from the user
            raise UserError(
                f"data.path={url}: the download does not have data.sha256={sha256}; "
                "set data.sha256=null to use it anyway, or data.path=FILE for a local copy"
            ) from None
        reason = f"the download does not have the sha256 {sha256}"
    except OSError as error:
        reason = f"{error.strerror} in {folder}; ABLATE_CACHE sets another folder"
    raise UserError(f"cannot download {url} ({reason}); {key}={local} uses a local copy")


class _Bounded(io.BufferedWriter):
    """A new file; `check` is called with the size that it is about to have."""

    def __init__(self, file: FileIO, check: Callable[[int], None]) -> None:
        super().__init__(file)
        self.check = check

    def write(self, part: Any) -> int:
        self.check(self.tell() + len(part))
        return super().write(part)


def _require_https(response: Any, *, key: str, **more: Any) -> None:
    """Raise UserError if a download without a sha256 was redirected to http."""
    if response.url.startswith(PLAIN):
        raise UserError(f"{key}: the server redirects to {response.url}, which is not https://")


def local(path: str | Path) -> Path:
    """The path with the user's folder for ~; that of an unknown user stays as it is."""
    return Path(os.path.expanduser(path))  # Path.expanduser raises then


def visible(folder: Path) -> Iterator[Path]:
    """The files in a folder and its sub-folders, but for hidden ones (of editors, Jupyter, systems
    and NAS). Links are followed, except to a folder that they are in."""
    for here, folders, names in os.walk(folder, followlinks=True):
        inside = Path(here)
        folders[:] = [
            name
            for name in folders
            if not hidden(name) and not inside.resolve().is_relative_to((inside / name).resolve())
        ]
        yield from (inside / name for name in names if not hidden(name))


def hidden(name: str) -> bool:
    return name.startswith(".") or name in JUNK


def contents(path: str | Path, *, shown: str | None = None, key: str = KEY) -> bytes:
    """The bytes of a regular file as they lie there. shown: the path in messages, if not `path`."""
    with _regular(local(path), shown or str(path), key) as raw:
        return raw.read()


@contextmanager
def _regular(file: Path, shown: str, key: str) -> Iterator[BufferedReader]:
    """A regular file, opened. UserError for one that cannot be opened, or of a disk that fails."""
    try:
        require_file(file, shown, key)
        raw = open(file, "rb")  # noqa: SIM115  # closed below
    except FileNotFoundError:
        near = [p.name for p in file.parent.iterdir()] if file.parent.is_dir() else []
        raise UserError(f"{key}={shown}: no such file{suggest(file.name, near)}") from None
    except OSError as error:
        raise UserError(f"{key}={shown}: cannot be read ({error.strerror})") from None
    except ValueError as error:  # a NUL in the path
        raise UserError(f"{key}={shown!a}: is not a path ({error})") from None
    try:
        with raw:
            yield raw
    except OSError as error:
        # An error of `read` names no file; others come from the use of the content.
        if error.filename or error.errno not in (EIO, ESTALE):
            raise
        raise UserError(f"{key}={shown}: cannot be read ({error.strerror})") from None


def require_file(file: Path, shown: str, key: str) -> None:
    """Raise UserError for anything but a regular file of at most `largest()` bytes, and not 0."""
    status = file.stat()
    if not stat.S_ISREG(status.st_mode):
        raise UserError(f"{key}={shown}: is a {_kind(status.st_mode)}, must be a file")
    if status.st_size == 0:  # files of /proc too: reading some of them never ends
        raise UserError(f"{key}={shown}: the file is empty")
    require_room(status.st_size, shown, key=key)


def require_room(size: float, path: str, *, key: str = KEY) -> None:
    """Raise UserError if a file, plain or decompressed, has more than `largest()` bytes."""
    if size > (most := largest()):
        raise UserError(
            f"{key}={path}: contains more than {most / 1e9:g} GB; the environment variable {LIMIT}"
            " sets another limit"
        )


def _kind(mode: int) -> str:
    if stat.S_ISDIR(mode):
        return "folder"
    return "pipe" if stat.S_ISFIFO(mode) else "socket" if stat.S_ISSOCK(mode) else "device"
