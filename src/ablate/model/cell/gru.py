"""Gated recurrent unit: Cho et al. 2014, https://arxiv.org/abs/1406.1078.

torch's resets U h, not h before U, and its update gate is the share of the old state that is kept.
"""

import torch
from torch import nn

from ablate.model.cell import Cell


class GRU(Cell, nn.GRU):
    function = torch.gru_cell
