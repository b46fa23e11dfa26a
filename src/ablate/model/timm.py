"""Any image model of timm as a reference arm
(https://github.com/huggingface/pytorch-image-models)."""

import sys
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Annotated, Any

import timm
import torch
from jaxtyping import Float
from torch import Tensor, nn

from ablate.config.rules import Keys, WeightsFile
from ablate.errors import UserError, few, suggest
from ablate.model.base import Model


class Timm(Model):
    """timm.create_model(name) with the classes and channels of the data.

    pretrained: true downloads timm's weights; or a file of weights of this model, as torch or
    safetensors saves them. A classifier of other classes is left out. The images are then
    normalized as timm specifies for this name (`pretrained_cfg`).
    """

    outputs = ("classes",)
    positions = None
    kinds = ("images",)

    def __init__(
        self,
        *,
        image_size: tuple[int, int],
        channels: int,
        classes: int,
        name: str,
        pretrained: bool | Annotated[str, WeightsFile()],
        args: Annotated[dict[str, Any], Keys()],
    ):
        super().__init__()
        known = timm.list_models()
        if name.split(".")[0] not in known:
            near = suggest(name, known)
            raise UserError(f"model.name={name} is not a model of timm{near} (timm.list_models())")
        if "checkpoint_path" in args:
            raise UserError(
                f"model.args.checkpoint_path={args['checkpoint_path']}: use model.pretrained=FILE"
            )
        try:
            self.network = timm.create_model(
                name, pretrained=pretrained is True, num_classes=classes, in_chans=channels, **args
            )
            if isinstance(pretrained, str):
                load_file(self.network, pretrained, classes=classes, channels=channels)
            with torch.no_grad():  # many networks check only here whether they can read an image
                self.network.eval()(torch.zeros(1, channels, *image_size))
            self.network.train()
        except (AssertionError, TypeError, ValueError, RuntimeError, OSError) as error:
            line = (str(error) or type(error).__name__).splitlines()[0]
            raise UserError(f"model.name={name} with model.args={dict(args)}: {line}") from error

    @classmethod
    def normalization(
        cls, keys: Mapping[str, Any]
    ) -> tuple[Sequence[float], Sequence[float]] | None:
        return normalization(keys["name"]) if keys.get("pretrained") else None

    def initialize(self, seed: int) -> None:
        """Keep timm's values: its modules cannot be initialized one by one (see `build`)."""

    def forward(self, images: Float[Tensor, "b c y x"]) -> Float[Tensor, "b classes"]:
        return self.network(images)


def normalization(name: str) -> tuple[Sequence[float], Sequence[float]] | None:
    """Mean and standard deviation that timm states for the weights of that name."""
    try:
        stated = timm.get_pretrained_cfg(name)
    except RuntimeError:  # no such weights, which the model rejects
        return None
    return None if stated is None else (stated.mean, stated.std)


def load_file(network: nn.Module, file: str, *, classes: int, channels: int) -> None:
    """Load the weights of a file, adapted as timm adapts its own; UserError unless all but the
    classifier fit."""
    what, path = f"model.pretrained={file}", Path(file).expanduser()
    if not path.is_file():
        near = [other.name for other in path.parent.iterdir()] if path.parent.is_dir() else []
        raise UserError(f"{what}: no such file{suggest(path.name, near)}; true downloads weights")
    try:
        state = timm.models.load_state_dict(str(path))
    except Exception as error:  # unpickling raises anything on a damaged file
        line = str(error).partition("\n")[0] or type(error).__name__
        raise UserError(f"{what}: cannot be read as weights ({line})") from error
    if next(network.parameters()).is_meta:  # only counted
        return
    stated: dict[str, Any] = dict(network.pretrained_cfg)  # type: ignore[arg-type]
    heads = stated.get("classifier") or ()
    heads = (heads,) if isinstance(heads, str) else tuple(heads)
    if heads and (head := state.get(f"{heads[0]}.weight")) is not None:
        stated["num_classes"] = len(head)
    wrong: list[str] = []

    def note(module: nn.Module, keys: Any) -> None:
        for word, names in (("lacks", keys.missing_keys), ("has", keys.unexpected_keys)):
            if others := [name for name in names if not name.startswith(heads)]:
                wrong.append(f"{word} {few(others, ', ', 3)}")

    handle = network.register_load_state_dict_post_hook(note)
    try:
        timm.models.load_pretrained(
            network,
            stated | {"state_dict": state, "source": ""},
            num_classes=classes,
            in_chans=channels,
            filter_fn=getattr(sys.modules[type(network).__module__], "checkpoint_filter_fn", None),
            strict=False,
        )
    except (RuntimeError, KeyError, ValueError) as error:
        wrong.append(str(error).strip().splitlines()[-1].strip())
    handle.remove()
    if wrong:
        raise UserError(f"{what}: is of another model than {stated['architecture']}: {wrong[0]}")
