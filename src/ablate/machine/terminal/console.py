"""Rich's console, for tables and lines that may contain third-party strings."""

from collections.abc import Iterable
from typing import Any

import rich.console
from rich.segment import Segment
from rich.text import Text

from ablate.machine.terminal.say import printable

NO_LIMIT = 10_000  # columns


class Console(rich.console.Console):
    """Escape control characters in all text, but not in the console's own styles. A file or a pipe
    has no width that cells would have to fit, unless COLUMNS is set."""

    def __init__(self, **kwargs: Any) -> None:
        super().__init__(**kwargs)
        if not self.is_terminal and self._width is None:
            self.width = NO_LIMIT

    def render_str(self, text: str, **kwargs: Any) -> Text:
        return super().render_str(printable(text), **kwargs)  # before its width is measured

    def render(self, *args: Any, **kwargs: Any) -> Iterable[Segment]:
        for text, style, control in super().render(*args, **kwargs):
            yield Segment(text if control else printable(text), style, control)
