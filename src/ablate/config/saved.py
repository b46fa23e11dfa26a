"""Read the config.yaml of a run, which may be damaged."""

from collections.abc import Collection, Iterator
from contextlib import contextmanager
from io import StringIO
from pathlib import Path
from typing import Any

import yaml
from omegaconf import DictConfig, OmegaConf

from ablate.config.check import wrong_values
from ablate.config.keys import to_dict
from ablate.config.run_id import counted_keys, digest
from ablate.config.trust import require_trusted
from ablate.errors import UserError
from ablate.run_files import Damaged, read_mapping, read_text
from ablate.run_files.shape import schema_error

LONGEST = 1 << 20  # bytes of a config
PART = {"_target_": str}
PARTS = ("data", "task", "model", "pos_enc", "optimizer", "schedule", "kernel")
NODES = {
    "seed": int,
    **dict.fromkeys(PARTS, PART),
    "trainer": {"precision": str},
    "study": {"name": (str, int, float)},
    "choices?": {"model?": str, "data?": str, "task?": str},
}


def read_config(path: Path, allow: Collection[str] = ()) -> DictConfig:
    """Read a config; raise UserError if it is not that of a run, was edited since its training, or
    names code or values of the environment that nobody allowed (ablate.config.trust)."""
    with names_file(path):
        config = read_yaml(path)
        _leave_out(config, allow)
        require_trusted(config, allow)
        values = to_dict(config)
        lines = [schema_error(values, NODES)]
        if wrong := next(filter(None, [*lines, *wrong_values(values)]), None):
            raise UserError(wrong)
        require_unedited(path, config)
    return config


def counted(config: DictConfig) -> str:
    """Return a hash of the values of a saved config that its run's id counts, as they are written:
    nothing that an untrusted config names is imported. Nodes that `read_config` may leave out do
    not count."""
    values: Any = OmegaConf.to_container(config, resolve=False)
    return digest(counted_keys({**values, "callbacks": None}), "", {})


def require_unedited(path: Path, config: DictConfig) -> None:
    """Raise UserError if the config at `path` has other values than when its run was trained."""
    trained = read_mapping(path.with_name("provenance.json")).get("config")
    if trained not in (None, counted(config)):
        raise UserError("it was edited since its run was trained; put the values back")


def _leave_out(config: DictConfig, allow: Collection[str]) -> None:
    """Leave out loggers and callbacks that name code that nobody allowed: no reader builds them."""
    for name in ("logger", "callbacks"):
        if config.get(name) is None:
            continue
        try:
            require_trusted(OmegaConf.create({name: config[name]}), allow)
        except UserError:
            config[name] = None


def read_yaml(path: Path) -> DictConfig:
    """Read a mapping; raise UserError for aliases: a few lines of them make billions of values."""
    text = read_text(path, longest=LONGEST)
    if "&" in text and "*" in text:
        for event in yaml.parse(text, Loader=yaml.SafeLoader):
            if isinstance(event, yaml.AliasEvent):
                raise UserError(f"it has the alias *{event.anchor}, and no run writes aliases")
    config = OmegaConf.load(StringIO(text))
    if not isinstance(config, DictConfig):
        raise UserError("it is not a mapping")
    return config


class Unusable(UserError):
    """An error in the content of a file that it names."""


@contextmanager
def names_file(path: Path) -> Iterator[None]:
    """Turn an error in the content of a file, here or when a run is rebuilt from it, into a
    UserError that names the file."""
    try:
        yield
    except Exception as error:
        named = isinstance(error, Damaged | Unusable)
        if named or (isinstance(error, OSError) and error.filename):
            raise  # it names its file; OmegaConf raises an OSError without
        ours = isinstance(error, UserError)
        kind = "" if ours else f"{type(error).__name__}: "
        more = "" if ours else " (HYDRA_FULL_ERROR=1 prints the traceback)"
        line = " ".join(str(error).split())
        cause = None if ours else error
        raise Unusable(f"{path} cannot be used: {kind}{line}{more}") from cause
