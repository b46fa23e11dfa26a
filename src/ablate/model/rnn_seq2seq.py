"""RNN encoder-decoder: Sutskever et al. 2014, Bahdanau et al. 2015, Luong et al. 2015.

https://arxiv.org/abs/1409.3215, https://arxiv.org/abs/1409.0473, https://arxiv.org/abs/1508.04025.
The encoder is unidirectional or bidirectional; the decoder (model.decoder) attends to the encoder's
states with any score, or reads only its last state. Dropout as in Zaremba et al. 2014,
https://arxiv.org/abs/1409.2329: on embeddings, between layers, before the output map. The output
map is the target's embedding table when tied: Press and Wolf 2017,
https://arxiv.org/abs/1608.05859.
"""

from collections.abc import Callable
from functools import partial
from typing import Unpack

from jaxtyping import Float, Int
from torch import Tensor, nn

from ablate.config.conflicts import Conflict
from ablate.config.rules import Width
from ablate.data.pairs import PAD
from ablate.kernel import Kernel
from ablate.model.attention import Score
from ablate.model.base import ModelTraits, Seq2Seq, State
from ablate.model.decoder import MakeDecoder, RNNState
from ablate.model.embedding import MakeEmbedding
from ablate.model.embedding.learned import Learned
from ablate.model.layers.linear import Linear, width_std
from ablate.model.normalizer import Normalizer
from ablate.model.recurrent.recurrent import Recurrent, RecurrentKeys, uniform
from ablate.model.recurrent.rnn_attention import Memory, RNNAttention, make_context
from ablate.model.recurrent.written_gradient import decoded
from ablate.model.rnn_lm import GOES_AROUND, TIED_WIDTHS, ReadOut
from ablate.model.window import Window
from ablate.random.dropout import Dropout


class RNNSeq2Seq(Seq2Seq):
    """`dim` is the width of the decoder's states and of the encoder's, both directions together.

    `layers` are the keys of Recurrent that both sides share. A target may be longer than any in
    training (`target_length`), and each side has its own embedding table, whether they share a
    vocabulary (`joint`) or not.
    """

    outputs = ("target tokens",)
    traits = ModelTraits(reads_without_attention=True)
    conflicts = (
        GOES_AROUND,
        *TIED_WIDTHS,
        Conflict(
            lambda c: c("model.bidirectional") and c("model.dim") % 2 != 0,
            "model.bidirectional=true requires an even model.dim: each direction has half of"
            " model.dim={model.dim}",
        ),
    )
    positions = None
    embeddings = ("source_embedding.", "target_embedding.")

    def __init__(
        self,
        *,
        source_vocab: int,
        target_vocab: int,
        source_length: int,
        target_length: int,
        joint: bool,
        dim: Width,
        embedding_dim: Width | None,
        bidirectional: bool,
        decoder: MakeDecoder,
        input_feeding: bool,
        tie_embeddings: bool,
        attention: Callable[..., Score],
        normalizer: Normalizer,
        window: Callable[..., Window],
        kernel: Kernel,
        embedding: MakeEmbedding = Learned,
        **layers: Unpack[RecurrentKeys],
    ):
        super().__init__()
        embedding_dim = embedding_dim or dim
        dropout = layers["dropout"]
        table = partial(embedding, dim=embedding_dim, draw=uniform)
        self.source_embedding = table(source_vocab, reads=("source",))
        self.target_embedding = table(target_vocab, reads=("target_in",))
        self.encoder = Recurrent(embedding_dim, dim, bidirectional=bidirectional, **layers)
        self.decoder = decoder(
            embedding_dim,
            dim,
            context=make_context(
                dim,
                attention=attention,
                normalizer=normalizer,
                window=window,
                kernel=kernel,
                length=source_length,
            ),
            bidirectional=bidirectional,
            input_feeding=input_feeding,
            **layers,
        )
        width = self.decoder.width
        assert embedding_dim == width or not tie_embeddings
        head = partial(Linear, width, target_vocab, bias=False, std=width_std(width))
        self.head = None if tie_embeddings else head()
        self.dropout = Dropout(dropout)
        self.read_out = ReadOut(dropout)

    @property
    def cross(self) -> list[nn.Module]:
        context = self.decoder.context
        return [context] if isinstance(context, RNNAttention) else []

    @property
    def compiles(self) -> list[nn.Module]:
        """The attention, which is worth compiling if the decoder calls it at every step.

        Without it the read-out, which gains nothing; with the attention it would lose a little.
        """
        return self.cross or [self.read_out]

    def forward(
        self, source: Int[Tensor, "b j"], target_in: Int[Tensor, "b i"]
    ) -> Float[Tensor, "b i target_vocab"]:
        return self._read(target_in, self.encode(source))

    def encode(self, source: Int[Tensor, "b j"]) -> RNNState:
        keep = source != PAD
        embedded = self.dropout(self.source_embedding(source))
        states, last = self.encoder(embedded, keep=keep)
        memory = Memory(states=states, keep=keep, last=self.encoder.output(last))
        return self.decoder.start(memory, last)

    def step(self, tokens: Int[Tensor, " b"], state: State) -> Float[Tensor, "b target_vocab"]:
        assert isinstance(state, RNNState)
        return self._read(tokens[:, None], state)[:, 0]

    def _read(
        self, tokens: Int[Tensor, "b i"], state: RNNState
    ) -> Float[Tensor, "b i target_vocab"]:
        """The input tokens of the target -> the logits of the tokens after them."""
        embedded = self.dropout(self.target_embedding(tokens), 1)
        return self.read_out(
            decoded(self.decoder, embedded, state), (self.head or self.target_embedding).weight
        )
