"""Databases that a failed test has left open, closed at the end of a run.

Python keeps the error that came last, and with it all that the test had in its hands. Each
connection of aiosqlite has a thread, and a process that ends waits for its threads without end.
"""

from __future__ import annotations

import asyncio
import gc

import aiosqlite

CLOSE_S_MAX = 10.0
"""For one of them: what it does at the moment comes first."""


def close_databases() -> int:
    """Closes every connection of this process; says how many were open. No loop may be running."""
    connections = [each for each in gc.get_objects() if type(each) is aiosqlite.Connection]
    left = [each for each in connections if each._thread.is_alive()]
    for each in left:
        asyncio.run(asyncio.wait_for(each.close(), CLOSE_S_MAX))
    return len(left)
