"""Make the parts of a composition from their nodes."""

from functools import partial
from typing import TYPE_CHECKING, Any

from hydra.errors import InstantiationException
from hydra.utils import instantiate
from omegaconf import DictConfig

from ablate.config.keys import locate, targets
from ablate.errors import unwrap

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
        for target in targets(node):
            locate(target)
        raise


def plain(part: Any) -> Any:
    """Turn Hydra's partial into a plain one: Hydra's looks up its policy at every call, which takes
    a millisecond."""
    if isinstance(part, partial):
        return partial(part.func, *part.args, **part.keywords)
    return part


def make_data(cfg: DictConfig) -> "Data":
    """Make the data, not read yet; task and model declare what its batches must hold."""
    data: Data = make(cfg.data, seed=cfg.seed)
    task = make(cfg.task, _partial_=True)
    task.func.configure_data(data, **task.keywords)
    model = locate(cfg.model._target_)
    if hasattr(model, "configure_data"):  # a user's function that makes the model has none
        model.configure_data(data)
    return data
