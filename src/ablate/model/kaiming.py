"""Linear maps and convolutions before a ReLU, drawn as He et al. 2015 do.

https://arxiv.org/abs/1502.01852, section 2.2: N(0, 2 / fan), where the fan of a convolution is that
of its outputs, as in the code of ResNet; biases are zero.
"""

from torch import nn


class KaimingLinear(nn.Linear):
    def reset_parameters(self) -> None:
        nn.init.kaiming_normal_(self.weight, nonlinearity="relu")
        if self.bias is not None:
            nn.init.zeros_(self.bias)


class KaimingConv(nn.Conv2d):
    def reset_parameters(self) -> None:
        nn.init.kaiming_normal_(self.weight, mode="fan_out", nonlinearity="relu")
        if self.bias is not None:
            nn.init.zeros_(self.bias)
