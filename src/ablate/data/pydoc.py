"""The language reference that comes with CPython: English with code, without a download.

`pydoc_data.topics` is the text that `help("yield")` prints. It differs a little from one version
of Python to the next, and so do the fingerprint and the results.
"""

from collections.abc import Iterator
from hashlib import sha256

from ablate.data.text import TextData
from ablate.errors import UserError


def topics() -> dict[str, str]:
    """The text of each topic of Python's help, by its name; UserError if there are none."""
    try:
        from pydoc_data.topics import topics
    except ImportError:
        raise UserError(
            "this Python comes without pydoc_data.topics, its help; use data=text data.path=FILE,"
            " or data=text_files data.root=DIR"
        ) from None
    return topics


class Pydoc(TextData):
    """All topics, sorted by name, each with its name as a title."""

    def pieces(self) -> Iterator[str]:
        texts = topics()
        yield "\n\n".join(f"{name}\n\n{texts[name].strip()}" for name in sorted(texts)) + "\n"

    def content_hash(self) -> str:
        return sha256("".join(self.pieces()).encode()).hexdigest()
