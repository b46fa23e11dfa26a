"""Which part of an attention model makes the difference? Compose, train and measure.

In Python and notebooks:

    cfg = ablate.compose("model=vit", "pos_enc=learned")    composed and checked
    model = ablate.build(cfg)                               a torch module
    result = ablate.run(cfg)                                trains; what result.json holds
    run = ablate.load(RUN_DIR)                              a finished run: config, model, data
"""

import sys
from importlib import import_module
from types import ModuleType
from typing import TYPE_CHECKING, Any

from ablate.postponed import postpone

if TYPE_CHECKING:
    from ablate.build import build
    from ablate.compose import compose
    from ablate.errors import RunFailed, UserError
    from ablate.load import load
    from ablate.train import run

__all__ = ["RunFailed", "UserError", "build", "compose", "load", "run"]

# Each name is imported when it is first used, so that `import ablate` does not load torch.
_HOME = {
    "RunFailed": "ablate.errors",
    "UserError": "ablate.errors",
    "build": "ablate.build",
    "compose": "ablate.compose",
    "load": "ablate.load",
    "run": "ablate.train",
}


def __getattr__(name: str) -> Any:
    if name not in _HOME:
        raise AttributeError(f"module 'ablate' has no attribute {name!r}")
    return getattr(import_module(_HOME[name]), name)


class _Package(ModuleType):
    """Keeps `ablate.compose` a function when the file of that name is imported.

    The import system binds every loaded submodule to its package under the submodule's name.
    """

    def __setattr__(self, name: str, value: Any) -> None:
        if not (name in _HOME and isinstance(value, ModuleType)):
            super().__setattr__(name, value)


sys.modules[__name__].__class__ = _Package
postpone()
