"""The simple recurrent network: h = tanh(W x + U h), Elman 1990, "Finding structure in time"."""

import torch
from torch import nn

from ablate.model.cell import Cell


class RNN(Cell, nn.RNN):
    function = torch.rnn_tanh_cell
