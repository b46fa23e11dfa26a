"""The config folders: the built-in one, and the user's."""

import os
import pickle
import re
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from copy import copy
from functools import cache, cached_property
from itertools import takewhile
from pathlib import Path
from stat import S_ISDIR
from typing import Any, ClassVar

import yaml
from hydra import version
from hydra._internal.config_loader_impl import ConfigLoaderImpl
from hydra._internal.config_repository import ConfigRepository
from hydra._internal.utils import create_config_search_path
from hydra.core.config_search_path import ConfigSearchPath, SearchPathQuery
from hydra.core.object_type import ObjectType
from hydra.core.override_parser.types import Override
from hydra.core.utils import setup_globals
from hydra.errors import ConfigCompositionException, HydraException
from hydra.plugins.config_source import ConfigResult
from hydra.types import RunMode
from omegaconf import DictConfig, OmegaConf
from omegaconf.errors import OmegaConfBaseException

from ablate.config.overrides import ALIASES, in_full, parse_all
from ablate.errors import UserError
from ablate.machine.version import PACKAGE

# Errors that a composition can raise.
COMPOSITION_ERRORS = (HydraException, OmegaConfBaseException, yaml.YAMLError, ValueError)
ALIASES_OF_A_FILE = 20  # of aliases of aliases, some dozen are millions of values
DEEPEST_GROUP = 4  # folders inside of each other; a link may lead back
DEEPEST = 50  # nodes inside of each other; some hundred exhaust Python's stack


def config_dir() -> Path:
    """The folder of all our choices: in the installed package, or at the top of the checkout."""
    package = PACKAGE.resolve()
    installed = package / "conf"
    return installed if installed.is_dir() else package.parents[1] / "conf"


@cache
def config_dirs() -> tuple[Path, ...]:
    """`config_dir()`, and the folders of the systems."""
    return config_dir(), *sorted(PACKAGE.resolve().glob("systems/*/conf"))


def config_file(name: str) -> Path:
    """Such as "model/gpt.yaml", in the first folder that has it; else a path in `config_dir()`."""
    files = [folder / name for folder in config_dirs()]
    return next(filter(Path.exists, files), files[0])


def config_files(pattern: str) -> list[Path]:
    """The matching files of all folders, by group and name."""
    files = (file for folder in config_dirs() for file in folder.glob(pattern))
    return sorted(files, key=lambda file: file.parts[-2:])


@cache
def groups() -> frozenset[str]:
    """The built-in config groups, such as "model" and "model.attention"."""
    return frozenset(file.name for file in config_files("*") if file.is_dir())


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
    """Parses each file once, until it changes. Hydra copies its repository, and parses for every
    composition; a command makes several."""

    _read: ClassVar[dict[tuple[object, ...], bytes]] = {}
    last: ClassVar[str] = ""  # the option that was loaded last

    def __deepcopy__(self, memo: object) -> "Repository":
        return copy(self)  # which gets its own sources

    def load_config(self, config_path: str) -> ConfigResult | None:
        """Raises UserError, which names the file, for one that cannot be used."""
        Repository.last = config_path
        key = (config_path, *((s.path, _written(s.path, config_path)) for s in self.sources))
        if key not in self._read:
            file = self.file(config_path)
            with readable_file(file):
                loaded = super().load_config(config_path)
            if loaded is not None:
                for entry in loaded.defaults_list or ():
                    if ".." in re.split("[/']", str(vars(entry))):
                        raise UserError(
                            f"{file}: an entry of the defaults list contains '..'; write"
                            " `- /GROUP: OPTION`"
                        )
                group = config_path.rpartition("/")[0].replace("/", ".")
                package = loaded.header.get("package") or "_group_"
                place = package.replace("_group_", group).replace("_global_", "")
                typed = OmegaConf.to_container(loaded.config)
                if (content := _in_full(typed, place)) != typed:
                    loaded.config = OmegaConf.create(content)
                _refuse_values(file, content, place)
            self._read[key] = pickle.dumps(loaded)
        return pickle.loads(self._read[key])  # the reader changes it

    def file(self, config_path: str) -> Path:
        """The file of an option; only its name if it is Hydra's, or does not exist."""
        name = f"{config_path.removesuffix('.yaml')}.yaml"
        folders = (source.path for source in self.sources if source.scheme() == "file")
        files = (os.path.join(folder, name) for folder in folders)
        return Path(next(filter(os.path.isfile, files), name))


@contextmanager
def readable_file(file: Path) -> Iterator[None]:
    """Raise UserError that names a YAML file, if it has other than keys with values, its content
    has no end, or the block cannot read it."""
    try:
        if file.is_absolute():
            _refuse_endless(file)
        yield
    except (*COMPOSITION_ERRORS, AssertionError, OSError, RecursionError) as error:
        reason = " ".join(str(error).split())
        if isinstance(error, yaml.MarkedYAMLError) and error.problem_mark is not None:
            reason = f"line {error.problem_mark.line + 1}: {error.problem}"
        if isinstance(error, RecursionError):
            reason = "its defaults list leads back to it"
        if isinstance(error, AssertionError):  # Hydra's own, on keys that are not strings
            reason = "an entry of the defaults list is not `- OPTION` or `- GROUP: OPTION`"
        raise UserError(f"{file}: {reason}") from error


def _refuse_endless(file: Path) -> None:
    """Raise ValueError for a file that would take seconds or the whole stack to read."""
    anchors: list[str | None] = []  # of the nodes that are open
    aliases = 0
    loader: Any = getattr(yaml, "CSafeLoader", yaml.SafeLoader)
    event: Any
    for event in yaml.parse(file.read_bytes(), Loader=loader):
        line = f"line {event.start_mark.line + 1}"
        match event:
            case yaml.SequenceStartEvent() if not anchors:
                raise ValueError("must have lines KEY: VALUE, and is a list")
            case yaml.ScalarEvent() if not anchors and event.value:
                raise ValueError(f"must have lines KEY: VALUE, and is {event.value:.40}")
            case yaml.CollectionStartEvent():
                anchors.append(event.anchor)
            case yaml.CollectionEndEvent():
                anchors.pop()
            case yaml.AliasEvent():
                aliases += 1
                if event.anchor in anchors:
                    raise ValueError(f"{line}: *{event.anchor} is in itself")
        if len(anchors) > DEEPEST:
            raise ValueError(f"{line}: more than {DEEPEST} nodes deep")
        if aliases > ALIASES_OF_A_FILE:
            raise ValueError(f"{line}: more than {ALIASES_OF_A_FILE} aliases")


def _in_full(node: Any, path: str) -> Any:
    """The content of a file at a path of the composition, without short spellings of keys."""
    if isinstance(node, str):
        return in_full(node)
    if isinstance(node, list):
        return [_in_full(item, path) for item in node]
    if not isinstance(node, dict):
        return node
    full: dict[Any, Any] = {}
    for key, value in node.items():
        name, inner = f"{path}.{key}".lstrip("."), full
        if path and name in ALIASES:
            part, key = ALIASES[name].removeprefix(f"{path}.").split(".")
            inner = full.setdefault(part, {})
        key, value = ALIASES.get(key, key), _in_full(value, name)
        if isinstance(inner, dict):  # else _refuse_values reports the value in its place
            nodes = isinstance(inner.get(key), dict) and isinstance(value, dict)
            inner[key] = inner[key] | value if nodes else value
    return full


def _refuse_values(file: Path, content: Any, place: str) -> None:
    """Raise UserError if a file sets a node to a value, such as `model: null`. place: its path."""
    for node in ["study", *sorted(groups())]:
        value: Any = content if node.startswith(f"{place}." if place else "") else {}
        for name in node.removeprefix(f"{place}.").split(".") if value else ():
            value = value.get(name, {}) if isinstance(value, dict) else {}
        if isinstance(value, dict) or str(value).startswith("${"):
            continue
        option = f"`- override /{node}: {value if isinstance(value, str) else 'OPTION'}`"
        raise UserError(
            f"{file}: {node}: {'null' if value is None else value} is not a mapping; write keys"
            f" below {node}:, or {option} in the defaults list"
        )


def _written(folder: str, config_path: str) -> int | None:
    """When an option's file was written; None if there is none."""
    try:
        return os.stat(os.path.join(folder, f"{config_path}.yaml")).st_mtime_ns
    except OSError:
        return None


class Tree(ConfigLoaderImpl):
    """The options, and the composition of a choice of them, without any check: Hydra's loader with
    our repository.

    search: hydra.searchpath=[..], as typed.
    """

    def __init__(
        self,
        search_path: ConfigSearchPath,
        config_name: str = "config",
        search: tuple[str, ...] = (),
        composed: dict[tuple[object, ...], bytes] | None = None,
    ) -> None:
        """composed: pickled compositions of this tree, if there are any."""
        super().__init__(search_path)
        self.repository: Repository = Repository(search_path)
        self.config_name, self.search = config_name, search
        self.composed = {} if composed is None else composed
        self._names: dict[tuple[str, ObjectType], tuple[str, ...]] = {}

    def load_configuration(self, *args: Any, **kwargs: Any) -> DictConfig:
        try:
            return super().load_configuration(*args, **kwargs)
        except RecursionError:
            file = self.repository.file(Repository.last)
            raise UserError(f"{file}: its defaults list leads back to it") from None

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
        if group.count("/") == DEEPEST_GROUP:
            return own
        folders = [name for name in self._inside(group, ObjectType.GROUP) if name not in own]
        return (*own, *(f"{name}/{o}" for name in folders for o in self.options(f"{group}/{name}")))

    def load(self, overrides: Sequence[str] = ()) -> DictConfig:
        """The composition, Hydra's node included but for job.override_dirname.

        Raises Hydra's and OmegaConf's errors. Hydra takes 0.25 s to compose the files of a choice
        of options (0.12 s once they were parsed), 0.01 s to set values in the result: the
        first is done once for a choice.
        """
        parsed = parse_all(overrides)
        lines = [override.input_line or "" for override in parsed]
        if any(o.is_sweep_override() or o.key_or_group == "hydra.searchpath" for o in parsed):
            return self._compose(lines)
        options = tuple(text for text, o in zip(overrides, parsed, strict=True) if self.chooses(o))
        composed, key = self.composed, (self.config_name, self.search, options)
        if key not in composed:
            composed[key] = pickle.dumps(self._compose(options))
        cfg = pickle.loads(composed[key])
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
        return self.load_configuration(
            self.config_name, [*self.search, *overrides], RunMode.RUN, from_shell=False
        )

    def chooses(self, override: Override) -> bool:
        """Whether an override names an option, and does not set keys of its node by a {..}."""
        group = override.key_or_group in (*self.groups, *self.hydra_groups)
        return group and not isinstance(override.value(), dict)

    def _inside(self, group: str, kind: ObjectType) -> tuple[str, ...]:
        if (group, kind) not in self._names:
            options = self.get_group_options(group, kind, overrides=list(self.search))
            self._names[group, kind] = tuple(sorted(o for o in options if o != "__init__"))
        return self._names[group, kind]


_trees: dict[tuple[object, ...], Tree] = {}


def open_tree(user_folder: str | Path | None = None, config_name: str = "config") -> Tree:
    """The choices of `config_dirs()` and those of the folder `user_folder`, which come after the
    built-in ones.

    The compositions of a tree are kept in this process until one of its files changes.
    """
    if user_folder is not None and not Path(user_folder).is_dir():
        raise UserError(f"--config-dir {user_folder}: directory not found")
    own = () if user_folder is None else (Path(user_folder).resolve(),)
    core, *systems = config_dirs()
    key = (config_name, tuple(map(_state, (core, *systems, *own))))
    version.setbase("1.3")
    if key not in _trees:
        setup_globals()
        search_path = create_config_search_path(str(core))
        schema = SearchPathQuery(provider="schema")
        for folder in systems:
            search_path.prepend("systems", f"file://{folder}", anchor=schema)
        for folder in own:
            _refuse_hidden(folder)
            search_path.prepend("command-line", f"file://{folder}", anchor=schema)
        _trees[key] = Tree(search_path, config_name)
    return _trees[key]


def _refuse_hidden(folder: Path) -> None:
    """Raise UserError for a file that would not be read, because a built-in one has its name."""
    for file in sorted(folder.glob("*/**/*.yaml")):
        ours = config_file(str(file.relative_to(folder)))
        if ours.is_file() and ours.read_bytes() != file.read_bytes():
            raise UserError(
                f"{file}: {file.parent.name}={file.stem} is a built-in option, which takes"
                " precedence; rename the file"
            )


def _state(folder: Path) -> tuple[tuple[str, int], ...]:
    """Every file below a folder, and when it was written; also broken links, and folders once if
    links lead back to them."""
    found, passed, open_folders = [], set(), [str(folder)]
    while open_folders:
        try:
            entries = [*os.scandir(open_folders.pop())]
        except OSError:  # such as a folder that nobody may read
            continue
        for entry in entries:
            try:
                state = entry.stat()
            except OSError:  # a broken link
                state = entry.stat(follow_symlinks=False)
            found.append((entry.path, state.st_mtime_ns))
            identity = (state.st_dev, state.st_ino)
            if S_ISDIR(state.st_mode) and identity not in passed:
                passed.add(identity)
                open_folders.append(entry.path)
    return tuple(found)
