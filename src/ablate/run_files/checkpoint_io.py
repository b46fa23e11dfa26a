"""Checkpoint files, verified by a list of checksums and read without running code from them.

    checksums.json      in their folder: their run, and size and SHA-256 of the versions of each
    SHA-256.shard       of processes that share a model: the part of a state that one of them has

A file is flushed to the disk under a temporary name; then its checksum is listed; then it replaces
the file of its name. The versions before it stay listed, so that a process that is killed between
two of these steps leaves files that can be read. A file with another checksum is rejected.

If processes share a model (trainer=fsdp), each writes its tensors to a separate file, whose name
is its checksum. The state then has None in the place of these tensors, and names the files. A
reader gets whole tensors, in any number of processes. torch.distributed.checkpoint is not used: its
index is a pickle, which can run code when it is read.

torch.load runs with weights_only=True, which accepts tensors and plain values and rejects every
other object, since a pickle can call any function.
"""

import os
import pickle
import re
from collections.abc import Callable, Iterable, Iterator, Mapping
from contextlib import contextmanager
from hashlib import file_digest
from io import BufferedReader
from pathlib import Path
from typing import Any, BinaryIO, cast
from zipfile import ZipFile

import torch
from safetensors import SafetensorError
from safetensors.torch import load_file, save
from torch import Tensor

from ablate.errors import UserError
from ablate.run_files import (
    CHECKSUMS,
    LAST,
    PREVIOUS,
    CorruptFile,
    named,
    open_file,
    read_json,
    replacing,
    write_json,
)
from ablate.run_files.shape import schema_error

TRUST = "ABLATE_TRUST_PICKLE"
VERSIONS = 3  # listed of a file: of a state two are kept, and a kill may lose one
SHARD = re.compile(r"[0-9a-f]{64}\.shard")
LISTED = {"run_id?": str, "files": {str: [{"bytes": int, "sha256": str, "shards?": [str]}]}}
STATE = {
    "pytorch-lightning_version": str,
    "global_step": int,
    "state_dict": {str: Tensor},
    "optimizer_states": [{"state": dict, "param_groups": [dict]}],
    "lr_schedulers": [dict],
    "callbacks": {"Curves": dict, "Checkpoints": dict},
    "loops": {"fit_loop": {"state_dict": dict, "epoch_loop.state_dict": dict}},
}

# The keys and indices that lead to a tensor of a state.
Place = tuple[str | int, ...]
# A process's part of a tensor, and its offsets.
Piece = tuple[tuple[int, ...], Tensor]


def write_state(path: Path, state: Mapping[str, Any], run_id: str | None = None) -> None:
    """Replace a file for `read_state`; last.ckpt becomes previous.ckpt. run_id: of the run it
    belongs to."""
    shards = [*state.get("shards", {}).get("files", ())]
    replace_file(path, lambda file: torch.save(state, file), run_id, shards)
    remove_unused_shards(path.parent)


def write_plain(path: Path, content: Mapping[str, Any]) -> None:
    """Replace a file for `read_plain`: tensors and plain values."""
    replace_file(path, lambda file: torch.save(content, file))


def write_weights(path: Path, weights: Mapping[str, Tensor], run_id: str | None = None) -> None:
    """Replace a file for `read_weights`. run_id: of the run it belongs to."""
    tensors: dict[str, Tensor] = {}
    written: set[int] = set()
    for name, value in weights.items():
        tensor = value.detach().cpu().contiguous()
        place = tensor.untyped_storage().data_ptr()
        # safetensors rejects tensors that share memory, as tied weights do.
        tensors[name] = tensor.clone() if place in written else tensor
        written.add(place)
    # Not by `save_file`, whose own temporary file only its owner may read.
    replace_file(path, lambda file: file.write(save(tensors)), run_id)


def write_shards(folder: Path, pieces: Mapping[Place, Piece], process: int) -> str:
    """Write the part of a state's tensors that a process has; return the name of the file."""
    temporary = folder / f"shards-{process}.tmp"
    try:
        written = _write(temporary, lambda file: torch.save({"pieces": dict(pieces)}, file))
        name = f"{written['sha256']}.shard"
        os.replace(temporary, folder / name)
    except OSError:
        temporary.unlink(missing_ok=True)  # it takes room on a disk that is full
        raise
    return name


def index(files: Iterable[str], shapes: Mapping[Place, Iterable[int]]) -> dict[str, Any]:
    """A state's entry "shards": the names of the files, and the shapes of the tensors."""
    return {"files": [*files], "shapes": {place: tuple(shape) for place, shape in shapes.items()}}


def remove_unused_shards(folder: Path) -> None:
    """Remove the shards in a folder that belong to none of its states."""
    if files := [*folder.glob("*.shard")]:
        of_state = {
            each["sha256"]: each.get("shards", ()) for each in _versions(folder).get(LAST, [])
        }
        used: set[str] = set()
        for path in filter(Path.exists, (folder / LAST, folder / PREVIOUS)):
            with path.open("rb") as state:
                used |= {*of_state.get(file_digest(state, "sha256").hexdigest(), ())}
        for path in files:
            if path.name not in used:
                path.unlink(missing_ok=True)


def replace_file(
    path: Path,
    write: Callable[[BinaryIO], Any],
    run_id: str | None = None,
    shards: Iterable[str] = (),
) -> None:
    """Write a file, list its checksum, and put it in its place."""
    folder = path.parent
    with replacing(path) as temporary:
        version = _write(temporary, write) | ({"shards": [*shards]} if shards else {})
        files = _versions(folder)
        files[path.name] = [version, *files.get(path.name, [])][:VERSIONS]
        owner = {} if run_id is None else {"run_id": run_id}
        write_json(folder / CHECKSUMS, {**owner, "files": files})
        if path.name == LAST and path.exists():
            os.replace(path, folder / PREVIOUS)


def _write(path: Path, write: Callable[[BinaryIO], Any]) -> dict[str, Any]:
    """Write a file and flush it to the disk; return its size and checksum."""
    with named(path), open(path, "w+b") as file:
        try:
            write(file)
        except RuntimeError as error:
            if isinstance(error.__context__, OSError):  # which torch.save replaces by its own
                raise error.__context__ from None
            raise
        file.flush()
        os.fsync(file.fileno())
        file.seek(0)
        digest = file_digest(file, "sha256").hexdigest()
        return {"bytes": file.tell(), "sha256": digest}


def read_state(path: Path, run_id: str | None = None) -> dict[str, Any]:
    """Read a checkpoint. Raises CorruptFile, and UserError if that would run code from the file, or
    if it belongs to another run than `run_id`."""
    return read_plain(path, STATE, run_id)


def read_weights(path: Path, run_id: str | None = None) -> dict[str, Tensor]:
    """Read weights, which stay on the file until they are copied. Raises CorruptFile, and UserError
    if they belong to another run than `run_id`."""
    with _verified(path, run_id):
        try:
            return load_file(path)
        except SafetensorError as error:
            raise CorruptFile(path, str(error)) from error


def read_plain(path: Path, shape: Any, run_id: str | None = None) -> dict[str, Any]:
    """Read tensors and plain values, whole if they name shards. Raises UserError as `read_state`,
    CorruptFile also if they are not of this shape (`schema_error`)."""
    with _verified(path, run_id) as file:
        content: Any = _loaded(path, file)
    if isinstance(content, dict) and "shards" in content:
        _put_together(path, content, content.pop("shards"))
    if wrong := schema_error(content, shape):
        raise CorruptFile(path, wrong)
    return cast(dict[str, Any], content)


def require_listed(folder: Path) -> dict[str, Any]:
    """Return the checksums of a folder; UserError if they cannot be read, since all its files would
    count as damaged."""
    path = folder / CHECKSUMS
    try:
        listed = read_json(path)
        if wrong := "it is missing" if listed is None else schema_error(listed, LISTED):
            raise CorruptFile(path, wrong)
    except CorruptFile as error:
        raise UserError(
            f"{error}; without it no file there can be verified: restore it, or remove the run's"
            " folder to train it again"
        ) from error
    return cast(dict[str, Any], listed)


def _versions(folder: Path) -> dict[str, list[dict[str, Any]]]:
    """Of each file that is listed, newest first."""
    return require_listed(folder)["files"] if (folder / CHECKSUMS).exists() else {}


@contextmanager
def _verified(path: Path, run_id: str | None = None) -> Iterator[BufferedReader]:
    """Open a file at its begin if its checksum is listed, for this run; else raise CorruptFile or
    UserError."""
    with open_file(path) as file:  # first: the list is older than no file that it has to have
        listed = require_listed(path.parent)
        owner = listed.get("run_id")
        if run_id not in (None, owner):
            raise UserError(
                f"{path} belongs to {f'run {owner}' if owner else 'no run'}, not {run_id}; restore"
                " the matching file or delete this one"
            )
        versions = listed["files"].get(LAST if path.name == PREVIOUS else path.name, ())
        size = os.fstat(file.fileno()).st_size
        if size not in {version["bytes"] for version in versions} or (
            file_digest(file, "sha256").hexdigest() not in {each["sha256"] for each in versions}
        ):
            raise CorruptFile(path, f"its checksum does not match any in {CHECKSUMS}")
        file.seek(0)
        yield file


def _put_together(path: Path, state: dict[str, Any], shards: Any) -> None:
    """Put whole tensors into the places of a state that its shards were taken from."""
    try:
        whole: dict[Place, Tensor] = {}
        missing = {place: torch.Size(shape).numel() for place, shape in shards["shapes"].items()}
        for name in shards["files"]:
            if not SHARD.fullmatch(name):
                raise ValueError(name)
            for place, (start, piece) in _read_shards(path.parent / name)["pieces"].items():
                if place not in whole:
                    whole[place] = piece.new_empty(shards["shapes"][place])
                ends = zip(start, piece.shape, strict=True)
                whole[place][tuple(slice(begin, begin + size) for begin, size in ends)] = piece
                missing[place] -= piece.numel()
        if any(missing.values()):
            raise ValueError(missing)
        for (*above, last), tensor in whole.items():
            node: Any = state
            for key in above:
                node = node[key]
            node[last] = tensor
    except (UserError, FileNotFoundError) as error:
        raise CorruptFile(path, str(error)) from error
    except Exception as error:  # any that the above raises for a wrong index
        raise CorruptFile(path, "its shards do not make it whole") from error


def _read_shards(path: Path) -> Any:
    with open_file(path) as file:
        if file_digest(file, "sha256").hexdigest() != path.stem:
            raise CorruptFile(path, "its checksum does not match")
        file.seek(0)
        return _loaded(path, file)


def _loaded(path: Path, file: BufferedReader) -> Any:
    trusted = os.environ.get(TRUST) == "1"
    try:
        size = os.fstat(file.fileno()).st_size
        # torch.save compresses nothing; a small file could unpack to more than the memory.
        if sum(record.file_size for record in ZipFile(file).infolist()) > size:
            raise CorruptFile(path, "its records are compressed")
        file.seek(0)
        return torch.load(file, map_location="cpu", weights_only=not trusted)
    except CorruptFile:
        raise
    except pickle.UnpicklingError as error:
        if trusted:
            raise CorruptFile(path, "it is damaged") from error
        raise UserError(
            f"{path} contains Python objects, not only tensors and plain values, and loading them"
            f" can execute arbitrary code; if you trust the file, set {TRUST}=1"
        ) from error
    except Exception as error:
        raise CorruptFile(path, f"it is damaged ({type(error).__name__})") from error
