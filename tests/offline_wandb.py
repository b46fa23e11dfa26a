"""Reads what W&B wrote offline: a `.wandb` file is a LevelDB log of protobuf records.

A header of 7 bytes, then blocks of 32 KiB; each piece has crc uint32, length uint16 and type uint8
(1 full, 2 first, 3 middle, 4 last), and a block's end too short for that is left empty.
"""

import json
import os
import struct
import time
from collections.abc import Iterator
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from wandb.proto import wandb_internal_pb2

HEADER, BLOCK = 7, 32 * 1024
FULL, LAST = 1, 4


@dataclass
class OfflineRun:
    run_id: str = ""
    name: str = ""
    group: str = ""
    job_type: str = ""
    tags: list[str] = field(default_factory=list)
    project: str = ""
    entity: str = ""
    notes: str = ""
    exit_code: int | None = None
    config: dict[str, Any] = field(default_factory=dict)
    summary: dict[str, Any] = field(default_factory=dict)
    history: list[dict[str, Any]] = field(default_factory=list)
    artifacts: dict[str, list[str]] = field(default_factory=dict)  # name -> files

    def series(self, name: str) -> list[tuple[int, float]]:
        """(step, value) of a metric."""
        return [(r["trainer/global_step"], r[name]) for r in self.history if name in r]


def without_settings(home: Path, **more: str) -> dict[str, str]:
    """The environment of a person without any setting of W&B."""
    kept = {k: v for k, v in os.environ.items() if not k.startswith("WANDB_") and k != "NETRC"}
    return kept | {"HOME": str(home)} | more


def run_folders(run_dir: Path) -> list[Path]:
    return sorted(run_dir.glob("wandb/offline-run-*"))


def read(folder: Path, *, seconds: float = 10.0) -> OfflineRun:
    """The run once it has ended: W&B's own process may still write when `finish` has returned."""
    (file,) = folder.glob("*.wandb")
    until = time.monotonic() + seconds
    while (run := _read(file)).exit_code is None and time.monotonic() < until:
        time.sleep(0.05)
    return run


def _read(file: Path) -> OfflineRun:
    run = OfflineRun()
    for record in _records(file.read_bytes()):
        kind = record.WhichOneof("record_type")
        if kind == "run":
            run.run_id, run.name = record.run.run_id, record.run.display_name
            run.group, run.project = record.run.run_group, record.run.project
            run.entity, run.notes = record.run.entity, record.run.notes
            run.job_type, run.tags = record.run.job_type, list(record.run.tags)
            run.config |= _values(record.run.config.update)
        elif kind == "config":
            run.config |= _values(record.config.update)
        elif kind == "summary":
            run.summary |= _values(record.summary.update)
        elif kind == "history":
            run.history.append(_values(record.history.item))
        elif kind == "artifact" or record.request.WhichOneof("request_type") == "log_artifact":
            made = record.artifact if kind == "artifact" else record.request.log_artifact.artifact
            run.artifacts[made.name] = [item.path for item in made.manifest.contents]
        elif kind == "exit":
            run.exit_code = record.exit.exit_code
    return run


def _values(items: Any) -> dict[str, Any]:
    values: dict[str, Any] = {}
    for item in items:
        *outer, last = item.nested_key or [item.key]
        place = values
        for name in outer:
            place = place.setdefault(name, {})
        place[last] = json.loads(item.value_json)
    return values


def _records(data: bytes) -> Iterator[wandb_internal_pb2.Record]:
    at, content = HEADER, b""
    while at + HEADER <= len(data):
        if BLOCK - at % BLOCK < HEADER:
            at += BLOCK - at % BLOCK
            continue
        _, length, kind = struct.unpack_from("<IHB", data, at)
        if at + HEADER + length > len(data):  # being written
            return
        content += data[at + HEADER : at + HEADER + length]
        at += HEADER + length
        if kind in (FULL, LAST):
            yield wandb_internal_pb2.Record.FromString(content)
            content = b""
