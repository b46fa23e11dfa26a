"""Base of tasks whose model draws images of captions by removing noise, step by step."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from functools import partial
from itertools import pairwise
from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor

from ablate.data.digit_strings import DigitStrings
from ablate.data.pairs import BOS, PAD
from ablate.errors import UserError
from ablate.random.draws import Source, normal
from ablate.random.seeding import derive
from ablate.systems.diffusion.dit import DiT
from ablate.systems.diffusion.noise import Noise
from ablate.task import Task


class Sampler(Task):
    """Draws with `sampling_steps` and `guidance`, unless overridden.

    drop_caption: the share of captions that training leaves out; without, no guidance is possible.
    """

    data: DigitStrings
    model: DiT
    noise: Noise
    drop_caption: float
    guidance: float
    sampling_steps: int

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
        like = torch.zeros(1, sizes["channels"], *sizes["image_size"], device=self.device)
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

    def caption(self, text: str) -> Tensor:
        """A caption as the model reads it, 1 j; UserError for words that it does not know."""
        known = [str(digit) for digit in range(10)]
        words = text.split()
        if strange := [word for word in words if word not in known]:
            raise UserError(
                f"--prompt: {strange[0]!r} is not a word of this data; use {' '.join(known)}"
            )
        if not self.data.least <= len(words) <= self.data.most:
            raise UserError(
                f"--prompt: has {len(words)} digits, and the images of this data {self.data.least}"
                f" to {self.data.most}"
            )
        tokens = self.data.target_tokenizer.encode(" ".join(words))
        return torch.tensor([[BOS, *tokens]], device=self.device)

    def fill(
        self, words: Tensor, keys: list[int], known: Tensor, mask: Tensor, **how: Any
    ) -> Tensor:
        """Pixels, b y x, with the masked region, b y x, generated again for captions, b j."""
        shrunk = F.max_pool2d(mask[:, None].float(), self.data.reduction) > 0
        images = self.data.images(known).to(self.device)
        drawn = self.sample(words, keys, known=(images, shrunk.to(self.device)), **how)
        return torch.where(mask, self.data.to_pixels(drawn), known)


def without_caption(words: Tensor) -> Tensor:
    """The captions without their words: BOS, then padding."""
    return F.pad(words[:, :1], (0, words.shape[1] - 1), value=PAD)


def one_by_one(
    kind: Callable[[Source, Tensor], Tensor], keys: Sequence[int], like: Tensor
) -> Tensor:
    """Random numbers for as many examples of the shape 1 ... of `like` as there are keys."""
    sources = (Source(torch.tensor(key, device=like.device)) for key in keys)
    return torch.cat([kind(source, like) for source in sources])
