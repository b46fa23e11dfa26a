"""Diffusion: draw an image of a caption by removing noise, step by step."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence
from functools import partial
from itertools import pairwise
from pathlib import Path
from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor, nn
from torchmetrics.aggregation import MeanMetric

from ablate.config.conflicts import Conflict
from ablate.config.rules import Count, NotNegative, Probability, Real, RunDir
from ablate.data import Batch
from ablate.data.digit_strings import DigitStrings
from ablate.data.pairs import PAD
from ablate.figures.maps import Map
from ablate.random.draws import Draws, Source, Stream, normal, uniform_alone
from ablate.random.seeding import derive
from ablate.systems.diffusion.dit import DiT
from ablate.systems.diffusion.figures import block_drawer
from ablate.systems.diffusion.judge import JUDGED, Judge, Quality
from ablate.systems.diffusion.noise import Noise
from ablate.systems.diffusion.paint import draw_samples, paint
from ablate.task import Task
from ablate.task.presenter import COUNT, INDEX, SEED, Draw, Presenter, checked, filled

FIXED = 0  # seed of the noise of validation and test, and of figures: the same for every run


class DiffusionPresenter(Presenter):
    """Images of captions."""

    loss_unit = "squared error"
    search_keys = ("guidance", "sampling_steps", "samples", "judge")
    family = "diffusion"
    options = {
        "prompt": {"type": filled, "help": "caption of the image"},
        "image": {"help": "PNG to write (default: figures/generated.png of the run)"},
        "guidance": {
            "type": checked(float, Real(0)),
            "help": "guidance scale of the caption (default: the run's)",
        },
        "steps": {"type": COUNT, "help": "number of sampling steps (default: the run's)"},
        "seed": SEED,
        "index": {**INDEX, "help": "index of a validation image to inpaint, from 0"},
        "inpaint": {"help": "image to inpaint (or --index)"},
        "mask": {"help": "region to repaint: left, right, or an image whose white pixels mark it"},
    }
    example_options = '--prompt "3 1" --image generated.png'

    def notes(self) -> dict[str, Any]:
        return {} if self.task.judging is None else {"judge": self.task.judging.description}

    def artifacts(self, folder: Path) -> list[Path]:
        return draw_samples(self.task, folder / "figures")

    def generate(self, arguments: Mapping[str, Any], folder: Path) -> Iterable[str]:
        return paint(self.task, arguments, folder)

    def drawer(self, examples: Sequence[dict[str, Any]], maps: Sequence[Map], caption: str) -> Draw:
        image = self.data.to_pixels(self.task.prepared(examples[0])["images"])[0]
        labels = ["time", "BOS", *examples[0]["target_labels"][:-1]]
        return block_drawer(image, labels, self.model.grid, self.model.condition.tokens)


class Diffusion(Task):
    """The mean squared error of the model's prediction for noisy images (`task.noise`), at times
    and with noise that are sampled for each image.

    Training leaves out a share `drop_caption` of the captions, so that sampling can multiply the
    caption's contribution to the output by `guidance` (classifier-free guidance, Ho and Salimans
    2022, https://arxiv.org/abs/2207.12598, with w + 1 for their w; 1: plain sampling).

    With a `judge`, a finished run of model=captioner, images are generated for the first `samples`
    captions of the test split, and measured: exact_match, the share of captions that it reads off
    them without an error; der, wrong digits over all digits; frechet, the Frechet distance
    (Heusel et al. 2017, section 3, https://arxiv.org/abs/1706.08500) of the mean annotation vectors
    of its encoder from those of all real test images. NAME_reference is the same of real images:
    for exact_match and der the test images of these captions, for frechet as many validation
    images.

    Validation, test and figures draw the same noise in every run.
    """

    kinds = ("images with captions",)
    output = "denoised images"
    conflicts = (
        Conflict(
            lambda c: c("task.drop_caption") == 0 and c("task.guidance") != 1,
            "task.guidance={task.guidance} needs unconditional predictions, which the model does"
            " not learn with task.drop_caption=0; set task.guidance=1, or task.drop_caption=0.1",
        ),
    )
    metric, mode, unit = "val/loss", "min", "images"
    presenter = DiffusionPresenter
    data: DigitStrings
    model: DiT

    def __init__(
        self,
        *args: Any,
        noise: Noise,
        drop_caption: Probability,
        guidance: NotNegative,
        sampling_steps: Count,
        samples: Count,
        judge: RunDir | None,
        **kwargs: Any,
    ):
        super().__init__(*args, **kwargs)
        self.noise, self.drop_caption = noise, drop_caption
        self.guidance, self.sampling_steps, self.samples = guidance, sampling_steps, samples
        noise.levels(sampling_steps)
        # Streams of the task, independent of the model.
        self.streams = {name: Stream() for name in ("noise", "time", "caption")}
        self.draws = Draws(nn.ModuleDict({"model": self.model, **self.streams}))
        self.mean_loss = MeanMetric()
        self.judge = judge
        self.judging: Judge | None = None  # read when it is first needed

    def setup(self, stage: str) -> None:
        if self.judge is not None and self.judging is None:
            self.judging = Judge(self.judge, self.data.size)
            self.drawn_quality = Quality(self.judging.width)
            self.real_quality = Quality(self.judging.width)

    def prepare(self, batch: Batch, step: int) -> Batch:
        images = batch["images"]
        pixel = images[:, :1, :1, :1]
        noise = normal(self._source("noise", images), images)
        times = self.noise.times(uniform_alone(self._source("time", pixel), pixel))
        words = batch["target_in"]
        if self.draws.keys is not None:  # training; figures show the caption
            drawn = uniform_alone(self._source("caption", pixel), pixel).flatten(1)
            words = torch.where(drawn < self.drop_caption, without_caption(words), words)
        return self.noisy(images, words, noise, times)

    def _source(self, name: str, like: Tensor) -> Source:
        return Source(self.streams[name].key(like))

    def noisy(self, images: Tensor, words: Tensor, noise: Tensor, times: Tensor) -> Batch:
        """The model's inputs, and its training target `aim`. times: b 1 1 1."""
        return {
            "images": self.noise.add(images, noise, times).to(images.dtype),
            "words": words,
            "times": times.flatten(),
            "aim": self.noise.target(images, noise).to(images.dtype),
        }

    def inputs(self, batch: Batch) -> tuple[Tensor, ...]:
        return batch["images"], batch["words"], batch["times"]

    def units(self, batch: Batch) -> int:
        return len(batch["images"])

    def losses(self, batch: Batch) -> dict[str, Tensor]:
        return {"loss": F.mse_loss(self.model(*self.inputs(batch)), batch["aim"])}

    def evaluate(self, batch: Batch) -> None:
        split = "test" if self.trainer.testing else "val"
        images, indices = batch["images"], batch["index"].tolist()
        keys = [derive(FIXED, "diffusion", split, index) for index in indices]
        of_times = [derive(key, "time") for key in keys]
        times = self.noise.times(one_by_one(uniform_alone, of_times, images[:1, :1, :1, :1]))
        noise = one_by_one(normal, keys, images[:1])
        loss = self.losses(self.noisy(images, batch["target_in"], noise, times))["loss"]
        self.mean_loss.update(loss.float(), len(images))
        if self.judging is not None and split == "test":
            self._judge(batch, self.judging)

    def _judge(self, batch: Batch, judge: Judge) -> None:
        """Draw images for the captions of a batch, and compare them with the real ones."""
        index = batch["index"].cpu()
        real = self.data.originals("test", index)
        features = judge.describe(real).to(self.device)
        for quality in (self.drawn_quality, self.real_quality):
            quality.frechet.update(features, real=True)
        chosen = index < self.samples
        if not chosen.any():
            return
        keys = [derive(FIXED, "sample", number) for number in index[chosen].tolist()]
        words = batch["target_in"][chosen.to(self.device)]
        drawn = self.data.to_pixels(self.sample(words, keys))
        captions = [self.data.reference("test", number) for number in index[chosen].tolist()]
        self.drawn_quality.read(judge.read(drawn), captions)
        self.real_quality.read(judge.read(real[chosen]), captions)
        self.drawn_quality.frechet.update(judge.describe(drawn).to(self.device), real=False)
        others = index[chosen & (index < self.data.length("val"))]
        if len(others):
            features = judge.describe(self.data.originals("val", others))
            self.real_quality.frechet.update(features.to(self.device), real=False)

    def measures(self, split: str) -> dict[str, Tensor]:
        values = {"loss": self.mean_loss.compute()}
        if self.judge is None or split != "test":
            return values
        if self.judging is None:
            return values | dict.fromkeys(JUDGED, torch.tensor(float("nan")))  # of nothing
        reference = self.real_quality.compute()
        values |= self.drawn_quality.compute()
        return values | {f"{name}_reference": value for name, value in reference.items()}

    @torch.no_grad()
    def sample(
        self,
        words: Tensor,
        keys: Sequence[int],
        *,
        guidance: float | None = None,
        steps: int | None = None,
        known: tuple[Tensor, Tensor] | None = None,
        path: list[Tensor] | None = None,
    ) -> Tensor:
        """Draw images of captions, b j -> b c y x, as the model's data has them.

        keys: seeds of each image's noise. guidance, steps: default: the task's. known: images, and
        the region to generate (True), b 1 y x; elsewhere the known image with the noise of the
        time replaces the generated one, at every step (Lugmayr et al. 2022, "RePaint", section 4.1,
        https://arxiv.org/abs/2201.09865, without going back and forth). path: gets the noisy images
        of every step.
        """
        guidance = self.guidance if guidance is None else guidance
        levels = self.noise.levels(steps or self.sampling_steps)
        sizes = self.data.sizes
        assert sizes.channels is not None
        assert sizes.image_size is not None
        like = torch.zeros(1, sizes.channels, *sizes.image_size, device=self.device)
        start = one_by_one(normal, keys, like).to(self.dtype)
        x = start
        for number, (now, after) in enumerate(pairwise(levels)):
            time = torch.full((len(x), 1, 1, 1), now, device=self.device)
            if known is not None:
                images, region = known
                x = torch.where(region, x, self.noise.add(images, start, time))
            if path is not None:
                path.append(x)
            prediction = self.guided(x, words, time.flatten(), guidance)
            fresh = partial(self._fresh, keys, number, like)
            x = self.noise.step(x, prediction, now, after, fresh=fresh, bounds=self.data.bounds)
        return x if known is None else torch.where(known[1], x, known[0])

    def _fresh(self, keys: Sequence[int], step: int, like: Tensor) -> Tensor:
        of_step = [derive(key, "step", step) for key in keys]
        return one_by_one(normal, of_step, like).to(self.dtype)

    def guided(self, x: Tensor, words: Tensor, times: Tensor, guidance: float) -> Tensor:
        """Classifier-free guidance: the unconditional prediction plus `guidance` times the change
        by the caption."""
        if guidance == 1:
            return self.model(x, words, times)
        both = torch.cat([without_caption(words), words])
        predictions = self.model(x.repeat(2, 1, 1, 1), both, times.repeat(2))
        unconditional, conditional = predictions.chunk(2)
        return unconditional + guidance * (conditional - unconditional)


def without_caption(words: Tensor) -> Tensor:
    """The captions without their words: BOS, then padding."""
    return F.pad(words[:, :1], (0, words.shape[1] - 1), value=PAD)


def one_by_one(
    kind: Callable[[Source, Tensor], Tensor], keys: Sequence[int], like: Tensor
) -> Tensor:
    """Random numbers for as many examples of the shape 1 ... of `like` as there are keys."""
    sources = (Source(torch.tensor(key, device=like.device)) for key in keys)
    return torch.cat([kind(source, like) for source in sources])
