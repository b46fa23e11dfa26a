"""Checkpoint files with a checksum and the id of their run, read without running code from them.

A state of training is a file of torch.save, a zip, whose comment is the SHA-256 of everything
before it. Weights are a safetensors file, in whose metadata the checksum is; it is that of the file
with zeros in its place. Either is part of its file, so that no death of the process can leave a
file with the checksum of another. Files are written and verified piece by piece, without a copy
of the whole in memory.

If processes share a model (trainer=fsdp), each writes its tensors to a separate file,
`SHA-256.shard`. The state then has None in the place of these tensors, and names the files. A file
of shards is never replaced by another, since its name is its checksum, so that a state and its
shards cannot disagree. A reader gets whole tensors, in any number of processes.
torch.distributed.checkpoint is not used: its index is a pickle, which can run code when it is read.

torch.load runs with weights_only=True, which accepts tensors and plain values and rejects every
other object, since a pickle can call any function.
"""

import hashlib
import json
import os
import pickle
import re
from collections.abc import Iterable, Mapping
from contextlib import suppress
from pathlib import Path
from types import NoneType
from typing import IO, Any, BinaryIO, cast
from zipfile import ZipFile

import torch
from torch import Tensor

from ablate.errors import UserError
from ablate.run_files import CorruptFile, named, open_file
from ablate.run_files.shape import schema_error

TRUST = "ABLATE_TRUST_PICKLE"
DIGITS = 64  # of a SHA-256, in hexadecimal
ZEROS = b"0" * DIGITS
COMMENT = DIGITS.to_bytes(2, "little")  # the length of the comment precedes it
PIECE = 1 << 20  # bytes
SHARD = re.compile(r"[0-9a-f]{64}\.shard")
STATE = {
    "run_id?": str,
    "pytorch-lightning_version": str,
    "global_step": int,
    "state_dict": {str: Tensor},
    "optimizer_states": [{"state": dict, "param_groups": [dict]}],
    "lr_schedulers": [dict],
    "callbacks": {
        "Curves": {"rows": [{str: float}], "units": int, "train_seconds": float},
        "Checkpoints": {
            "best": (float, NoneType),
            "best_step": int,
            "validated": int,
            "kernels": {str: {str: [str]}},
        },
    },
    "loops": {"fit_loop": {"state_dict": dict, "epoch_loop.state_dict": dict}},
}
COUNTERS = {"ready", "started", "processed", "completed", "batch", "_batches_that_stepped"}
# The names of https://huggingface.co/docs/safetensors#format
NAMES = {
    torch.float64: "F64", torch.float32: "F32", torch.float16: "F16", torch.bfloat16: "BF16",
    torch.int64: "I64", torch.int32: "I32", torch.int16: "I16", torch.int8: "I8",
    torch.uint8: "U8", torch.bool: "BOOL",
}  # fmt: skip
DTYPES = {name: dtype for dtype, name in NAMES.items()}


# The keys and indices that lead to a tensor of a state.
Place = tuple[str | int, ...]
# A process's part of a tensor, and its offsets.
Piece = tuple[tuple[int, ...], Tensor]


class _Sealing:
    """The file that torch.save writes into: a zip; `close` adds the checksum as its comment.

    torch.save replaces an error of `write` by its own, so the first error is kept until
    `close`, and nothing is written after it.
    """

    def __init__(self, file: BinaryIO):
        self.file, self.checksum = file, hashlib.sha256()
        self.error: OSError | None = None
        self._held = b""  # the last bytes, which are replaced if they are the last of all

    def write(self, data: Any) -> int:
        with memoryview(data) as view:
            tail = min(len(COMMENT), view.nbytes)
            held = self._held + bytes(view[view.nbytes - tail :])
            if tail == len(COMMENT):
                self._put(self._held)
                self._put(view[:-tail])
            else:
                self._put(held[: -len(COMMENT)])
            self._held = held[-len(COMMENT) :]
            return view.nbytes

    def flush(self) -> None:
        """Do nothing; torch.save calls it."""

    def close(self) -> str:
        """Finish the file and return its checksum."""
        assert self.error or self._held == bytes(len(COMMENT))
        self._put(COMMENT)
        checksum = self.checksum.hexdigest()
        self._put(checksum.encode())
        if self.error:
            raise self.error
        return checksum

    def _put(self, data: bytes | memoryview) -> None:
        try:
            if not self.error:
                self.file.write(data)
                self.checksum.update(data)
        except OSError as error:
            self.error = error


def write_state(path: Path, state: Mapping[str, Any], run_id: str | None = None) -> str:
    """Write a file for `read_state`, flush it to the disk, and return its checksum. run_id: of the
    run it belongs to."""
    owner = {} if run_id is None else {"run_id": run_id}
    with named(path), open(path, "wb") as file:
        sealing = _Sealing(file)
        torch.save({**state, **owner}, cast(IO[bytes], sealing))
        checksum = sealing.close()
        _flush(file)
    return checksum


def write_plain(path: Path, content: Mapping[str, Any]) -> None:
    """Replace a file for `read_plain`: tensors and plain values."""
    temporary = path.with_name(f".{path.name}.{os.getpid()}.tmp")
    try:
        write_state(temporary, content)
        os.replace(temporary, path)
    except OSError:
        temporary.unlink(missing_ok=True)  # it takes room on a disk that is full
        raise


def write_shards(folder: Path, pieces: Mapping[Place, Piece], process: int) -> str:
    """Write the part of a state's tensors that a process has; return the name of the file."""
    temporary = folder / f"shards-{process}.tmp"
    try:
        name = f"{write_state(temporary, {'pieces': dict(pieces)})}.shard"
        os.replace(temporary, folder / name)
    except OSError:
        temporary.unlink(missing_ok=True)  # it takes room on a disk that is full
        raise
    return name


def index(files: Iterable[str], shapes: Mapping[Place, Iterable[int]]) -> dict[str, Any]:
    """A state's entry "shards": the names of the files, and the shapes of the tensors."""
    return {"files": [*files], "shapes": {place: tuple(shape) for place, shape in shapes.items()}}


def remove_unused_shards(folder: Path, states: Iterable[str]) -> None:
    """Remove the shards in a folder that none of the states there names."""
    if not (written := {path.name for path in folder.glob("*.shard")}):
        return
    for name in states:
        with suppress(FileNotFoundError, CorruptFile):
            written -= {*_read_zip(folder / name).get("shards", {}).get("files", ())}
    for name in written:
        (folder / name).unlink(missing_ok=True)


def write_weights(path: Path, weights: Mapping[str, Tensor], run_id: str | None = None) -> None:
    """Write a file for `read_weights` and flush it to the disk. run_id: of the run it belongs to.

    Not by safetensors' own function, which rejects tensors that share memory, as tied weights do,
    and in its earlier versions copies all of them.
    """
    owner = {} if run_id is None else {"run_id": run_id}
    header: dict[str, Any] = {"__metadata__": {"sha256": ZEROS.decode(), **owner}}
    ordered = sorted(weights, key=lambda name: -weights[name].element_size())  # aligned
    end = 0
    for name in ordered:
        begin, end = end, end + weights[name].nbytes
        header[name] = {
            "dtype": NAMES[weights[name].dtype],
            "shape": list(weights[name].shape),
            "data_offsets": [begin, end],
        }
    text = json.dumps(header).encode()
    text += b" " * (-len(text) % 8)
    start = len(text).to_bytes(8, "little") + text
    checksum = hashlib.sha256(start)
    with named(path), open(path, "wb") as file:
        file.write(start)
        for name in ordered:
            tensor = weights[name].detach().cpu().contiguous()
            data = tensor.reshape(-1).view(torch.uint8).numpy().data
            file.write(data)
            checksum.update(data)
        file.seek(start.index(ZEROS))
        file.write(checksum.hexdigest().encode())
        _flush(file)


def _flush(file: BinaryIO) -> None:
    file.flush()
    os.fsync(file.fileno())


def read_state(path: Path, run_id: str | None = None) -> dict[str, Any]:
    """Read a checkpoint. Raises CorruptFile, and UserError if that would run code from the file, or
    if it belongs to another run than `run_id`."""
    state = _read_zip(path)
    if isinstance(state, dict) and "shards" in state:
        _put_together(path, state, state.pop("shards"))
    if wrong := schema_error(state, STATE) or _no_counter(state["loops"], "loops"):
        raise CorruptFile(path, wrong)
    _require_run(path, state.get("run_id"), run_id)
    return state


def read_weights(path: Path, run_id: str | None = None) -> dict[str, Tensor]:
    """Read weights. Raises CorruptFile, and UserError if they are those of another run."""
    weights, recorded = _read_safetensors(path)
    _require_run(path, recorded, run_id)
    return weights


def read_plain(path: Path, shape: Any) -> dict[str, Any]:
    """Read tensors and plain values that `write_plain` wrote. Raises CorruptFile, also if they are
    not of this shape (`schema_error`)."""
    content = _read_zip(path)
    if wrong := schema_error(content, shape):
        raise CorruptFile(path, wrong)
    plain: dict[str, Any] = content
    return plain


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
        file.seek(-DIGITS, os.SEEK_END)
        if file.read().decode(errors="replace") != path.stem:
            raise CorruptFile(path, "its checksum does not match")
    return _read_zip(path)


def _no_counter(node: Any, path: str) -> str | None:
    """Return the place of a Lightning counter that is not a number, which would fail in
    training."""
    if isinstance(node, list):
        node = dict(enumerate(node))
    if not isinstance(node, dict):
        return None
    wrong = (schema_error(node[key], int, f"{path}.{key}") for key in COUNTERS & node.keys())
    inside = (_no_counter(value, f"{path}.{key}") for key, value in node.items())
    return next((line for line in (*wrong, *inside) if line), None)


def _require_run(path: Path, recorded: str | None, wanted: str | None) -> None:
    if wanted is None or recorded == wanted:
        return
    owner = "no run" if recorded is None else f"run {recorded}"
    raise UserError(
        f"{path} belongs to {owner}, not {wanted}; restore the matching file or delete this one"
    )


def _read_safetensors(path: Path) -> tuple[dict[str, Tensor], str | None]:
    """Return the weights, and the id of their run if the file names it.

    Not by safetensors' own function, whose tensors stay on the file: if the file changes, the used
    tensors would not be the verified ones.
    """
    with open_file(path) as file:
        size = os.fstat(file.fileno()).st_size
        try:
            start = file.read(8)
            text = file.read(min(int.from_bytes(start, "little"), size))
            header = json.loads(text)
            metadata = header.pop("__metadata__")
            recorded = metadata["sha256"].encode()
            checksum = hashlib.sha256(start + text.replace(recorded, ZEROS, 1))
            weights, at = {}, 0
            for name, entry in sorted(header.items(), key=lambda item: item[1]["data_offsets"]):
                begin, end = entry["data_offsets"]
                if begin != at or end > size:
                    raise ValueError(name)
                at, data = end, bytearray(end - begin)
                file.readinto(data)
                checksum.update(data)
                dtype = DTYPES[entry["dtype"]]
                flat = torch.frombuffer(data, dtype=dtype) if data else torch.empty(0, dtype=dtype)
                weights[name] = flat.reshape(entry["shape"])
            checksum.update(file.read())
        except Exception as error:  # any that the reader raises for a damaged header
            raise CorruptFile(
                path, "it is damaged, or no safetensors file with a checksum"
            ) from error
    if checksum.hexdigest().encode() != recorded:
        raise CorruptFile(path, "its checksum does not match")
    return weights, metadata.get("run_id")


def _read_zip(path: Path) -> Any:
    """Return the content of a file of `write_state`; raise CorruptFile for another checksum."""
    with open_file(path) as file:
        size = os.fstat(file.fileno()).st_size
        checksum, rest = hashlib.sha256(), size - DIGITS
        while rest > 0 and (piece := file.read(min(rest, PIECE))):
            checksum.update(piece)
            rest -= len(piece)
        if checksum.hexdigest().encode() != file.read():
            raise CorruptFile(path, "its checksum does not match")
        try:
            records = ZipFile(file)
            # torch.save compresses nothing; a small file could unpack to more than the memory.
            grows = sum(record.file_size for record in records.infolist()) > size
        except Exception as error:  # any that the reader raises for a damaged zip
            raise CorruptFile(path, "it is damaged") from error
        if grows:
            raise CorruptFile(path, "its records are compressed")
        file.seek(0)
        return _loaded(path, file)


def _loaded(path: Path, file: BinaryIO) -> Any:
    trusted = os.environ.get(TRUST) == "1"
    try:
        return torch.load(file, map_location="cpu", weights_only=not trusted)
    except pickle.UnpicklingError as error:
        if trusted:
            raise CorruptFile(path, "it is damaged") from error
        raise UserError(
            f"{path} contains Python objects, not only tensors and plain values, and loading them"
            f" can execute arbitrary code; if you trust the file, set {TRUST}=1"
        ) from error
    except Exception as error:
        raise CorruptFile(path, f"it is damaged ({type(error).__name__})") from error
