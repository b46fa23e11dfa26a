"""SAM, Segment Anything: an image encoder, a prompt encoder and a mask decoder.

Kirillov et al. 2023, https://arxiv.org/abs/2304.02643, section 3. The image encoder is a ViT whose
outputs are the cells of the image; model.mask=window makes its attention local, model.layers.mask
in some blocks, and pos_enc=relative_2d is a decomposed relative encoding, as there. The image is
encoded once, then prompts are answered one after another, each with the mask before it as a further
prompt (mask_prompt). The keys of the blocks are those of the image encoder; of these the score, the
normalizer, the kernel and the number of heads are the decoder's as well, whose norms, feed-forward
networks and residuals are as published (mask_decoder.py).
"""

from collections.abc import Callable, Mapping, Sequence
from functools import partial
from typing import Any, TypedDict, Unpack

import torch
from einops import rearrange
from jaxtyping import Bool, Float, Int, Num
from torch import Tensor, nn
from torch.nn.functional import gelu, interpolate

from ablate.config.conflicts import Conflict
from ablate.config.rules import Count, Depth, Width
from ablate.errors import UserError
from ablate.model.attention import Score
from ablate.model.base import Model, ModelTraits
from ablate.model.layers.layer import LayerSpec
from ablate.model.layers.linear import Embedding, width_std
from ablate.model.layers.stack import SharedKeys, Stack, encodings
from ablate.model.mask import Mask
from ablate.model.mask.none import NoMask
from ablate.model.vit import WHOLE_PATCHES, PatchEmbedding, patch_grid
from ablate.pos_enc.none import NoPosEnc
from ablate.random.draws import Stream
from ablate.systems.segmentation.figures import Clicked, decoder_drawer
from ablate.systems.segmentation.mask_decoder import NARROWED, Exchange, MaskDecoder
from ablate.systems.segmentation.points import MakePoints
from ablate.systems.segmentation.prompts import FIRST, PADDING

# The message of the check of a composition, and of the constructor.
DIVIDED = (
    "model.dim={dim} must be a multiple of 8: the mask decoder of model=sam has an eighth of it"
)
KINDS = 4  # of points: background, object, the corners of a box
MASK_WIDTH = 16  # of a mask that is a prompt, before it is projected to the width of the image
TO_IMAGE, TO_TOKENS = "decoder_to_image", "decoder_to_tokens"  # kinds of attention maps
# Points of each image, one or p of them, and their labels.
Prompt = tuple[Num[Tensor, " b *p 2"], Int[Tensor, " b *p"]]
Correct = Callable[[Float[Tensor, "b m y x"], Float[Tensor, "b m"]], Prompt]


class MaskEmbedding(nn.Module):
    """The mask before a click, logits at four times the cells -> vectors of the cells."""

    def __init__(self, dim: int) -> None:
        super().__init__()
        narrow = MASK_WIDTH // 4
        self.first = nn.Conv2d(1, narrow, 2, stride=2)
        self.first_norm = nn.LayerNorm(narrow, eps=1e-6)
        self.second = nn.Conv2d(narrow, MASK_WIDTH, 2, stride=2)
        self.second_norm = nn.LayerNorm(MASK_WIDTH, eps=1e-6)
        self.last = nn.Conv2d(MASK_WIDTH, dim, 1)

    def forward(self, mask: Float[Tensor, "b 1 y x"]) -> Float[Tensor, "b d y//4 x//4"]:
        x = self.first_norm(self.first(mask).movedim(1, -1)).movedim(-1, 1)
        x = self.second_norm(self.second(gelu(x)).movedim(1, -1)).movedim(-1, 1)
        return self.last(gelu(x))


class PromptEncoder(nn.Module):
    """Points with labels, and the mask before, as vectors. masks: whether it reads the mask."""

    def __init__(
        self, dim: int, *, points: MakePoints, image_size: tuple[int, int], masks: bool
    ) -> None:
        super().__init__()
        self.height, self.width = image_size
        self.points = points(dim=dim, image_size=image_size)
        # Of each label; the last row is that of padding, which has no place.
        self.labels = Embedding(KINDS + 1, dim, draw=nn.init.normal_)
        self.no_mask = Embedding(1, dim, draw=nn.init.normal_)
        self.masks = MaskEmbedding(dim) if masks else None

    def forward(
        self, points: Num[Tensor, "b p 2"], labels: Int[Tensor, "b p"]
    ) -> Float[Tensor, "b p d"]:
        """Pixels, x then y, with labels."""
        size = torch.tensor([self.width, self.height], device=points.device)
        dtype = self.labels.weight.dtype
        encoded = self.points(((points + 0.5) / size).to(dtype))
        real = (labels != PADDING)[..., None]
        return torch.where(real, encoded, 0.0) + self.labels(labels % (KINDS + 1))

    def cells(self, grid: tuple[int, int]) -> Float[Tensor, "j d"]:
        """The positions of the image's cells, row by row."""
        weight = self.labels.weight
        y, x = (
            (torch.arange(count, device=weight.device) + 0.5).to(weight.dtype) / count
            for count in grid
        )
        centers = torch.stack(torch.meshgrid(x, y, indexing="xy"), dim=-1)
        return self.points(centers.flatten(0, 1))

    def dense(
        self, before: Float[Tensor, "b 1 y x"] | None
    ) -> Float[Tensor, "b j d"] | Float[Tensor, "1 d"]:
        """The mask before, or None -> the term that is added to the image."""
        if before is None or self.masks is None:
            return self.no_mask.weight
        return rearrange(self.masks(before), "b d y x -> b (y x) d")


class DecoderKeys(TypedDict):
    """The keys of model.decoder."""

    depth: Depth
    ffn_dim: Width | None


class SAM(Model):
    """Images and prompts in, masks with their predicted IoU out.

    num_masks: masks after every prompt; the one with the largest predicted IoU is chosen.
    decoder: of the blocks of the mask decoder the number, and the width of their feed-forward
    network, null: 4 dim. mask_prompt: whether a click comes with the mask that was chosen before
    it. prompt_length: points that it reads in training. stack: the keys of Stack, of the encoder.
    layers: as in Stack; their cross_attention is that of the blocks of the decoder.
    """

    outputs = ("masks",)
    traits = ModelTraits(causal=False, attends=True, has_grid=True)
    positions = "layers"
    kinds = ("images with masks",)
    embeddings = (
        "patches.",
        *encodings("stack"),
        "prompts.",
        "decoder.iou_token.",
        "decoder.mask_t",
    )
    heads = ("decoder.networks.", "decoder.iou.")
    conflicts = (
        *WHOLE_PATCHES,
        Conflict(lambda c: c("model.dim") % NARROWED != 0, DIVIDED.format(dim="{model.dim}")),
        Conflict(
            lambda c: (
                c("model.exchange") == "none"
                and c.get("model.cross_attention._target_", None) is not None
            ),
            "model.cross_attention={model.cross_attention} has no effect with model.exchange=none;"
            " use model.cross_attention=same",
        ),
        Conflict(
            lambda c: c("model.mask_prompt") and c("task.clicks") == 1,
            "model.mask_prompt=true has no effect with task.clicks=1: no click comes after a mask;"
            " set model.mask_prompt=false",
        ),
    )

    def __init__(
        self,
        *,
        image_size: tuple[int, int],
        channels: int,
        prompt_length: int,
        dim: Width,
        patch: Width,
        depth: Depth,
        num_masks: Count,
        exchange: Exchange,
        mask_prompt: bool,
        decoder: DecoderKeys,
        points: MakePoints,
        attention: Callable[..., Score],
        mask: Callable[..., Mask],
        cross_attention: Callable[..., Score] | None = None,
        layers: Sequence[Mapping[str, Any]] = (),
        **stack: Unpack[SharedKeys],
    ):
        super().__init__()
        self.draws = Stream()  # of the clicks of training
        if dim % NARROWED:
            raise UserError(DIVIDED.format(dim=dim))
        self.grid, self.image_size = patch_grid(image_size, patch, patch), tuple(image_size)
        cells = self.grid[0] * self.grid[1]
        self.patches = PatchEmbedding(channels, dim, patch, patch)
        heads = stack["heads"]
        self.stack = Stack(
            dim,
            length=cells,
            causal=False,
            grid=self.grid,
            depth=depth,
            attention=attention,
            mask=mask,
            layers=[{k: x for k, x in keys.items() if k != "cross_attention"} for keys in layers],
            **stack,
        )
        self.prompts = PromptEncoder(dim, points=points, image_size=image_size, masks=mask_prompt)
        place = LayerSpec(
            dim=dim,
            heads=heads,
            length=prompt_length,
            grid=None,
            bias=True,
            std=width_std(dim),
            out_std=width_std(dim),
            dropout=0.0,
            score=attention,
            mask=NoMask(causal=False),
            pos=NoPosEnc(dim=dim, heads=heads, head_dim=dim // heads, length=cells, depth=1),
            normalizer=stack["normalizer"],
            kernel=stack["kernel"],
        )

        def cross(number: int) -> Callable[..., Score]:
            """The factory of the scores of a decoder's block between tokens and image."""
            keys = layers[number % len(layers)] if layers else {}
            chosen = keys.get("cross_attention") or cross_attention
            return partial(chosen, slot="model.cross_attention") if chosen else attention

        self.decoder = MaskDecoder(
            place,
            [cross(number) for number in range(decoder["depth"])],
            grid=self.grid,
            num_masks=num_masks,
            exchange=exchange,
            hidden=decoder["ffn_dim"] or 4 * dim,
        )

    def forward(
        self,
        images: Float[Tensor, "b c y x"],
        points: Num[Tensor, "b p 2"],
        labels: Int[Tensor, "b p"],
        correct: Correct | None = None,
    ) -> tuple[Float[Tensor, "b r m y x"], Float[Tensor, "b r m"]]:
        """Images, and points with labels -> logits of masks and their predicted IoU (r: after the
        first prompt, two points, and after every point that follows).

        correct: returns the next point and its label from the last masks and IoUs; those of
        `points` are then not read.
        """
        image = self.encode(images)
        clicked, marked = points[:, :FIRST], labels[:, :FIRST]
        answers: list[tuple[Tensor, Tensor]] = []
        small = None
        for count in range(FIRST, points.shape[1] + 1):
            if count > FIRST:
                new = points[:, count - 1], labels[:, count - 1]
                if correct is not None:
                    new = correct(*answers[-1])
                clicked = torch.cat([clicked, new[0][:, None]], dim=1)
                marked = torch.cat([marked, new[1][:, None]], dim=1)
            masks, iou = self.decode(image, clicked, marked, small, use=count - FIRST)
            small = chosen(masks, iou).detach()
            answers.append((self._full_size(masks), iou))
        every_mask, every_iou = zip(*answers, strict=True)
        return torch.stack(every_mask, dim=1), torch.stack(every_iou, dim=1)

    def encode(self, images: Float[Tensor, "b c y x"]) -> Float[Tensor, "b j d"]:
        """Images -> the cells."""
        return self.stack(self.patches(images))

    def decode(
        self,
        image: Float[Tensor, "b j d"],
        points: Num[Tensor, "b p 2"],
        labels: Int[Tensor, "b p"],
        before: Float[Tensor, "b 1 y x"] | None,
        use: int = 0,
    ) -> tuple[Float[Tensor, "b m y x"], Float[Tensor, "b m"]]:
        """Encoded cells, a prompt and the mask before -> masks at four times the cells, and their
        predicted IoU."""
        image = image + self.prompts.dense(before)
        return self.decoder(image, self.prompts.cells(self.grid), self.prompts(points, labels), use)

    def _full_size(
        self, masks: Float[Tensor, "b m y x"]
    ) -> Float[Tensor, "b m {self.image_size[0]} {self.image_size[1]}"]:
        """At four times the cells -> at the size of the image."""
        if masks.shape[2:] == self.image_size:
            return masks
        return interpolate(masks, self.image_size, mode="bilinear", align_corners=False)

    def cell(self, x: int, y: int) -> int:
        """The number of the cell that a pixel lies in."""
        (height, width), (rows, columns) = self.image_size, self.grid
        return y * rows // height * columns + x * columns // width

    def map_kind(self, name: str, layer: nn.Module) -> str:
        """ "encoder"; of the decoder the name of the attention, such as TO_IMAGE."""
        return "encoder" if name.startswith("stack.") else f"decoder_{name.rpartition('.')[2]}"

    @torch.no_grad()
    def drawer(self, data: Any, example: dict[str, Any], maps: Sequence[Any]) -> Any:
        """Maps over the image: attention of the clicked cell in the encoder, and in the decoder of
        the token of the chosen mask and to the token of the click."""
        logits, iou = self(example["images"], example["points"], example["labels"])
        best, count = int(iou[0, 0].argmax()), logits.shape[2]
        x, y = example["points"][0, 0].tolist()
        cell, mask, click = self.cell(x, y), 1 + best, 1 + count  # indices of cell and tokens
        points = ["no point" if int(n) == PADDING else "click" for n in example["labels"][0]]
        clicked = Clicked(
            image=data.visible(example["images"][0]),
            click=(x, y, int(example["labels"][0, 0])),
            mask=chosen(logits[:, 0], iou[:, 0])[0, 0] > 0,
            patches=self.patches,
            tokens=["IoU", *(f"mask {n + 1}" for n in range(count)), *points],
            over={
                "encoder": ("the cell under the click attends", lambda w: w[:, cell]),
                TO_IMAGE: (
                    f"the token of mask {mask}, the chosen one, reads",
                    lambda w: w[:, mask],
                ),
                TO_TOKENS: ("the image reads the click", lambda w: w[:, :, click]),
            },
        )
        return decoder_drawer(clicked)

    @property
    def compiles(self) -> list[nn.Module]:
        """The encoder and the decoder, between which clicks are placed."""
        return [self.stack, self.decoder]


def picked(
    logits: Float[Tensor, "b r m y x"], iou: Float[Tensor, "b r m"]
) -> list[Bool[Tensor, "y x"]]:
    """The chosen masks of the first example after each prompt."""
    return [
        (chosen(masks[None], value[None])[0, 0] > 0).cpu()
        for masks, value in zip(logits[0], iou[0], strict=True)
    ]


def chosen(masks: Float[Tensor, "b m y x"], iou: Float[Tensor, "b m"]) -> Float[Tensor, "b 1 y x"]:
    """The mask with the largest predicted IoU."""
    best = iou.argmax(1)[:, None, None, None]
    return masks.take_along_dim(best, dim=1)
