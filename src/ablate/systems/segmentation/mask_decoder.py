"""The mask decoder of Segment Anything: tokens and image attend to each other, tokens make masks.

Kirillov et al. 2023, section 3 and appendix A, "Lightweight mask decoder",
https://arxiv.org/abs/2304.02643: a block lets the tokens attend to each other, lets them read the
image, applies a feed-forward network, and lets the image read the tokens. Each is followed by a
residual and a layer norm; queries and keys, not values, have a positional encoding (of an
image cell) or their initial value (of a token) added again. The output of a mask token, through
its own network, is compared with every pixel of the enlarged image.

Differences: attention between tokens and image has the full width (in the paper half of it), and
all masks are predicted after every prompt (in the paper a further token predicts the single mask
after several prompts).
"""

import math
from collections.abc import Callable, Sequence
from dataclasses import replace
from functools import partial
from typing import Literal

import torch
from einops import rearrange
from jaxtyping import Float
from torch import Tensor, nn
from torch.nn.functional import gelu, relu

from ablate.model.attention import Score
from ablate.model.layers.layer import LayerSpec
from ablate.model.layers.linear import Embedding, Linear
from ablate.model.layers.multi_head import CrossAttention

Exchange = Literal["two_way", "one_way", "none"]
NARROWED = 8  # the width of the enlarged image is this part of dim


class PositionedAttention(CrossAttention):
    """Attention with positional encodings added to queries and keys, but not to values."""

    def forward(  # type: ignore[override]  # of two sequences with the positions of both
        self,
        x: Float[Tensor, "b i d"],
        x_position: Float[Tensor, "*#bi d"],
        y: Float[Tensor, "b j d"],
        y_position: Float[Tensor, "*#bj d"],
        *,
        use: int,
    ) -> Float[Tensor, "b i d"]:
        """x, y and their positions -> the output of attention from x to y. use: counts the passes
        of a training step."""
        q, k, v = self.queries(x + x_position), self.keys(y + y_position), self.values(y)
        return self.join(self.context(q, k, v, self.pos, use=use), x)


class Network(nn.Module):
    """Two hidden layers with ReLU."""

    def __init__(self, dim: int, outputs: int, *, std: float) -> None:
        super().__init__()
        sizes = (dim, dim), (dim, dim), (dim, outputs)
        self.layers = nn.ModuleList(Linear(*size, std=std) for size in sizes)

    def forward(self, x: Float[Tensor, "b d"]) -> Float[Tensor, "b outputs"]:
        *hidden, last = self.layers
        for layer in hidden:
            x = relu(layer(x))
        return last(x)


class DecoderBlock(nn.Module):
    """tokens: the place of attention among them. memory: of attention between them and an image of
    so many cells; None: there is none. writes: whether the image reads the tokens as well.

    In the first block the tokens attend without positions and without a residual, as there.
    """

    def __init__(
        self, tokens: LayerSpec, memory: LayerSpec | None, *, hidden: int, writes: bool, first: bool
    ) -> None:
        super().__init__()
        dim, std = tokens.dim, tokens.std
        self.first = first
        self.to_itself, self.norm = PositionedAttention(tokens), nn.LayerNorm(dim)
        self.to_image = self.to_tokens = None
        if memory is not None:
            self.to_image, self.image_norm = PositionedAttention(memory), nn.LayerNorm(dim)
        self.up, self.down = Linear(dim, hidden, std=std), Linear(hidden, dim, std=std)
        self.ffn_norm = nn.LayerNorm(dim)
        if memory is not None and writes:
            self.to_tokens = PositionedAttention(replace(memory, length=tokens.length))
            self.tokens_norm = nn.LayerNorm(dim)

    def forward(
        self,
        tokens: Float[Tensor, "b i d"],
        image: Float[Tensor, "b j d"],
        start: Float[Tensor, "b i d"],
        cells: Float[Tensor, "j d"],
        use: int,
    ) -> tuple[Float[Tensor, "b i d"], Float[Tensor, "b j d"]]:
        """start: the initial tokens; cells: positions in the image."""
        positions = torch.zeros_like(start) if self.first else start
        read = self.to_itself(tokens, positions, tokens, positions, use=use)
        tokens = self.norm(read if self.first else tokens + read)
        if self.to_image is not None:
            read = self.to_image(tokens, start, image, cells, use=use)
            tokens = self.image_norm(tokens + read)
        tokens = self.ffn_norm(tokens + self.down(relu(self.up(tokens))))
        if self.to_tokens is not None:
            read = self.to_tokens(image, cells, tokens, start, use=use)
            image = self.tokens_norm(image + read)
        return tokens, image


class MaskDecoder(nn.Module):
    """num_masks: predicted for each prompt. exchange: tokens and image read each other (two_way),
    the tokens read the image (one_way), or neither (none). grid: the cells of the image. place: of
    attention among the tokens, with the longest prompt as `length`. crosses: for each block the
    constructor of the scores between tokens and image; the attention after the blocks has the one
    of the last block.
    """

    def __init__(
        self,
        place: LayerSpec,
        crosses: Sequence[Callable[..., Score]],
        *,
        grid: tuple[int, int],
        num_masks: int,
        exchange: Exchange,
        hidden: int,
    ) -> None:
        super().__init__()
        dim, self.grid = place.dim, grid
        self.iou_token = Embedding(1, dim, draw=nn.init.normal_)
        self.mask_tokens = Embedding(num_masks, dim, draw=nn.init.normal_)
        place = replace(place, length=1 + num_masks + place.length)
        memories = [replace(place, score=cross, length=math.prod(grid)) for cross in crosses]
        self.blocks = nn.ModuleList(
            DecoderBlock(
                place,
                None if exchange == "none" else memory,
                hidden=hidden,
                writes=exchange == "two_way",
                first=number == 0,
            )
            for number, memory in enumerate(memories)
        )
        self.to_image = None
        if exchange != "none":
            self.to_image, self.norm = PositionedAttention(memories[-1]), nn.LayerNorm(dim)
        self.enlarge = nn.ConvTranspose2d(dim, dim // 4, 2, stride=2)
        self.enlarge_norm = nn.LayerNorm(dim // 4, eps=1e-6)
        self.enlarge_again = nn.ConvTranspose2d(dim // 4, dim // NARROWED, 2, stride=2)
        network = partial(Network, dim, std=place.std)
        self.networks = nn.ModuleList(network(dim // NARROWED) for _ in range(num_masks))
        self.iou = network(num_masks)

    def forward(
        self,
        image: Float[Tensor, "b j d"],
        cells: Float[Tensor, "j d"],
        prompt: Float[Tensor, "b p d"],
        use: int = 0,
    ) -> tuple[Float[Tensor, "b m y x"], Float[Tensor, "b m"]]:
        """image: its cells row by row; cells: their positions -> logits of the masks at 4 times the
        cells, and their predicted IoU."""
        output_tokens = torch.cat([self.iou_token.weight, self.mask_tokens.weight])
        start = torch.cat([output_tokens.expand(len(prompt), -1, -1), prompt], dim=1)
        tokens = start
        for block in self.blocks:
            tokens, image = block(tokens, image, start, cells, use)
        if self.to_image is not None:
            tokens = self.norm(tokens + self.to_image(tokens, start, image, cells, use=use))
        pixels = self._enlarged(image)
        weights = [
            network(token)
            for network, token in zip(self.networks, tokens[:, 1:].unbind(1), strict=False)
        ]
        masks = torch.einsum("bmc,bcyx->bmyx", torch.stack(weights, dim=1), pixels)
        return masks, self.iou(tokens[:, 0])

    def _enlarged(self, image: Float[Tensor, "b j d"]) -> Float[Tensor, "b c y x"]:
        x = self.enlarge(rearrange(image, "b (y x) d -> b d y x", y=self.grid[0]))
        x = self.enlarge_norm(x.movedim(1, -1)).movedim(-1, 1)
        return gelu(self.enlarge_again(gelu(x)))
