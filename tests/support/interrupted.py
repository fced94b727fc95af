"""A sink that is left before and after each statement of a DDL, and taken up again."""

from __future__ import annotations

from collections import Counter
from collections.abc import Awaitable, Callable

import pytest

from binlogd.drainer.mysql.connection import Done, SqlSession
from binlogd.drainer.mysql.sink import MySqlSink

INTERRUPTIONS_MAX = 200


class Interrupted(Exception):
    """As if the process had been killed."""


async def interrupted_at_each(
    live: Callable[[], Awaitable[None]], part: bytes, patch: pytest.MonkeyPatch
) -> int:
    """Calls `live` until it ends by itself; how many times it was interrupted.

    The first time that a statement with `part` is met it is not executed, the second time it is,
    and then the sink is left: so each is interrupted right before and right after.
    """
    met = Counter[bytes]()
    real = MySqlSink._patiently  # every statement of a DDL goes through it

    async def patiently(self: MySqlSink, session: SqlSession, statement: bytes) -> Done:
        met[statement] += part in statement
        if met[statement] == 1:
            raise Interrupted
        done = await real(self, session, statement)
        if met[statement] == 2:
            raise Interrupted
        return done

    patch.setattr(MySqlSink, "_patiently", patiently)
    interruptions, is_over = 0, False
    while not is_over:
        is_over = True
        try:
            await live()
        except* Interrupted:
            interruptions += 1
            is_over = False
        assert interruptions <= INTERRUPTIONS_MAX, "it does not come to an end"
    return interruptions
