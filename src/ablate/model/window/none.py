"""No window: every step attends to the whole source.

Global attention, Luong et al. 2015, section 3.1, https://arxiv.org/abs/1508.04025.
"""

from ablate.model.window import Window


class NoWindow(Window):
    """Every hook does nothing."""
