"""Files of a run or study: atomic writes, and reads that neither block nor run out of memory.

Every file is written under another name in the same folder, flushed to the disk, then renamed: a
reader sees the old one or the new one. A folder may be untrusted, so only regular files of bounded
size are read; a FIFO would block, and a device such as /dev/zero never ends. Nothing is read
or written outside the folder that was named (`refuse_links`).
"""

import csv
import io
import json
import os
import stat
from collections.abc import Iterable, Iterator
from contextlib import contextmanager, suppress
from errno import ELOOP, ENOENT
from io import BufferedReader
from pathlib import Path
from typing import Any

from ablate.errors import CLOSED, FULL, RunFailed, UserError, shortened, suggest

# In a run's folder: its result, and its progress while it trains.
RESULT, PROGRESS = "result.json", "progress.json"
PREDICTIONS = "predictions.csv"
ITEMS = "items.csv"  # metrics of each item of lm-evaluation-harness
PLANNED = "planned.json"  # the configuration that its launcher starts it with
DATA = "data.pt"  # the state of the training data that the model needs: `Data.run_state`
PLAN = "plan.json"  # in a study's folder
# There, locked by every command that runs the study (shared), and by the one that plans it.
COMMANDS, PLANNING = ".commands", ".planning"
BEST = "best.safetensors"  # weights of a run with the best validation
LAST, PREVIOUS = "last.ckpt", "previous.ckpt"  # the newest states of training
CHECKSUMS = "checksums.json"  # in a folder with such files: see checkpoint_io.py
LONGEST = 1 << 28  # bytes of a text; the plan of 100,000 runs has about 5e7
LARGEST = 1e100  # of a number, so that its square and sums are finite
FOLDERS = ("checkpoints", "figures", "audio")  # in a run's folder, with ablate's files


class CorruptFile(UserError):
    """A file that is not as it was written."""

    def __init__(self, path: Path, why: str):
        super().__init__(f"{path} cannot be read: {why}")


def named_folder(folder: Path, file: str = "config.yaml") -> Path:
    """A folder as given, or that of this name in outputs/ or outputs/runs/ which has the file."""
    inside = (Path(*parents) / folder for parents in (["outputs"], ["outputs", "runs"]))
    try:
        named = next((path for path in inside if (path / file).exists()), folder)
        return folder if folder.exists() else named
    except OSError:  # a text that is longer than any name
        return folder


def refuse_links(folder: Path, within: Iterable[str] = FOLDERS) -> None:
    """Raise UserError if an entry of the folder of a run or study, or of the folders in it that are
    named `within`, is a link that leads out of it. The folder itself may be reached by a link."""
    root = Path(os.path.realpath(folder))
    for place in (folder, *(folder / name for name in within)):
        try:
            with os.scandir(place) as entries:
                links = [entry for entry in entries if entry.is_symlink()]
        except (FileNotFoundError, NotADirectoryError):
            continue
        for link in links:
            target = Path(os.path.realpath(link.path))
            # Emacs marks a file that is being edited by a link to the user's name.
            if root not in target.parents and not link.name.startswith(".#"):
                raise UserError(
                    f"{link.path} is a link to {os.readlink(link.path)}, out of {folder}: nothing"
                    " outside is read or written; replace the link by its target (only the"
                    " directory named in the command may be a link)"
                )


def require_run(path: Path, typed: str) -> None:
    """Raise UserError if the path is not the folder of a run; for a file or folder in one, the
    message names that run. typed: how the path was given."""
    refuse_links(path)
    if (path / "config.yaml").exists():
        return
    why = "it has no config.yaml" if path.exists() else "it does not exist"
    # Nothing in a run's folder lies deeper than checkpoints/last.ckpt.
    run = next((above for above in path.parents[:2] if (above / "config.yaml").exists()), None)
    beside = [] if path.exists() or not path.parent.is_dir() else path.parent.iterdir()
    near = suggest(path.name, (p.name for p in beside if (p / "config.yaml").exists()))
    more = f"; the run is {run}" if run else near
    raise UserError(f"{typed} is not the folder of a run: {why}{more}")


def best_weights(run_dir: Path) -> Path:
    """Return the path of a run's best weights, which may not exist yet."""
    return run_dir / "checkpoints" / BEST


@contextmanager
def open_file(path: Path, *, longest: int | None = None) -> Iterator[BufferedReader]:
    """Open a file to read. Raises CorruptFile for one that is empty or longer than `longest` bytes,
    and for anything but a regular file."""
    try:
        status = os.stat(path)
    except OSError as error:
        if error.errno == ELOOP:
            raise CorruptFile(path, "it is a link to itself") from error
        raise
    if not stat.S_ISREG(status.st_mode):
        raise CorruptFile(path, f"it is {_kind(status.st_mode)}, not a regular file")
    if not status.st_size:  # also of /proc, whose files may block
        raise CorruptFile(path, "it is empty")
    if longest is not None and status.st_size > longest:
        raise CorruptFile(
            path, f"it has {status.st_size:,} bytes, and at most {longest:,} are read"
        )
    with open(path, "rb") as file:
        yield file


def _kind(mode: int) -> str:
    kinds = {
        stat.S_ISDIR: "a folder",
        stat.S_ISFIFO: "a FIFO",
        stat.S_ISSOCK: "a socket",
        stat.S_ISCHR: "a device",
        stat.S_ISBLK: "a device",
    }
    return next(name for matches, name in kinds.items() if matches(mode))


def read_text(path: Path, *, longest: int = LONGEST) -> str:
    """Return the content of a text file; raise CorruptFile, as `open_file` does."""
    with open_file(path, longest=longest) as file:
        try:
            # No more than it had: `read` allocates the bytes of its argument.
            return file.read(os.fstat(file.fileno()).st_size).decode()
        except UnicodeDecodeError as error:
            raise CorruptFile(path, f"it is not UTF-8 text ({error.reason})") from error


@contextmanager
def named(path: Path) -> Iterator[None]:
    """Add the path to the error of a full disk, since those of `write` and `fsync` name no file."""
    try:
        yield
    except OSError as error:
        error.filename = error.filename or str(path)
        raise


@contextmanager
def unwritable_as_run_failed() -> Iterator[None]:
    """Turn the error of a file that cannot be used any more into RunFailed, in one line: of a disk
    that is full, a folder that was closed or removed."""
    try:
        yield
    except OSError as error:
        name = f"{error.filename}: " if error.filename else ""
        if error.errno not in ((*CLOSED, ENOENT) if name else FULL):
            raise
        raise RunFailed(
            f"{name}{error.strerror}; when that is put right, the same command resumes"
        ) from error


@contextmanager
def replacing(path: Path) -> Iterator[Path]:
    """Another path in the same folder, for a file that replaces `path` at the end of the block; it
    is removed after an error."""
    temporary = path.with_name(f".{path.name}.{os.getpid()}.tmp")
    with named(path):
        try:
            yield temporary
            os.replace(temporary, path)
        except BaseException:
            with suppress(OSError):
                temporary.unlink()  # it takes room on a disk that is full
            raise


def write_text(path: Path, text: str, *, flush: bool = True) -> None:
    """Replace a text file; `flush=False` if a power failure may lose it."""
    with replacing(path) as temporary, open(temporary, "w", encoding="utf-8") as file:
        file.write(text)
        if flush:
            file.flush()
            os.fsync(file.fileno())


def write_csv(path: Path, rows: Iterable[Iterable[Any]]) -> None:
    """Replace a table."""
    text = io.StringIO()
    csv.writer(text, lineterminator="\n").writerows(rows)
    write_text(path, text.getvalue())


def write_json(path: Path, content: dict[str, Any], *, flush: bool = True) -> None:
    """Strict JSON: a number that is not finite, or beyond LARGEST, becomes null."""
    write_text(path, json.dumps(finite(content), indent=2, allow_nan=False) + "\n", flush=flush)


def read_json(path: Path) -> Any:
    """Return the content, None if the file does not exist; raise CorruptFile if it is not JSON, or
    not JSON of `write_json`: numbers beyond LARGEST, or halves of a surrogate pair."""
    try:
        text = read_text(path)
        content = json.loads(text, parse_float=_number, parse_int=_number, parse_constant=_number)
        if "\\ud" in text.lower():
            json.dumps(content, ensure_ascii=False).encode()
        return content
    except (FileNotFoundError, NotADirectoryError):
        return None
    except (ValueError, RecursionError) as error:
        raise CorruptFile(path, str(error)) from error


def read_mapping(path: Path) -> dict[str, Any]:
    """The content; empty if the file does not exist, or if it is not a JSON mapping."""
    try:
        content = read_json(path)
    except CorruptFile:
        return {}
    return content if isinstance(content, dict) else {}


def _number(digits: str) -> float:
    value = float(digits)
    if not abs(value) <= LARGEST:
        raise ValueError(f"it has the number {shortened(digits, 20)}, beyond {LARGEST:g}")
    return int(digits) if digits.lstrip("-").isdigit() else value


def finite(value: Any) -> Any:
    if isinstance(value, dict):
        return {str(key): finite(item) for key, item in value.items()}
    if isinstance(value, list | tuple):
        return [finite(item) for item in value]
    if isinstance(value, float) and not abs(value) <= LARGEST:
        return None
    return value
