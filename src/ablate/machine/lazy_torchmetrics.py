"""Lazy import of torchmetrics: metrics are imported only when they are used.

Lightning uses two classes from torchmetrics, a task one or two more; torchmetrics' `__init__`
imports every metric, and with them scipy.signal, torchvision and, if it is installed, transformers:
about half of the time before the first step. Here the `__init__` of four of its packages is
postponed until an attribute is requested that is not in `AT_HAND`, as importlib.util.LazyLoader
does for a whole module. Nothing is replaced or hidden: `torchmetrics.BLEUScore` still works, after
those seconds.
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

# The names used from each package while others are imported, and the modules that define them. They
# hold for this version of torchmetrics; any other is imported as usual.
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
    """A package whose submodules can be imported although its `__init__` has not run yet."""

    def __getattr__(self, name: str) -> Any:
        if home := AT_HAND[self.__name__].get(name):
            return getattr(import_module(home), name)
        if (self.__name__, name) == ("torchmetrics", "_logger"):
            return logging.getLogger("torchmetrics")
        assert self.__spec__ is not None
        assert isinstance(self.__loader__, Postponed)
        loader = self.__loader__.loader
        # Before its `__init__` runs: its modules import each other by this package.
        self.__class__ = ModuleType  # type: ignore[assignment]
        self.__loader__ = self.__spec__.loader = loader
        loader.exec_module(self)
        return getattr(self, name)


class Postponed(Loader):
    """Loads a package without its `__init__`, which its `own` loader runs later."""

    def __init__(self, loader: Loader):
        self.loader = loader

    def exec_module(self, module: ModuleType) -> None:
        module.__class__ = Package
        if home := AT_HAND[module.__name__].get("Metric"):
            import_module(home)  # first: see AT_HAND


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
    """Make imports of torchmetrics lazy in this process, unless it was imported before."""
    if not any(isinstance(finder, Finder) for finder in sys.meta_path):
        sys.meta_path.insert(0, Finder())
