"""RNN language model: Mikolov et al. 2010; regularized as Zaremba et al. 2014.

"Recurrent neural network based language model", Interspeech; https://arxiv.org/abs/1409.2329:
dropout on embeddings, between layers and before the output map. The output map is the embedding
table when tied: Press and Wolf 2017, https://arxiv.org/abs/1608.05859.
"""

from pathlib import Path
from typing import Any

import torch
import torch.nn.functional as F
from jaxtyping import Float, Int
from torch import Tensor, nn
from torch.nn.functional import pad

from ablate.config.conflicts import Conflict
from ablate.config.rules import Depth, Share, Width
from ablate.figures.gates import draw_gates
from ablate.figures.panels import chosen
from ablate.model.base import LanguageModel
from ablate.model.cell import MakeCell
from ablate.model.cell.lstm import LSTM
from ablate.model.embedding import MakeEmbedding
from ablate.model.embedding.learned import Learned
from ablate.model.layers.linear import Linear, width_std
from ablate.model.recurrent.recurrent import Hidden, Recurrent, uniform
from ablate.random.dropout import Dropout


class ReadOut(nn.Module):
    """The output projection without its parameters: compile=true compiles it if a model has no
    attention."""

    def __init__(self, rate: float):
        super().__init__()
        self.dropout = Dropout(rate)

    def forward(
        self,
        x: Float[Tensor, "b i d"],
        weight: Float[Tensor, "outputs d"],
        bias: Float[Tensor, " outputs"] | None = None,
    ) -> Float[Tensor, "b i outputs"]:
        return F.linear(self.dropout(x), weight, bias)


TIED_WIDTHS = tuple(
    Conflict(
        lambda c, halved=halved: (  # type: ignore[misc]
            c("model.tie_embeddings")
            and (c("model.embedding_dim") or c("model.dim")) != c.read_out
            and halved == (c.read_out != c("model.dim"))
        ),
        f"model.tie_embeddings=true requires embeddings of the same width as {what}; set"
        " model.embedding_dim={:read_out}",
    )
    for halved, what in (
        (True, "the readout of model.decoder=bahdanau, half of model.dim={model.dim}"),
        (False, "the states that are read out, model.dim={model.dim}"),
    )
)
GOES_AROUND = Conflict(
    lambda c: c("model.residual") and c("model.depth") == 1,
    "model.residual=true applies from the second layer on, and has no effect with model.depth=1",
)


class HiddenState:
    """The state of the layers after the tokens so far, the cache of an RNN."""

    def __init__(self) -> None:
        self.hidden: list[Hidden] | None = None
        self.tokens = 0

    def length(self) -> int:
        return self.tokens


class RNNLM(LanguageModel):
    """Tokens in, logits of the next token out.

    Every training window starts from a zero state, because it starts anywhere in the text; windows
    may be of any `length`, and longer ones may be read after training.
    """

    outputs = ("next tokens",)
    conflicts = (GOES_AROUND, *TIED_WIDTHS)
    positions = None
    kinds = ("text", "recall")
    embeddings = ("embedding.",)

    def __init__(
        self,
        *,
        vocab_size: int,
        length: int,
        dim: Width,
        embedding_dim: Width | None,
        cell: MakeCell,
        depth: Depth,
        residual: bool,
        dropout: Share,
        tie_embeddings: bool,
        embedding: MakeEmbedding = Learned,
    ):
        super().__init__()
        self.length = None
        embedding_dim = embedding_dim or dim
        assert embedding_dim == dim or not tie_embeddings
        self.embedding = embedding(vocab_size, embedding_dim, draw=uniform)
        self.recurrent = Recurrent(
            embedding_dim, dim, cell=cell, depth=depth, residual=residual, dropout=dropout
        )
        self.dropout = Dropout(dropout)
        self.read_out = ReadOut(dropout)
        self.head = None
        if not tie_embeddings:
            self.head = Linear(dim, vocab_size, bias=False, std=width_std(dim))

    @property
    def compiles(self) -> list[nn.Module]:
        """Compiling gains nothing: the recurrent layers, which take the time, are not compiled."""
        return [self.read_out]

    def forward(
        self, tokens: Int[Tensor, "b i"], *, cache: HiddenState | None = None
    ) -> Float[Tensor, "b i vocab_size"]:
        before = None if cache is None else cache.hidden
        x, after = self.recurrent(self.dropout(self.embedding(tokens)), before)
        if cache is not None:
            cache.hidden, cache.tokens = after, cache.tokens + tokens.shape[1]
        return self.read_out(x, (self.head or self.embedding).weight)

    def new_cache(self) -> HiddenState:
        return HiddenState()

    def figures(self, example: dict[str, Any], folder: Path, layer: int | None) -> list[Path]:
        """The gates of an LSTM; none for other cells."""
        numbers = chosen("layer", layer, len(self.recurrent.layers))
        tokens = example["tokens"]
        labels = example.get("labels") or [str(n) for n in range(tokens.shape[1])]
        return draw_gates(lstm_gates(self, tokens), numbers, labels, folder)


@torch.no_grad()
def lstm_gates(
    model: RNNLM, tokens: Int[Tensor, "b i"]
) -> list[tuple[Float[Tensor, "b i d"], Float[Tensor, "b i d"], Float[Tensor, "b i d"]]]:
    """Input, forget and output gate of each layer, which torch does not return."""
    layers = model.recurrent.layers
    if not all(isinstance(layer, LSTM) for layer in layers):
        return []
    was_training = model.training
    model.eval()
    x, gates = model.embedding(tokens.to(model.embedding.weight.device)), []
    for number, layer in enumerate(layers):
        assert isinstance(layer, LSTM)
        y, _ = layer(x)
        before = pad(y[:, :-1], (0, 0, 1, 0))  # a window starts from a state of zeros
        w, u, b, c = layer.maps
        sums = x @ w.T + b + before @ u.T + c
        entering, forget, _, output = sums.sigmoid().cpu().chunk(4, dim=-1)
        gates.append((entering, forget, output))
        x = x + y if model.recurrent.residual and number else y
    model.train(was_training)
    return gates
