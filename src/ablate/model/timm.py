"""Any image model of timm as a reference arm (https://github.com/huggingface/pytorch-image-models)."""

from typing import Annotated, Any

import timm
import torch
from jaxtyping import Float
from torch import Tensor

from ablate.config.rules import Keys
from ablate.errors import UserError, suggest
from ablate.model.base import Model


class Timm(Model):
    """timm.create_model(name) with the classes and channels of the data."""

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
        pretrained: bool,
        args: Annotated[dict[str, Any], Keys()],
    ):
        super().__init__()
        known = timm.list_models()
        if name.split(".")[0] not in known:
            near = suggest(name, known)
            raise UserError(f"model.name={name} is not a model of timm{near} (timm.list_models())")
        try:
            self.network = timm.create_model(
                name, pretrained=pretrained, num_classes=classes, in_chans=channels, **args
            )
            self._check_image(torch.zeros(1, channels, *image_size))
        except (AssertionError, TypeError, ValueError, RuntimeError, OSError) as error:
            line = (str(error) or type(error).__name__).splitlines()[0]
            raise UserError(f"model.name={name} with model.args={dict(args)}: {line}") from error

    @torch.no_grad()
    def _check_image(self, image: Float[Tensor, "1 c y x"]) -> None:
        """Fail if the network cannot read such images: many check this only in `forward`."""
        self.network.eval()(image)
        self.network.train()

    def initialise(self, seed: int) -> None:
        """Keep timm's values: its modules cannot be initialised one by one (see `build`)."""

    def forward(self, images: Float[Tensor, "b c y x"]) -> Float[Tensor, "b classes"]:
        return self.network(images)
