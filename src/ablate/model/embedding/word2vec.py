"""word2vec: tokens with similar contexts get similar vectors, before the model is trained.

Mikolov et al. 2013, "Efficient estimation of word representations in vector space", section 3,
https://arxiv.org/abs/1301.3781 (cbow: predict a token from the mean of its context; skip_gram: the
context from the token), with the negative sampling and the subsampling of frequent tokens of
"Distributed representations of words and phrases and their compositionality", sections 2.2 and 2.3,
https://arxiv.org/abs/1310.4546. gensim computes it (https://radimrehurek.com/gensim/), from the
training split only and in one thread. The same seed returns the same vectors up to the seventh
digit: the rounding of BLAS, which gensim uses, depends on the processor.
"""

import logging
from collections.abc import Iterator
from itertools import chain
from typing import Any, Literal

import numpy as np
import torch
from numpy.typing import NDArray

from ablate.config.conflicts import Conflict
from ablate.config.rules import Count
from ablate.data import Data
from ablate.errors import UserError
from ablate.machine.version import install
from ablate.model.embedding.learned import Learned

# gensim silently drops the tokens of a sentence beyond this many.
LONGEST = 10_000
SUBSAMPLE = 1e-3  # gensim's default: the share of the text above which a token is subsampled


class Word2vec(Learned):
    """An embedding table initialized with word2vec's vectors; `freeze` keeps them as they are.

    window: context tokens on each side, at most. negative: negative samples per true token.
    epochs: passes over the training split.
    All vectors are scaled by one factor to a root mean square length of 1, that of a one-hot
    vector: a frozen table needs this scale relative to positions and the residual stream
    (docs/explanation/negative-results.md). A token absent from the training split keeps its random
    vector.
    """

    conflicts = (
        Conflict(
            lambda c: (
                c("model.embedding.freeze") and c("model.tie_embeddings") and c.predicts_tokens
            ),
            "model.embedding.freeze=true also freezes the output map, which"
            " model.tie_embeddings=true ties to it; set model.tie_embeddings=false",
        ),
    )

    def __init__(
        self,
        vocab_size: int,
        dim: int,
        *,
        algorithm: Literal["skip_gram", "cbow"],
        window: Count,
        negative: Count,
        epochs: Count,
        freeze: bool,
        **sizes: Any,
    ):
        super().__init__(vocab_size, dim, **sizes)
        self.options = {"window": window, "negative": negative, "epochs": epochs}
        self.options["sg"] = int(algorithm == "skip_gram")
        self.weight.requires_grad_(not freeze)

    @torch.no_grad()
    def learn_from(self, data: Data, seed: int) -> None:
        """Replace the random vectors; a loaded run has its own and does not call this."""
        sequences = [*chain.from_iterable(map(data.sequences, self.reads))]
        rows, vectors = self._learn(sequences, seed)
        self.weight[rows] = vectors / vectors.square().sum(-1).mean().sqrt()

    def _learn(
        self, sequences: list[NDArray[np.int32]], seed: int
    ) -> tuple[torch.Tensor, torch.Tensor]:
        """The tokens that were seen, n, and their vectors, n dim."""
        try:
            from gensim.models import Word2Vec as Model
        except ImportError:
            raise UserError(
                f"model.embedding=word2vec needs gensim: {install('word2vec')}"
            ) from None
        logging.getLogger("gensim").setLevel(logging.ERROR)
        model = Model(
            [list(map(str, piece.tolist())) for piece in pieces(sequences)],
            vector_size=self.embedding_dim,
            min_count=1,
            sample=SUBSAMPLE,
            workers=1,
            seed=seed % 2**32,  # numpy's seeds have 32 bits
            **self.options,
        )
        rows = torch.tensor([int(token) for token in model.wv.index_to_key])
        return rows, torch.from_numpy(model.wv.vectors.copy()).to(self.weight)


def pieces(sequences: list[NDArray[np.int32]]) -> Iterator[NDArray[np.int32]]:
    """The sequences, long ones split into parts that gensim reads in full."""
    for sequence in sequences:
        for start in range(0, len(sequence), LONGEST):
            yield sequence[start : start + LONGEST]
