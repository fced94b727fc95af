"""Connections to SQLite that no end of a process waits for."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import aiosqlite
from aiosqlite import Connection

__all__ = ["Connection", "connection_to"]


def connection_to(path: Path | str, **options: Any) -> Connection:
    """One that is opened when it is awaited; `options` are those of `sqlite3.connect`.

    A process that fails may leave it open: then it ends as if it were killed, which every database
    here survives. Python would wait for the connection's thread, without end.
    """
    connection = aiosqlite.connect(path, **options)
    connection._thread.daemon = True  # noqa: SLF001 - pinned by test_borrowed_attributes.py
    return connection
