"""Learned places: a vector for the row of pixels beside one for the column, half of the width each.

What pos_enc=learned_2d is for patches.
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

    def forward(self, places: Float[Tensor, "*n 2"]) -> Float[Tensor, "*n d"]:
        tables = self.columns, self.rows
        found = []
        for table, share in zip(tables, places.unbind(-1), strict=True):
            pixel = (share * table.num_embeddings).long().clamp(0, table.num_embeddings - 1)
            found.append(table(pixel))
        return torch.cat(found, dim=-1)
