"""Iceberg catalogs by pyiceberg, asked patiently: each in its own words, none for ever."""

from __future__ import annotations

import threading
import time
from collections.abc import Callable, Mapping
from concurrent.futures import Future, wait
from functools import partial
from typing import TypeVar

from pyiceberg.catalog import Catalog, load_catalog
from pyiceberg.exceptions import NotInstalledError

from binlogd.errors import BinlogdError, ConfigError, GaveUp

T = TypeVar("T")

ATTEMPTS_MAX, RETRY_S = 4, 0.5
ANSWER_S = 60.0
"""So long a catalog may take for one table."""


class CatalogFailed(GaveUp):
    """A catalog that does not answer, or refuses, again and again."""

    todo = (
        "look at the catalog, then run the same command again: what is there is whole, and it goes"
        " on from there"
    )


class NamedCatalog:
    """A catalog of the user's, by its name in pyiceberg's configuration, with more properties."""

    def __init__(self, name: str, properties: Mapping[str, str]) -> None:
        self._name, self._properties = name, properties
        self._opened: Catalog | None = None

    def ask(self, what: str, act: Callable[[Catalog], T]) -> T:
        """Does something that may be done again. Raises CatalogFailed, and ConfigError for a
        catalog that is not described or lacks its library."""
        for attempt in range(ATTEMPTS_MAX):
            try:
                return _in_time(partial(self._ask, act))
            except BinlogdError:
                raise
            except Exception as error:  # each fails in the words of its own library
                if attempt + 1 == ATTEMPTS_MAX:
                    cause = f"{type(error).__name__}: {error}"
                    raise CatalogFailed(f"the catalog {self._name}: {what}: {cause}") from error
            time.sleep(RETRY_S * 2**attempt)  # noqa: TID251 - no event loop: it blocks anyway
        raise AssertionError("the last attempt returns or raises")

    def close(self) -> None:
        """Ends its connections; it may be asked again."""
        opened, self._opened = self._opened, None
        if opened is not None:
            opened.close()

    def _ask(self, act: Callable[[Catalog], T]) -> T:
        if self._opened is None:
            self._opened = self._open()
        return act(self._opened)

    def _open(self) -> Catalog:
        try:
            return load_catalog(self._name, **self._properties)
        except (ValueError, NotInstalledError) as error:
            raise ConfigError(
                f"the Iceberg catalog {self._name} is not configured ({error}): describe it in"
                " ~/.pyiceberg.yaml or in PYICEBERG_CATALOG__..."
            ) from error


def _in_time(act: Callable[[], T]) -> T:
    """Clients of catalogs wait for ever. One that hangs keeps its thread, and nobody waits."""
    answer: Future[T] = Future()

    def run() -> None:
        try:
            answer.set_result(act())
        except Exception as error:  # noqa: BLE001 - who waits raises it
            answer.set_exception(error)

    threading.Thread(target=run, name="catalog", daemon=True).start()
    wait([answer], ANSWER_S)
    if not answer.done():
        raise TimeoutError(f"no answer within {ANSWER_S:g} s")
    return answer.result()
