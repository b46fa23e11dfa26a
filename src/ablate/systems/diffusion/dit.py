"""DiT: a Transformer that removes noise from images, conditioned on the time and a caption.

Peebles and Xie 2023, "Scalable diffusion models with Transformers",
https://arxiv.org/abs/2212.09748, with a caption in place of their class. The caption is read by an
encoder that is trained with the rest, as in Rombach et al. 2022, section 3.3,
https://arxiv.org/abs/2112.10752. Of DiT's zeros at the start, those of adaLN-Zero are kept; its
output map starts as every other one, so that outputs can be compared before training.
"""

from collections.abc import Callable, Mapping, Sequence
from typing import Any, Unpack

import torch
import torch.nn.functional as F
from einops import rearrange
from jaxtyping import Float, Int
from torch import Tensor, nn

from ablate.config.conflicts import Conflict
from ablate.config.rules import Depth, Width
from ablate.data.pairs import PAD
from ablate.model.attention import Score
from ablate.model.base import Model, ModelTraits
from ablate.model.layers.linear import Embedding, Linear, width_std
from ablate.model.layers.multi_head import CrossAttention
from ablate.model.layers.stack import SharedKeys, Stack, encodings
from ablate.model.mask import Mask
from ablate.model.mask.none import NoMask
from ablate.model.transformer import cross_score
from ablate.model.vit import PatchEmbedding, patch_grid
from ablate.pos_enc.learned import Learned
from ablate.pos_enc.sinusoidal import waves
from ablate.systems.diffusion.condition import Condition

# The time, 0 to 1, in steps of noise as DDPM counts them, for which the frequencies were chosen.
STEPS = 1000


class TimeEmbedding(nn.Module):
    """Sinusoids of the time (Vaswani et al. 2017, section 3.5), then a network of two layers."""

    def __init__(self, dim: int, *, std: float):
        super().__init__()
        self.dim = dim
        self.first, self.second = Linear(dim, dim, std=std), Linear(dim, dim, std=std)

    def forward(self, times: Float[Tensor, " b"]) -> Float[Tensor, "b {self.dim}"]:
        dtype = self.first.weight.dtype
        read = waves(STEPS * times, dim=self.dim, base=10000.0, dtype=dtype)
        return self.second(F.silu(self.first(read)))


class DiT(Model):
    """`stack`: keys of Stack, of the blocks that read the image, and, without `layers` and
    the mask, of the `text_depth` blocks that read the caption, whose positions are learned.

    condition: how the image's blocks learn of time and caption. cross_attention: makes the score of
    cross-attention, `attention` unless given.
    """

    kinds = ("images with captions",)
    outputs = ("denoised images",)
    positions = "layers"
    traits = ModelTraits(causal=False, pads=True, has_grid=True)
    embeddings = ("patches.", "words.", "text.pos_enc.", *encodings("stack"))
    conflicts = (
        Conflict(
            lambda c: (
                not c.declares("model.condition", "crosses")
                and c.get("model.cross_attention", None) is not None
            ),
            "model.cross_attention={model.cross_attention} has nothing to act on with"
            " model.condition={model.condition}; use model.condition=cross_attention, or"
            " model.cross_attention=same",
        ),
        Conflict(
            lambda c: (
                c.declares("model.condition", "crosses")
                and not c("model.residual")
                and not c.declares(
                    "model.attention"
                    if c.get("model.cross_attention", None) is None
                    else "model.cross_attention",
                    "query",
                )
            ),
            "model.condition=cross_attention with a score that does not read the query and"
            " model.residual=false: nothing of the image would reach the output; set"
            " model.residual=true, or model.cross_attention=scaled_dot",
        ),
        Conflict(
            lambda c: (
                max(c("data.height") % c("model.patch"), c("data.width") % c("model.patch")) > 0
                and c.get("data.autoencoder", None) is None
            ),
            "model.patch={model.patch} must divide data.height={data.height} and"
            " data.width={data.width}",
        ),
    )

    def __init__(
        self,
        *,
        image_size: tuple[int, int],
        channels: int,
        target_vocab: int,
        target_length: int,
        dim: Width,
        patch: Width,
        text_depth: Depth,
        depth: Depth,
        condition: Callable[..., Condition],
        attention: Callable[..., Score],
        mask: Callable[..., Mask],
        cross_attention: Callable[..., Score] | None = None,
        layers: Sequence[Mapping[str, Any]] = (),
        **stack: Unpack[SharedKeys],
    ):
        super().__init__()
        std = stack["init_std"] or width_std(dim)
        of_text: SharedKeys = {**stack, "pos_enc": Learned}
        self.patch, self.length = patch, target_length
        self.grid = patch_grid(image_size, patch, patch)
        cells = self.grid[0] * self.grid[1]
        self.patches = PatchEmbedding(channels, dim, patch, patch)
        self.time = TimeEmbedding(dim, std=std)
        self.words = Embedding(target_vocab, dim)
        self.text = Stack(
            dim,
            depth=text_depth,
            length=target_length,
            attention=attention,
            mask=NoMask,
            causal=False,
            **of_text,
        )
        self.condition = condition(tokens=1 + target_length, std=std)
        conditioning = self.condition.stack(cross_score({"attention": attention}, cross_attention))
        self.stack = Stack(
            dim,
            depth=depth,
            length=conditioning["extra"] + cells,
            grid=self.grid,
            attention=attention,
            mask=mask,
            causal=False,
            layers=[
                {
                    **keys,
                    "cross_attention": cross_score(
                        {"attention": attention, **keys}, cross_attention
                    ),
                }
                if self.condition.crosses
                else keys
                for keys in layers
            ],
            **conditioning,
            **stack,
        )
        self.head = Linear(dim, channels * patch**2, std=std)

    def map_kind(self, name: str, layer: nn.Module) -> str:
        if name.startswith("text."):
            return "text"
        return "caption" if isinstance(layer, CrossAttention) else "attention"

    def forward(
        self,
        images: Float[Tensor, "b c y x"],
        words: Int[Tensor, "b j"],
        times: Float[Tensor, " b"],
    ) -> Float[Tensor, "b c y x"]:
        """Noisy images, captions (BOS first, padded with PAD) and times."""
        words = F.pad(words, (0, self.length - words.shape[1]), value=PAD)
        keep = words != PAD
        read = self.text(self.words(words), keep=keep)
        tokens = torch.cat([self.time(times)[:, None], read], dim=1)
        keep = F.pad(keep, (1, 0), value=True)
        x = self.condition.apply(self.stack, self.patches(images), tokens, keep)
        return rearrange(
            self.head(x),
            "b (y x) (c p q) -> b c (y p) (x q)",
            y=self.grid[0],
            p=self.patch,
            q=self.patch,
        )
