"""Make the parts of a composition from their nodes."""

from functools import partial
from typing import TYPE_CHECKING, Any

from hydra.errors import InstantiationException
from hydra.utils import instantiate
from omegaconf import DictConfig

from ablate.config.keys import targets
from ablate.config.parts import OURS, locate
from ablate.errors import UserError, unwrap

if TYPE_CHECKING:
    from ablate.data import Data


def make(node: Any, *arguments: Any, **more: Any) -> Any:
    """Call Hydra's `instantiate`; re-raise our own errors unwrapped, and raise UserError for a part
    that cannot be imported."""
    try:
        return instantiate(node, *arguments, **more)
    except InstantiationException as error:
        if ours := unwrap(error):
            raise ours from None
        parts = [locate(target) for target in targets(node).values()]
        parts += [part.func for part in more.values() if isinstance(part, partial)]
        for part in parts:
            _require_arguments(part, error)
        raise


def _require_arguments(part: Any, error: InstantiationException) -> None:
    """Raise UserError if a third-party component does not take the arguments that it is
    constructed with."""
    name, why = f"{part.__module__}.{part.__qualname__}", str(error.__cause__)
    wrong = isinstance(error.__cause__, TypeError) and why.startswith(
        f"{part.__qualname__}.__init_"
    )
    if wrong and not name.startswith(OURS):
        raise UserError(
            f"_target_={name}: cannot be instantiated ({why}); it receives the keys of its YAML"
            " file and the arguments of its base class"
        ) from error


def unwrap_partial(part: Any) -> Any:
    """Turn Hydra's partial into a plain one: Hydra's looks up its policy at every call, which takes
    a millisecond."""
    if isinstance(part, partial):
        return partial(part.func, *part.args, **part.keywords)
    return part


def make_data(cfg: DictConfig) -> "Data":
    """Make the data, not read yet; task and model declare the content of its batches."""
    data: Any = make(cfg.data, seed=cfg.seed)
    task = make(cfg.task, _partial_=True)
    if hasattr(task.func, "configure_data"):
        task.func.configure_data(data, **task.keywords)
    model = locate(cfg.model._target_)
    if hasattr(model, "configure_data"):  # a user's function that makes the model has none
        model.configure_data(data)
    if hasattr(data, "normalization") and hasattr(model, "normalization"):
        # Asked when the data is read, since it may import timm.
        data.normalization = partial(model.normalization, cfg.model)
    return data
