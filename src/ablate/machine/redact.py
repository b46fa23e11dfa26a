"""Values that are never written to files: the user, password and query of a URL, and texts that a
config takes from the environment, ${oc.env:NAME} (see ablate.config.public)."""

import re
from typing import Any

# https://USER:PASSWORD@HOST/PATH?TOKEN: the user part and the query may be secrets.
_URL = re.compile(r"([a-z][a-z0-9+.-]*://)(?:[^/\s]*@)?([^\s?]*)(?:\?\S*)?", re.IGNORECASE)
SHORTEST = 8  # characters of a value that is looked for in messages; "cpu" is not a secret

_values: dict[str, str] = {}  # of the environment, as configs have used them -> ${oc.env:NAME}


def remember(value: str, name: str) -> None:
    """Keep a value of the environment out of all messages to come."""
    if len(value) >= SHORTEST:
        _values[value] = name


def redact(text: str) -> str:
    """Return a message without credentials of URLs, with names for values of the environment."""
    for value in sorted(_values, key=len, reverse=True):
        text = text.replace(value, _values[value])
    return without_credentials(text)


def redacted(value: Any) -> Any:
    """Do the same for every text in the values."""
    if isinstance(value, dict):
        return {key: redacted(item) for key, item in value.items()}
    if isinstance(value, list | tuple):
        return [redacted(item) for item in value]
    return redact(value) if isinstance(value, str) else value


def without_credentials(value: Any) -> Any:
    """Remove the user part and the query from every URL in the values, and in the keys of them."""
    if isinstance(value, dict):
        return {without_credentials(key): without_credentials(item) for key, item in value.items()}
    if isinstance(value, list | tuple):
        return [without_credentials(item) for item in value]
    return _URL.sub(r"\1\2", value) if isinstance(value, str) else value
