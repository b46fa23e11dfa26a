"""Checkpoint files with a checksum, read without running code from them.

A state of training is a file of torch.save, a zip, whose comment is the SHA-256 of all that stands
before it. Weights are a safetensors file, in whose metadata the checksum is; it is that of the file
with zeros in its place. Either is part of its file, so that no death of the process can leave a
file beside the checksum of another.

torch.load runs with weights_only=True, which accepts tensors and plain values and refuses every
other object, since a pickle can call any function. Checkpoints of earlier versions have no checksum
(only their records' CRC-32 is verified), and their weights are in best.ckpt.
"""

import json
import os
import pickle
from collections.abc import Mapping
from hashlib import sha256
from io import BytesIO
from pathlib import Path
from typing import Any
from zipfile import ZipFile

import safetensors.torch
import torch
from torch import Tensor

from ablate.errors import UserError
from ablate.shape import misfit

TRUST = "ABLATE_TRUST_PICKLE"
DIGITS = 64  # of a SHA-256, in hexadecimal
ZEROS = "0" * DIGITS
END = b"PK\5\6"  # starts the last 22 bytes of a zip without a comment
STATE = {
    "global_step": int,
    "state_dict": {str: Tensor},
    "optimizer_states": [{"state": dict, "param_groups": [dict]}],
    "lr_schedulers": [dict],
    "callbacks": {str: dict},
    "loops": {str: dict},
}


class Damaged(UserError):
    """A file that is not as it was written."""

    def __init__(self, path: Path, why: str):
        super().__init__(f"{path} cannot be read: {why}")


def state_bytes(state: Mapping[str, Any]) -> bytes:
    """Make the content of a file for `read_state`."""
    file = BytesIO()
    torch.save(state, file)
    content = file.getvalue()[:-2] + DIGITS.to_bytes(2, "little")  # length of the comment
    return content + sha256(content).hexdigest().encode()


def weights_bytes(weights: Mapping[str, Tensor]) -> bytes:
    """Make the content of a file for `read_weights`."""
    # Copies, because safetensors refuses tensors that share memory, as tied weights do.
    alone = {name: value.detach().cpu().clone(memory_format=torch.contiguous_format)
             for name, value in weights.items()}  # fmt: skip
    content = safetensors.torch.save(alone, metadata={"sha256": ZEROS})
    return content.replace(ZEROS.encode(), sha256(content).hexdigest().encode(), 1)


def read_state(path: Path) -> dict[str, Any]:
    """Read a checkpoint. Raises Damaged, and UserError if that would run code from the file."""
    content = _verified(path)
    state = _loaded(path, content)
    if wrong := misfit(state, STATE):
        raise Damaged(path, wrong)
    return state


def read_weights(path: Path) -> dict[str, Tensor]:
    """Read weights, also those of an earlier version. Raises Damaged or UserError, as above."""
    if path.suffix == ".safetensors":
        return _read_safetensors(path)
    state = _loaded(path, _verified(path))
    if wrong := misfit(state, {"state_dict": {str: Tensor}}):
        raise Damaged(path, wrong)
    weights: dict[str, Tensor] = state["state_dict"]
    return weights


def _read_safetensors(path: Path) -> dict[str, Tensor]:
    content = path.read_bytes()
    try:
        size = int.from_bytes(content[:8], "little")
        found = json.loads(content[8 : 8 + size])["__metadata__"]["sha256"].encode()
        intact = sha256(content.replace(found, ZEROS.encode(), 1)).hexdigest().encode() == found
        weights = safetensors.torch.load(content) if intact else {}
    except Exception as error:  # whatever a damaged header makes the readers raise
        raise Damaged(path, "it is damaged, or no safetensors file with a checksum") from error
    if not intact:
        raise Damaged(path, "its checksum does not match")
    return weights


def _verified(path: Path) -> bytes:
    content = path.read_bytes()
    if content[-22:-18] != END or content[-2:] != bytes(2):  # has a comment
        if sha256(content[:-DIGITS]).hexdigest().encode() != content[-DIGITS:]:
            raise Damaged(path, "its checksum does not match")
        return content
    try:
        broken = ZipFile(BytesIO(content)).testzip()
    except Exception as error:  # whatever a damaged zip makes the reader raise
        raise Damaged(path, "it is damaged") from error
    if broken is not None:
        raise Damaged(path, f"the checksum of its record {broken} does not match")
    return content


def _loaded(path: Path, content: bytes) -> Any:
    trusted = os.environ.get(TRUST) == "1"
    try:
        return torch.load(BytesIO(content), map_location="cpu", weights_only=not trusted)
    except pickle.UnpicklingError as error:
        if trusted:
            raise Damaged(path, "it is damaged") from error
        raise UserError(
            f"{path} holds Python objects, not only tensors and plain values, and reading them can"
            f" run any code that its author put there; if you trust it, set {TRUST}=1"
        ) from error
    except Exception as error:
        raise Damaged(path, f"it is damaged ({type(error).__name__})") from error
