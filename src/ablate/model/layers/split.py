"""trainer.tensor_parallel: share out the heads and hidden units of a model as its parts state."""

from collections.abc import Iterator
from dataclasses import dataclass, field
from typing import Any, NamedTuple

from jaxtyping import Float
from torch import Tensor, nn

from ablate.errors import UserError
from ablate.interface.score import Score
from ablate.interface.splits import Part, Split, Splits
from ablate.model.layers.layer import Layer
from ablate.model.layers.linear import Linear
from ablate.pos_enc import PosEnc


@dataclass
class Layout:
    """The parameters of a model by name: the axis along which one is cut, and those whose gradients
    are summed over the processes."""

    axes: dict[str, int] = field(default_factory=dict)
    shared: set[str] = field(default_factory=set)


class _Stated(NamedTuple):
    """A parameter or buffer, its name in the module that owns it, and how it is split."""

    owner: nn.Module
    name: str
    tensor: Float[Tensor, "..."]
    how: Split

    @property
    def axis(self) -> int | None:
        if self.how == "rows":
            return 1 if self.tensor.dim() == 2 else None  # the bias is added once, to the sum
        return self.how if isinstance(self.how, int) else None


def split(model: nn.Module, part: Part, *, dry: bool = False) -> Layout:
    """Keep this process's part of the heads and hidden units, in place.

    dry: change nothing. Raises UserError for what cannot be shared out by so many processes.
    """
    roots = [*_roots(model)]
    if not any(isinstance(root, Layer) for root in roots):
        raise UserError(
            f"trainer.tensor_parallel={part.size}: {type(model).__name__} has no layers with heads"
            " or hidden units to share out; use trainer.tensor_parallel=null"
        )
    modules = dict.fromkeys(module for root in roots for module in root.modules())
    found = {id(each.tensor): each for root in roots for each in _stated(root)}
    names: dict[int, list[str]] = {}
    for name, parameter in model.named_parameters(remove_duplicate=False):
        names.setdefault(id(parameter), []).append(name)
    layout = Layout()
    for identity, each in found.items():
        mine, axis = names.get(identity, []), each.axis
        if each.how == "shared":
            layout.shared.update(mine)
        if axis is not None:
            _require_divisible(part, each.tensor.shape[axis], (mine or [each.name])[0])
            layout.axes |= dict.fromkeys(mine, axis)
    numbers = [(module, name, number) for module in modules for name, number in _numbers(module)]
    for module, name, number in numbers:
        _require_divisible(part, number, f"{name} of {type(module).__name__}")
    if dry:
        return layout
    for each in found.values():
        if each.axis is not None:
            _keep(each, part)
        if each.how == "rows":
            assert isinstance(each.owner, Linear)
            each.owner.part = part
    for module, name, number in numbers:
        setattr(module, name, number // part.size)
    for module in modules:
        if isinstance(module, Layer):
            module.part = part
    return layout


def _roots(model: nn.Module) -> Iterator[nn.Module]:
    """The outermost layers, and the encodings that act in them."""
    for module in model.children():
        if isinstance(module, Layer) or _acts(module):
            yield module
        else:
            yield from _roots(module)


def _acts(module: nn.Module) -> bool:
    return isinstance(module, PosEnc) and module.acts_in == "attention"


def _splits(module: nn.Module) -> Splits | None:
    """What a class and its bases state; None if the class itself says that it is not split."""
    if getattr(module, "splits", None) is None:
        return None
    stated: dict[str, Split] = {}
    for owner in reversed(type(module).__mro__):
        stated |= vars(owner).get("splits") or {}
    return stated


_UNSTATED: Any = object()


def _stated(module: nn.Module, path: str = "", around: Splits | None = None) -> Iterator[_Stated]:
    """Every parameter and buffer within.

    around: what the innermost module outside states, from which `path` leads here.
    """
    if (own := _splits(module)) is not None:
        path, around = "", own
    elif isinstance(module, Layer | Score) or _acts(module):
        raise UserError(
            f"trainer.tensor_parallel: {type(module).__name__} does not state how its heads are"
            " shared out (`splits`); use trainer.tensor_parallel=null"
        )
    for name, tensor in [*module._parameters.items(), *module._buffers.items()]:
        if tensor is None:
            continue
        how = _lookup(f"{path}{name}", around or {})
        if how is _UNSTATED and name in module._parameters:
            raise UserError(
                f"trainer.tensor_parallel: {type(module).__name__} does not state how its {name} is"
                " shared out (`splits`); use trainer.tensor_parallel=null"
            )
        yield _Stated(module, name, tensor, None if how is _UNSTATED else how)
    for name, child in module.named_children():
        yield from _stated(child, f"{path}{name}.", around)


def _lookup(name: str, splits: Splits) -> Any:
    """What is stated of a name, or of what it is within."""
    while name and name not in splits:
        name = name.rpartition(".")[0]
    return splits.get(name, _UNSTATED)


def _numbers(module: nn.Module) -> Iterator[tuple[str, int]]:
    """The numbers among what a module states, such as that of its heads."""
    for name in _splits(module) or ():
        value = getattr(module, name, None)
        if isinstance(value, int):
            yield name, value


def _require_divisible(part: Part, size: int, what: str) -> None:
    if size % part.size:
        raise UserError(
            f"trainer.tensor_parallel={part.size} does not divide {what}, which is {size}; change"
            " model.heads, model.kv_heads or the hidden width, model.ffn_dim"
        )


def _keep(each: _Stated, part: Part) -> None:
    assert each.axis is not None
    mine = part.cut(each.tensor.detach(), each.axis)
    if each.name in each.owner._buffers:
        each.owner._buffers[each.name] = mine
    else:
        mine = nn.Parameter(mine, requires_grad=each.tensor.requires_grad)
        each.owner._parameters[each.name] = mine
