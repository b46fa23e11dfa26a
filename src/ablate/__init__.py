"""Which part of an attention model makes the difference? Compose, train and measure.

In Python and notebooks:

    cfg = ablate.compose("model=vit", "pos_enc=rotary")     composed and checked
    model = ablate.build(cfg)                               a torch module
    result = ablate.run(cfg)                                trains; the content of result.json
    run = ablate.load(RUN_DIR)                              a finished run: config, model, data
    study = ablate.load_study(STUDY_DIR)                    its runs, arms and claims as frames
    judged = ablate.judge(frame, baseline="NAME")           verdicts on results of other programs
"""

# ruff: noqa: E402
import sys

_typed = {word.removeprefix("-m").partition(".")[0] for word in sys.orig_argv}
if sys.argv[:1] == ["-m"] and "ablate" in _typed and not sys.flags.safe_path:
    # `python -m ablate` puts the current folder first: a file of an untrusted run could replace a
    # package. Custom components are also found with the folder at the end.
    sys.path.append(sys.path.pop(0))

from importlib import import_module
from typing import TYPE_CHECKING, Any

from ablate.machine.lazy_torchmetrics import postpone
from ablate.machine.threads import limit_spinning
from ablate_attention import mixture

if TYPE_CHECKING:
    from ablate.config.composition import compose
    from ablate.errors import RunFailed, UserError
    from ablate.judge import judge
    from ablate.study.frames import load_study
    from ablate.training.build import build
    from ablate.training.load import load
    from ablate.training.train import run

    __version__: str

__all__ = ["RunFailed", "UserError", "build", "compose", "judge", "load", "load_study", "run"]

# Each name is imported when it is first used, so that `import ablate` does not load torch. No
# submodule may have one of these names: importing it would put the module in the function's place.
# ablate.judge is both, and that module can be called.
_HOME = {
    "RunFailed": "ablate.errors",
    "UserError": "ablate.errors",
    "__version__": "ablate.machine.version",
    "build": "ablate.training.build",
    "compose": "ablate.config.composition",
    "judge": "ablate.judge",
    "load": "ablate.training.load",
    "load_study": "ablate.study.frames",
    "run": "ablate.training.train",
}


def __getattr__(name: str) -> Any:
    if name not in _HOME:
        raise AttributeError(f"module 'ablate' has no attribute {name!r}")
    return getattr(import_module(_HOME[name]), name)


def __dir__() -> list[str]:
    return sorted([*__all__, "__version__"])


if _line := mixture():
    raise ImportError(_line)
postpone()
limit_spinning()
