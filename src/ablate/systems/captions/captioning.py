"""Captioning: generate the caption of an image, with the image region of each word."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from pathlib import Path
from typing import Any, ClassVar

import torch
from einops import rearrange
from torch import Tensor

from ablate.config.conflicts import Conflict
from ablate.config.rules import NotNegative
from ablate.data import IGNORED, Batch
from ablate.data.digit_strings import DigitStrings
from ablate.data.pairs import BOS, EOS
from ablate.errors import UserError
from ablate.figures.maps import Map
from ablate.model.layers.multi_head import recording
from ablate.model.resnet import STRIDE
from ablate.systems.captions.captioner import Captioner
from ablate.systems.captions.figures import caption_drawer
from ablate.task.attention import attention_maps
from ablate.task.presenter import INDEX, Draw, Keywords, val_example
from ablate.task.seq2seq import Links, SequenceToSequence
from ablate.task.translate import N_BEST, SEARCH, SHOWN, PairPresenter


class CaptionPresenter(PairPresenter):
    """Captions of images."""

    family: ClassVar[str] = "captioning"
    options: ClassVar[Mapping[str, Keywords]] = {
        "image": {"action": "append", "help": "image to caption, white on black (repeatable)"},
        "index": {**INDEX, "help": "index of a validation image, from 0, instead of --image"},
        **SEARCH,
        "n_best": N_BEST,
    }
    example_options: ClassVar[str] = "--index 0"

    def generate(self, arguments: Mapping[str, Any], folder: Path) -> Iterable[str]:
        """Yield a line per hypothesis for --image or --index, with its score after a tab."""
        if ("image" in arguments) == ("index" in arguments):
            raise UserError("--image FILE, or --index N of the validation split, is required")
        self.set_search(arguments)
        if "image" in arguments:
            read = self.task.read(arguments["image"])
        else:
            read = val_example(self.data, arguments["index"])["images"]
        return self.write_best(arguments, folder, list(read), read)

    def drawer(self, examples: Sequence[dict[str, Any]], maps: Sequence[Map], caption: str) -> Draw:
        every = (attention_maps(self.task, example)[0].weights[0] for example in examples)
        cells = [rearrange(map_, "i (y x) -> i y x", y=self.model.grid[0]) for map_ in every]
        return caption_drawer(self.data, examples, cells, caption, stride=STRIDE)

    def sample(self) -> str:
        """Validation examples: the reference and the output."""
        count = min(SHOWN, self.data.length("val"))
        images = torch.cat([self.data.example(n)["images"] for n in range(count)])
        return "\n\n".join(
            f"reference  {self.data.reference('val', number)}\noutput     {output}"
            for number, output in enumerate(self.task.outputs(images.to(self.task.device)))
        )


class Captioning(SequenceToSequence):
    """The measures of SequenceToSequence for images; accuracy is also given by caption length.

    aer: among the words that name an object in the image, the share whose most attended cell of the
    feature map has the center of its receptive field outside the box of the object; among cells
    with equal weights the first counts, row by row. 1 - aer is the pointing accuracy (the pointing
    game of Zhang et al. 2016, https://arxiv.org/abs/1608.00507).

    doubly_stochastic: lambda of Xu et al. 2015, equation 14, in training: lambda
    sum_j (1 - sum_t alpha(t, j))^2 is added to -log p of a caption, over its words t, EOS counted,
    and all cells j. Like the loss, it is averaged over the words of the batch.
    """

    kinds = ("images with captions",)
    output = "captions"
    conflicts = (
        Conflict(
            lambda c: c("task.doubly_stochastic") > 0 and c.declares("model.normalizer", "samples"),
            "task.doubly_stochastic={task.doubly_stochastic} has no gradient with"
            " model.normalizer={model.normalizer}, whose weights are 0 or 1; use 0, or another"
            " normalizer",
        ),
        Conflict(
            lambda c: (
                c("task.doubly_stochastic") > 0
                and not c.declares("model.attention", "query")
                and not c.declares("model.attention", "key")
            ),
            "task.doubly_stochastic={task.doubly_stochastic} has no effect with"
            " model.attention={model.attention}, whose weights are fixed; use 0",
        ),
    )
    presenter = CaptionPresenter
    data: DigitStrings
    model: Captioner

    def __init__(self, *args: Any, doubly_stochastic: NotNegative, **kwargs: Any):
        super().__init__(*args, **kwargs)
        self.doubly_stochastic = doubly_stochastic

    def inputs(self, batch: Batch) -> tuple[Tensor, ...]:
        return batch["images"], batch["target_in"]

    def losses(self, batch: Batch) -> dict[str, Tensor]:
        if not self.doubly_stochastic:
            return super().losses(batch)
        with recording(self.model):
            losses = super().losses(batch)
            weights = torch.cat(self.model.cross[-1].recorded, dim=2)[:, 0]  # type: ignore[arg-type]
        written = batch["targets"] != IGNORED
        penalty = unevenness(weights * written[:, :, None]) / self.share
        return {"loss": losses["loss"] + self.doubly_stochastic * penalty}

    def links(self, split: str, index: int) -> Links:
        boxes = self.data.boxes(split, index)
        return [([word], self.model.cells(*box)) for word, box in enumerate(boxes)]

    def lengths(self, batch: Batch) -> Tensor:
        return (batch["targets"] != IGNORED).sum(1) - 1

    def read(self, sources: Sequence[str]) -> Tensor:
        """Read image files as model inputs: b c y x."""
        return torch.cat([self.data.read_image(Path(file)) for file in sources]).to(self.device)

    def example(self, source: Tensor, tokens: list[int]) -> dict[str, Any]:
        """An image, c y x, and the tokens written for it, as a batch of size 1."""
        target = torch.tensor([[BOS, *tokens, EOS]], device=self.device)
        return {
            "images": source[None],
            "target_in": target[:, :-1],
            "targets": target[:, 1:],
            "target_labels": self.data.target_tokenizer.labels(target[0, 1:].tolist()),
        }


def unevenness(weights: Tensor) -> Tensor:
    """sum_j (1 - sum_t alpha(t, j))^2 over all examples; weights: b t j, 0 behind an example's end.

    Xu et al. 2015, equation 14: 0 if every cell's weights sum to 1 over the words of a caption.
    """
    return (1 - weights.sum(1)).square().sum()
