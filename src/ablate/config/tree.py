"""The folders of choices: ours, and a person's own beside them."""

import os
import pickle
import re
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from copy import copy
from dataclasses import dataclass, field
from functools import cached_property
from itertools import takewhile
from pathlib import Path
from typing import ClassVar

from hydra import initialize_config_dir
from hydra._internal import config_loader_impl
from hydra._internal import defaults_list as hydras
from hydra._internal.config_loader_impl import ConfigLoaderImpl
from hydra._internal.config_repository import ConfigRepository
from hydra.core.config_loader import ConfigLoader
from hydra.core.default_element import InputDefault
from hydra.core.global_hydra import GlobalHydra
from hydra.core.object_type import ObjectType
from hydra.core.override_parser.types import Override
from hydra.errors import ConfigCompositionException
from hydra.plugins.config_source import ConfigResult
from hydra.types import RunMode
from omegaconf import DictConfig, OmegaConf
from omegaconf.errors import OmegaConfBaseException

from ablate.config.overrides import parse_all
from ablate.errors import UserError
from ablate.version import PACKAGE


def config_dir() -> Path:
    """The folder of all our choices: in the installed package, or at the top of the checkout."""
    package = PACKAGE.resolve()
    installed = package / "conf"
    return installed if installed.is_dir() else package.parents[1] / "conf"


def header(text: str) -> str:
    """The comment at the top of an option's file, to the end of the sentence that its first line
    has or begins."""
    lines = (line for line in text.splitlines() if "@package" not in line)
    comment = re.compile("# (?!python -m )")  # ends before commands
    block = [line[2:] for line in takewhile(comment.match, lines)]
    whole, first = " ".join(block), len(block[0]) if block else 0
    ends = (end.start() for end in re.finditer(r"(?<=[.?!])(?= [A-Z]|$)", whole))
    return whole[: next((end for end in ends if end >= first), None)]


class Repository(ConfigRepository):
    """Parses each file once, until it changes: Hydra, which copies its repository, for every
    composition, of which a command makes several."""

    _read: ClassVar[dict[tuple[object, ...], bytes]] = {}

    def __deepcopy__(self, memo: object) -> "Repository":
        return copy(self)  # which gets its own sources

    def load_config(self, config_path: str) -> ConfigResult | None:
        key = (config_path, *((s.path, _written(s.path, config_path)) for s in self.sources))
        if key not in self._read:
            self._read[key] = pickle.dumps(super().load_config(config_path))
        return pickle.loads(self._read[key])  # the reader changes it


def _written(folder: str, config_path: str) -> int | None:
    """When an option's file was written; None if there is none."""
    try:
        return os.stat(os.path.join(folder, f"{config_path}.yaml")).st_mtime_ns
    except OSError:
        return None


def _interpolation_map(
    overrides: hydras.Overrides, defaults_list: list[InputDefault], self_added: bool
) -> DictConfig:
    """Hydra makes this for every file, which takes a quarter of a composition's time, and reads it
    only where a defaults list has an interpolation."""
    if any(default.is_interpolation() for default in defaults_list):
        return _hydras_map(overrides, defaults_list, self_added)
    return OmegaConf.create()


_hydras_map = hydras._create_interpolation_map
hydras._create_interpolation_map = _interpolation_map
# Of every loader, also the one that hydra.main makes.
config_loader_impl.ConfigRepository = Repository  # type: ignore[misc]


@dataclass(frozen=True)
class Tree:
    """What can be chosen, and the composition of a choice, without any check."""

    loader: ConfigLoader
    config_name: str
    search: tuple[str, ...]
    _composed: dict[tuple[str, ...], bytes] = field(default_factory=dict)  # options -> pickled

    @cached_property
    def groups(self) -> tuple[str, ...]:
        """Every config group, such as "model" and "model.attention"; not Hydra's."""
        return tuple(name for name in self._inside("", ObjectType.GROUP) if name != "hydra")

    @cached_property
    def hydra_groups(self) -> tuple[str, ...]:
        """Such as "hydra/launcher"."""
        return tuple(f"hydra/{name}" for name in self._inside("hydra", ObjectType.GROUP))

    def options(self, group: str) -> tuple[str, ...]:
        """The options of a group, those of its folders as FOLDER/OPTION. A folder with the name of
        an option has that option's parts (debug/fast/)."""
        own = self._inside(group, ObjectType.CONFIG)
        folders = [name for name in self._inside(group, ObjectType.GROUP) if name not in own]
        return (*own, *(f"{name}/{o}" for name in folders for o in self.options(f"{group}/{name}")))

    def load(self, overrides: Sequence[str] = ()) -> DictConfig:
        """The composition, Hydra's node included but for job.override_dirname.

        Raises Hydra's and OmegaConf's errors. Hydra takes 0.25 s to compose the files of a choice
        of options (0.12 s once they were parsed), 0.01 s to set values in what came of it: the
        first is done once for a choice.
        """
        parsed = parse_all(overrides)
        if any(o.is_sweep_override() or o.key_or_group == "hydra.searchpath" for o in parsed):
            return self._compose(overrides)
        options = tuple(text for text, o in zip(overrides, parsed, strict=True) if self.chooses(o))
        if options not in self._composed:
            self._composed[options] = pickle.dumps(self._compose(options))
        cfg = pickle.loads(self._composed[options])
        try:
            values = [override for override in parsed if not self.chooses(override)]
            ConfigLoaderImpl._apply_overrides_to_config(values, cfg)
        except OmegaConfBaseException as error:
            raise ConfigCompositionException() from error  # as Hydra's own loading does
        typed = cfg.hydra.overrides
        typed.hydra = [*self.search, *(o.input_line for o in parsed if o.is_hydra_override())]
        typed.task = [o.input_line for o in parsed if not o.is_hydra_override()]
        cfg.hydra.runtime.cwd = os.getcwd()
        return cfg

    def _compose(self, overrides: Sequence[str]) -> DictConfig:
        try:
            return self.loader.load_configuration(
                self.config_name,
                [*self.search, *overrides],
                RunMode.RUN,
                from_shell=False,
            )
        except AssertionError as error:  # Hydra's own, on keys that are no texts
            raise ConfigCompositionException(
                "a defaults list holds an entry that is not `- OPTION` or `- GROUP: OPTION`"
            ) from error

    def chooses(self, override: Override) -> bool:
        """Whether an override names an option, and does not set keys of its node by a {..}."""
        group = override.key_or_group in (*self.groups, *self.hydra_groups)
        return group and not isinstance(override.value(), dict)

    def _inside(self, group: str, kind: ObjectType) -> tuple[str, ...]:
        options = self.loader.get_group_options(group, kind, overrides=list(self.search))
        return tuple(sorted(name for name in options if name != "__init__"))


_trees: dict[tuple[object, ...], Tree] = {}


@contextmanager
def open_tree(user_folder: str | Path | None = None, config_name: str = "config") -> Iterator[Tree]:
    """The choices of `config_dir()` and those of the folder `user_folder`, which stand behind ours.

    May be opened inside a run: Hydra's global state is put back. What a tree has composed is kept
    in this process until one of its files changes.
    """
    if user_folder is not None and not Path(user_folder).is_dir():
        raise UserError(f"--config-dir {user_folder}: there is no such folder")
    folders = [config_dir()] if user_folder is None else [config_dir(), Path(user_folder).resolve()]
    search = tuple(f"hydra.searchpath=['file://{folder}']" for folder in folders[1:])
    key = (config_name, tuple(map(_state, folders)))
    hydra = GlobalHydra.instance()
    before = hydra.hydra
    hydra.clear()
    try:
        with initialize_config_dir(str(config_dir()), job_name="ablate", version_base="1.3"):
            if key not in _trees:
                if user_folder is not None:
                    _refuse_hidden(folders[1])
                loader = GlobalHydra.instance().config_loader()
                _trees[key] = Tree(loader, config_name, search)
            yield _trees[key]
    finally:
        GlobalHydra.instance().hydra = before


def _refuse_hidden(folder: Path) -> None:
    """Raise UserError for a file that would not be read, because ours of that name is."""
    for file in sorted(folder.glob("*/**/*.yaml")):
        ours = config_dir() / file.relative_to(folder)
        if ours.is_file() and ours.read_bytes() != file.read_bytes():
            raise UserError(
                f"{file}: {file.parent.name}={file.stem} is an option of ablate, which would be"
                " taken; give the file another name"
            )


def _state(folder: Path) -> tuple[tuple[str, int], ...]:
    """Every file below a folder, and when it was written."""
    return tuple(
        (entry.path, entry.stat().st_mtime_ns)
        for inside, _, _ in os.walk(folder, followlinks=True)
        for entry in os.scandir(inside)
    )
