"""SQLite: connections that no end of a process waits for, files made and found whole, errors."""

from __future__ import annotations

import sqlite3
from contextlib import suppress
from functools import partial
from os.path import samestat
from pathlib import Path
from typing import Any

from aiosqlite import Connection

from binlogd.host.disk import sync_directory

__all__ = ["Connection", "FileAt", "connection_to", "is_damage", "make_database"]


def connection_to(path: Path | str, **options: Any) -> Connection:
    """What aiosqlite connects, with `sqlite3.connect`'s options."""
    return _Connection(path, **options)


class _Connection(Connection):
    def __init__(self, path: Path | str, **options: Any) -> None:
        """A process that fails may leave it open: then it ends as if it were killed, which every
        database here survives. Python would wait for the connection's thread, without end."""
        super().__init__(partial(sqlite3.connect, str(path), **options), iter_chunk_size=64)
        self._thread.daemon = True  # pinned by test_borrowed_attributes.py

    async def _connect(self) -> Connection:
        """Where it cannot be opened, its thread told of its end a loop that was closed by then."""
        try:
            return await super()._connect()
        except sqlite3.Error:
            self._thread.join()  # nothing is left for it but to end
            raise


async def make_database(path: Path, script: str) -> None:
    """Makes a file with what a script makes in it, there whole or not at all, wherever the power
    fails: an empty one is always one that was cut. What an earlier try left is removed."""
    beside = path.with_name(f"{path.name}.new")
    for each in (beside, beside.with_name(f"{beside.name}-journal")):
        each.unlink(missing_ok=True)
    async with connection_to(beside, isolation_level=None) as made:  # synchronous = FULL
        await made.executescript(f"BEGIN; {script} COMMIT;")
    beside.rename(path)
    sync_directory(path.parent)


class FileAt:
    """The file at a path: what is written to one that is not there any more nobody reads."""

    def __init__(self, path: Path) -> None:
        self._path, self._at_first = path, path.stat()

    def must_be(self) -> None:
        """Raises sqlite3.OperationalError where it was removed or replaced."""
        with suppress(OSError):
            if samestat(self._path.stat(), self._at_first):
                return
        raise sqlite3.OperationalError("the file was removed or replaced under this process")


def is_damage(error: BaseException) -> bool:
    """Whether what SQLite raises tells of the file, and not of its surroundings: its schema does
    not fit a question of ours, or its words are no text."""
    if isinstance(error, sqlite3.OperationalError):
        return getattr(error, "sqlite_errorcode", 0) == sqlite3.SQLITE_ERROR
    return isinstance(error, sqlite3.DatabaseError | UnicodeDecodeError | OverflowError)
