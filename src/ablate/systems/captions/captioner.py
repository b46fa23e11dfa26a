"""Captioner: a convolutional encoder, attention over its feature map, a recurrent decoder.

Xu et al. 2015, "Show, attend and tell: neural image caption generation with visual attention",
https://arxiv.org/abs/1502.03044. The encoder is the trunk of resnet.py instead of a pretrained VGG:
an annotation vector is one cell of its last feature map. Soft attention (section
4.2) is model.normalizer=softmax, hard attention (section 4.1) is model.normalizer=hard. The decoder
is in show_attend_tell.py, its loss in captioning.py. Not in the paper:
positions may be added to the annotation vectors (pos_enc).
"""

from collections.abc import Callable
from typing import Unpack

import torch
from einops import rearrange
from jaxtyping import Float, Int
from torch import Tensor, nn

from ablate.config.conflicts import Conflict
from ablate.config.rules import Share, Width
from ablate.errors import UserError
from ablate.kernel import Kernel
from ablate.model.attention import Score
from ablate.model.base import ModelTraits, Seq2Seq, State
from ablate.model.cell import MakeCell
from ablate.model.decoder import RNNState
from ablate.model.layers.linear import Embedding, Linear, width_std
from ablate.model.normalizer import Normalizer
from ablate.model.recurrent.recurrent import uniform
from ablate.model.recurrent.rnn_attention import Memory, make_context
from ablate.model.resnet import NORM_OF_IMAGES, STAGES, STRIDE, TrunkKeys, trunk
from ablate.model.window.none import NoWindow
from ablate.pos_enc import PosEnc
from ablate.random.dropout import Dropout
from ablate.systems.captions.show_attend_tell import ShowAttendTellDecoder

# The message of the check of a composition, and of the constructor.
STAGED = (
    "model.dim={dim} must be a multiple of 4: the encoder of model=captioner begins with a fourth"
    " of it and doubles it twice"
)


class Captioner(Seq2Seq):
    """`dim` is the width of the annotation vectors and of the decoder's state, which are scored
    without projections. `blocks`: keys of resnet.trunk.
    """

    outputs = ("captions",)
    conflicts = (
        Conflict(lambda c: c("model.dim") % 4 != 0, STAGED.format(dim="{model.dim}")),
        NORM_OF_IMAGES,
    )
    positions = "input"
    traits = ModelTraits(has_grid=True)
    kinds = ("images with captions",)
    embeddings = ("pos_enc.", "target_embedding.")

    def __init__(
        self,
        *,
        image_size: tuple[int, int],
        channels: int,
        target_vocab: int,
        target_length: int,
        dim: Width,
        embedding_dim: Width | None,
        cell: MakeCell,
        gating_scalar: bool,
        dropout: Share,
        attention: Callable[..., Score],
        normalizer: Normalizer,
        pos_enc: Callable[..., PosEnc],
        kernel: Kernel,
        **blocks: Unpack[TrunkKeys],
    ):
        super().__init__()
        if dim % 2 ** (STAGES - 1):
            raise UserError(STAGED.format(dim=dim))
        embedding_dim = embedding_dim or dim
        self.grid = -(-image_size[0] // STRIDE), -(-image_size[1] // STRIDE)
        cells = self.grid[0] * self.grid[1]
        self.encoder = nn.Sequential(*trunk(channels, dim // 2 ** (STAGES - 1), **blocks))
        self.pos_enc = pos_enc(
            dim=dim, heads=1, head_dim=dim, length=cells, depth=1, grid=self.grid
        )
        self.target_embedding = Embedding(target_vocab, embedding_dim, draw=uniform)
        self.decoder = ShowAttendTellDecoder(
            embedding_dim,
            dim,
            gating_scalar=gating_scalar,
            context=make_context(
                dim,
                attention=attention,
                normalizer=normalizer,
                window=NoWindow,
                kernel=kernel,
                length=cells,
            ),
            cell=cell,
            depth=1,
            residual=False,
            dropout=0.0,
        )
        std = width_std(embedding_dim)
        self.head = Linear(embedding_dim, target_vocab, bias=False, std=std)
        self.dropout = Dropout(dropout)

    @property
    def cross(self) -> list[nn.Module]:
        return [self.decoder.context]

    @property
    def compiles(self) -> list[nn.Module]:
        """The encoder only: torch.compile does not compile torch's recurrent cells, and entering a
        compiled attention over so few positions costs as much as it saves
        (docs/explanation/negative-results.md).
        """
        return [self.encoder]

    def forward(
        self, source: Float[Tensor, "b c y x"], target_in: Int[Tensor, "b i"]
    ) -> Float[Tensor, "b i target_vocab"]:
        """Teacher forcing. source: images."""
        return self._read(target_in, self.encode(source))

    def encode(self, source: Float[Tensor, "b c y x"]) -> RNNState:
        """Images -> the initial state of the decoder."""
        # Channels last: on a CPU the convolutions take a third less time.
        cells = self.encoder(source.contiguous(memory_format=torch.channels_last))
        states = rearrange(cells, "b d y x -> b (y x) d")
        self.pos_enc.prepare(states)
        states = self.pos_enc.embed(states)
        mean = states.mean(1)
        everything = torch.ones(states.shape[:2], dtype=torch.bool, device=states.device)
        memory = Memory(states=states, keep=everything, last=mean)
        return self.decoder.start(memory, [(mean[None],) * self.decoder.recurrent.states])

    def step(self, tokens: Int[Tensor, " b"], state: State) -> Float[Tensor, "b target_vocab"]:
        assert isinstance(state, RNNState)
        return self._read(tokens[:, None], state)[:, 0]

    def cells(self, rows: range, columns: range) -> frozenset[int]:
        """The cells of the feature map whose receptive field is centered in a box of pixels."""
        return frozenset(
            row * self.grid[1] + column
            for row in range(self.grid[0])
            for column in range(self.grid[1])
            if row * STRIDE in rows and column * STRIDE in columns
        )

    def _read(
        self, tokens: Int[Tensor, "b i"], state: RNNState
    ) -> Float[Tensor, "b i target_vocab"]:
        """The input words -> the logits of the words after them."""
        embedded = self.dropout(self.target_embedding(tokens))
        return self.head(self.dropout(self.decoder.decoded(embedded, state), 1))
