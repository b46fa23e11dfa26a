"""torchmetrics without what it imports for metrics that nobody asked for.

Lightning takes two classes from torchmetrics, a task one or two more; torchmetrics' `__init__`
imports every metric, and with them scipy.signal, torchvision and, where it is installed,
transformers: about half of all that stood before the first step. Here the `__init__` of four of its
packages waits until something is asked of them that is not in `AT_HAND`, as
importlib.util.LazyLoader has a whole module wait. Nothing is replaced or hidden: whoever asks for
`torchmetrics.BLEUScore` gets it, after those seconds.
"""

import logging
import sys
from collections.abc import Sequence
from importlib import import_module
from importlib.abc import Loader, MetaPathFinder
from importlib.machinery import ModuleSpec, PathFinder
from importlib.metadata import PackageNotFoundError, version
from types import ModuleType
from typing import Any

# The names asked of each package while others are imported, and where they are. Which these are
# was read in this version; any other is imported as it comes.
VERSION = "1.9."
AT_HAND = {
    "torchmetrics": {
        "__version__": "torchmetrics.__about__",
        # Not torchmetrics.metric: the two import each other, and only this one can be the first.
        "Metric": "torchmetrics.utilities.checks",
        "MetricCollection": "torchmetrics.collections",
    },
    "torchmetrics.functional": {},
    "torchmetrics.functional.text": {},
    "torchmetrics.text": {},
}


class Package(ModuleType):
    """A package whose submodules can be imported, and whose `__init__` has not run yet."""

    def __getattr__(self, name: str) -> Any:
        if home := AT_HAND[self.__name__].get(name):
            return getattr(import_module(home), name)
        if (self.__name__, name) == ("torchmetrics", "_logger"):
            return logging.getLogger("torchmetrics")
        assert self.__spec__ is not None
        assert isinstance(self.__loader__, Postponed)
        own = self.__loader__.own
        # Before its `__init__` runs: its modules import each other by this package.
        self.__class__ = ModuleType  # type: ignore[assignment]
        self.__loader__ = self.__spec__.loader = own
        own.exec_module(self)
        return getattr(self, name)


class Postponed(Loader):
    """Loads a package without its `__init__`, which stays with its `own` loader."""

    def __init__(self, own: Loader):
        self.own = own

    def exec_module(self, module: ModuleType) -> None:
        module.__class__ = Package


class Finder(MetaPathFinder):
    def find_spec(
        self, fullname: str, path: Sequence[str] | None, target: ModuleType | None = None
    ) -> ModuleSpec | None:
        if fullname not in AT_HAND or (spec := PathFinder.find_spec(fullname, path)) is None:
            return None
        if spec.loader is not None and _known():
            spec.loader = Postponed(spec.loader)
        return spec


def _known() -> bool:
    try:
        return version("torchmetrics").startswith(VERSION)
    except PackageNotFoundError:
        return False


def postpone() -> None:
    """From now on, in this process, unless torchmetrics was imported before."""
    if not any(isinstance(finder, Finder) for finder in sys.meta_path):
        sys.meta_path.insert(0, Finder())
