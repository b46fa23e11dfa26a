"""One-hot: token n is the vector with a 1 at index n and zeros elsewhere; nothing is learned.

Elman 1990, "Finding structure in time", section 3, https://doi.org/10.1207/s15516709cog1402_1: any
two tokens are equally far apart, so the model has to learn their similarities. The vectors are
zero-padded to the width of the model. A vocabulary larger than the width is rejected: a projection
to fewer dimensions, learned or random, is an embedding table whose rows are more alike.
"""

from typing import Any

import torch
import torch.nn.functional as F
from jaxtyping import Float, Int
from torch import Tensor, nn

from ablate.config.conflicts import Conflict
from ablate.errors import UserError


class OneHot(nn.Module):
    """The first vocab_size rows of the identity matrix of size dim."""

    conflicts = (
        Conflict(
            lambda c: c("model.tie_embeddings") and c.predicts_tokens,
            "model.tie_embeddings=true ties the output map to a learned table, and"
            " model.embedding=onehot has none; set model.tie_embeddings=false",
        ),
        Conflict(
            lambda c: c("model.share_embeddings"),
            "model.share_embeddings=true shares one learned table between both sides, and"
            " model.embedding=onehot has none; set model.share_embeddings=false",
        ),
    )
    weight: Float[Tensor, "vocab d"]

    def __init__(self, vocab_size: int, dim: int, **_: Any):
        super().__init__()
        if vocab_size > dim:
            raise UserError(
                f"model.embedding=onehot needs a dimension for each of {vocab_size} tokens, and the"
                f" embeddings of this model have {dim}; set model.dim={vocab_size} or more"
                f" (in an RNN model.embedding_dim={vocab_size}), or a smaller vocabulary"
            )
        self.register_buffer("weight", torch.eye(vocab_size, dim), persistent=False)

    def forward(self, tokens: Int[Tensor, " *n"]) -> Float[Tensor, "*n d"]:
        return F.embedding(tokens, self.weight)
