"""The source for all: every position attends to the whole source, and the target is causal.

The prefix mask whose prefix is the source: Raffel et al. 2020, section 3.2.1 (prefix LM),
https://arxiv.org/abs/1910.10683; Dong et al. 2019, section 2.3 (sequence-to-sequence),
https://arxiv.org/abs/1905.03197.
"""

from typing import Any

from ablate.config.conflicts import Conflict
from ablate.model.mask.prefix import Prefix


class Source(Prefix):
    """A query at i attends to the keys at j <= i and to those of the source; causal without one."""

    conflicts = (
        Conflict(
            lambda c: not c.trait("model", "source_first"),
            "model.mask=source lets every position see the source that precedes a target, and"
            " model={model} has no source among its positions; use model=gpt_seq2seq, or"
            " model.mask=prefix",
        ),
    )

    def __init__(self, **layout: Any) -> None:
        super().__init__(size=1, **layout)
        self.size = self.source
