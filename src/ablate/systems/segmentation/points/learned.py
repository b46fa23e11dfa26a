"""Learned positions: concatenated vectors of the row and the column of pixels, half the width each.

As pos_enc=learned_2d for patches.
"""

import torch
from jaxtyping import Float
from torch import Tensor, nn

from ablate.model.layers.linear import Embedding


class Learned(nn.Module):
    def __init__(self, *, dim: int, image_size: tuple[int, int]) -> None:
        super().__init__()
        rows, columns = image_size
        self.columns, self.rows = Embedding(columns, dim // 2), Embedding(rows, dim // 2)

    def forward(self, positions: Float[Tensor, "*n 2"]) -> Float[Tensor, "*n d"]:
        tables = self.columns, self.rows
        vectors = []
        for table, share in zip(tables, positions.unbind(-1), strict=True):
            pixel = (share * table.num_embeddings).long().clamp(0, table.num_embeddings - 1)
            vectors.append(table(pixel))
        return torch.cat(vectors, dim=-1)
