"""The values of a config as they are stored: without those from the environment.

A person may write ${oc.env:NAME} instead of a secret. Its value is used; files, loggers and reports
show the interpolation.
"""

import os
from collections.abc import Callable
from typing import Any

from omegaconf import OmegaConf
from omegaconf.resolvers import oc

from ablate.machine.redact import remember, without_credentials


def _named(name: str, *default: Any) -> Any:
    return f"${{oc.env:{name}}}" if name in os.environ else oc.env(name, *default)


def from_environment(name: str, *default: Any) -> Any:
    """Resolve ${oc.env:NAME}, and keep its value out of all messages to come."""
    if name in os.environ:
        remember(os.environ[name], _named(name))
    return oc.env(name, *default)


def public(read: Callable[[], Any]) -> Any:
    """Return the result of `read` for a config, with ${oc.env:NAME} for strings from the
    environment, and URLs without user, password and query."""
    values = read()
    OmegaConf.register_new_resolver("oc.env", _named, replace=True)
    try:
        named = read()
    finally:
        OmegaConf.register_new_resolver("oc.env", from_environment, replace=True)
    return without_credentials(_merged(values, named))


def _merged(value: Any, named: Any) -> Any:
    """Return the names of texts; numbers that are made of texts of the environment stay."""
    if isinstance(value, dict) and isinstance(named, dict):
        return {key: _merged(value[key], named[key]) for key in value if key in named}
    if isinstance(value, list | tuple) and isinstance(named, list | tuple):
        return [_merged(*pair) for pair in zip(value, named, strict=False)]
    return named if isinstance(value, str) else value
