"""adaLN-Zero: adaLN, with a gate on the output of each sublayer; all three start at zero.

Peebles and Xie 2023, section 3.2 and figure 5, https://arxiv.org/abs/2212.09748. At the start every
block is the identity.
"""

from ablate.config.conflicts import Conflict
from ablate.systems.diffusion.condition.adaln import AdaLN


class AdaLNZero(AdaLN):
    gate = True
    starts_at_zero = True
    conflicts = (
        Conflict(
            lambda c: not c("model.residual"),
            "model.condition=adaln_zero starts with sublayers that add nothing, so that with"
            " model.residual=false nothing would reach the output; set model.residual=true, or use"
            " model.condition=adaln",
        ),
        Conflict(
            lambda c: c.option("model.connection") == "sphere",
            "model.condition=adaln_zero starts with outputs of zero, which model.connection=sphere"
            " scales to length 1; use model.condition=adaln, or another model.connection",
        ),
    )
