"""Libraries that only some tasks need: one way to ask for them, and one sentence where they miss.

The extras are those of `pyproject.toml` (`project.optional-dependencies`).
"""

from __future__ import annotations

import importlib.util
from collections.abc import Iterator
from contextlib import contextmanager

from binlogd.errors import ConfigError


def require(extra: str, *modules: str, place: str = "") -> None:
    """Raises ConfigError where one of them cannot be imported; `place` says who wants it."""
    for module in modules:
        try:
            found = importlib.util.find_spec(module)
        except ModuleNotFoundError:  # a part of a package that is not there
            found = None
        if found is None:
            raise _missing(module, extra, place)


@contextmanager
def importing(extra: str) -> Iterator[None]:
    """Around an import that needs `extra`. Raises ConfigError where that is not installed."""
    try:
        yield
    except ModuleNotFoundError as error:
        module = (error.name or "").partition(".")[0]
        if module == "binlogd":
            raise
        raise _missing(module, extra, "") from error


def _missing(module: str, extra: str, place: str) -> ConfigError:
    named = module.partition(".")[0]
    return ConfigError(
        f"{place}{': ' if place else ''}{named} is not installed: `pip install 'binlogd[{extra}]'`,"
        " or `make setup-extras` in a clone"
    )
