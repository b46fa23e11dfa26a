"""No attention: a decoder reads one fixed vector, the last hidden state of the encoder.

The ablated attention, and the models before it: Cho et al. 2014, "Learning phrase representations
using RNN encoder-decoder", section 2.2, https://arxiv.org/abs/1406.1078; Sutskever et al. 2014,
"Sequence to sequence learning with neural networks", section 2, https://arxiv.org/abs/1409.3215.
"""

from typing import Any, ClassVar

from ablate.config.conflicts import Conflict
from ablate.model.attention import Score


class NoAttention(Score):
    """A placeholder without scores or weights: a model tests for this class first."""

    query: ClassVar[bool] = False
    key: ClassVar[bool] = False
    needs: ClassVar[frozenset[str]] = frozenset()
    conflicts = (
        Conflict(
            lambda c: not c.trait("model", "reads_without_attention"),
            "model.attention=none leaves model={model} nothing to read; use"
            " model.attention=uniform, or model=rnn_seq2seq",
        ),
        Conflict(
            lambda c: c.option("model.normalizer") != "softmax",
            "model.normalizer={model.normalizer} has no effect with model.attention=none",
        ),
        Conflict(
            lambda c: c.option("model.window") != "none",
            "model.window={model.window} has no effect with model.attention=none",
        ),
        Conflict(
            lambda c: c.option("kernel") != "auto",
            "kernel={kernel} has no effect with model.attention=none; use kernel=auto",
        ),
    )

    def __init__(self, **sizes: Any) -> None:
        super().__init__(**sizes)
        assert not self.projected
