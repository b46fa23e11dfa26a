"""A run as one of a pack."""

from contextlib import ExitStack
from dataclasses import dataclass

from ablate.errors import RunFailed
from ablate.training.train import Begun


@dataclass(eq=False)
class Packed:
    """A run of a pack. `context` ends what was begun; failed: why it is trained no further."""

    run: Begun
    context: ExitStack
    failed: RunFailed | None = None
