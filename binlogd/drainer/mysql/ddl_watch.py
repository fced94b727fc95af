"""A DDL at work: shown as such while it takes its time, and told from a connection that is dead.

A DDL may take hours, so nothing but the server can say whether it goes on. While one runs, a second
connection asks for the first one's thread: as long as it is at a statement, it is waited for. If
the thread is gone, or idle while we have no answer, or the server out of reach time after time, the
connection is closed; the note in the progress table then decides whether the DDL is run again.
"""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable

import structlog

from binlogd.drainer.mysql import catalog
from binlogd.drainer.mysql.connection import MySqlServer, SqlSession
from binlogd.errors import BinlogdError
from binlogd.status import DdlAtWork
from binlogd.tso import Tso

log = structlog.get_logger(__name__)

LOOK_EVERY_S = 10.0
OUT_OF_REACH_MAX = 6
"""Looks in a row that found no server: a minute."""
IDLE_MAX = 2
"""Looks in a row that found the statement ended: its answer may just be under way."""


class DdlWatch:
    """Watches one statement at a time."""

    def __init__(self, server: MySqlServer, *, look_every_s: float = LOOK_EVERY_S) -> None:
        self._server, self._look_every_s = server, look_every_s
        self._began_s = 0.0
        self._running: DdlAtWork | None = None

    @property
    def running(self) -> DdlAtWork | None:
        """What is at work now, if anything."""
        now = self._running
        if now is None:
            return None
        elapsed_s = asyncio.get_running_loop().time() - self._began_s
        return DdlAtWork(now.commit_ts, now.statement, elapsed_s, now.stage, now.percent)

    async def over(
        self, commit_ts: Tso, statement: str, session: SqlSession, work: Awaitable[None]
    ) -> None:
        """Waits for the work, which `session` is at. Raises what it raises."""
        self._began_s = asyncio.get_running_loop().time()
        self._running = DdlAtWork(commit_ts, statement, 0.0)
        failure: BinlogdError | None = None
        try:
            async with asyncio.TaskGroup() as group:
                looking = group.create_task(self._look(session), name="DDL watch")
                try:
                    await work
                except BinlogdError as error:
                    failure = error
                looking.cancel()
        finally:
            self._running = None
        if failure is not None:
            raise failure

    async def _look(self, session: SqlSession) -> None:
        thread_id, unreachable, idle, observer = session.thread_id, 0, 0, None
        try:
            while unreachable < OUT_OF_REACH_MAX and idle < IDLE_MAX:
                await asyncio.sleep(self._look_every_s)
                try:
                    observer = observer or await SqlSession.connect(self._server)
                    idle = 0 if await self._is_at_work(observer, thread_id) else idle + 1
                    unreachable = 0
                except BinlogdError as error:
                    unreachable += 1
                    log.warning("ddl_out_of_sight", cause=str(error), looks=unreachable)
                    if observer is not None:
                        observer.close()
                        observer = None
            log.warning("ddl_connection_dead", thread_id=thread_id, reachable=unreachable == 0)
            session.close()
        finally:
            if observer is not None:
                observer.close()

    async def _is_at_work(self, observer: SqlSession, thread_id: int) -> bool:
        """Asks the server. Raises DownstreamUnavailable, SqlRefused."""
        found = await catalog.stage_of(observer, thread_id)
        now = self.running
        if found is None or now is None:
            return False
        stage, percent = found
        self._running = DdlAtWork(now.commit_ts, now.statement, 0.0, stage, percent)
        log.info(
            "ddl_at_work",
            commit_ts=now.commit_ts,
            elapsed_s=round(now.elapsed_s, 1),
            stage=stage,
            percent=percent,
        )
        return True
