"""x + y: He et al. 2015, https://arxiv.org/abs/1512.03385."""

from ablate.model.connection import Connection


class Plain(Connection):
    """Adds the output of the sublayer."""
