"""A job process that outlives its export, so that the next one need not wait for a JVM.

Invariant. There is at most one, it does one export at a time, and after `end` there is none.
"""

from __future__ import annotations

from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path

import msgspec

from binlogd.errors import ConfigError, Refused
from binlogd.snapshot.process.launcher import JobProcess
from binlogd.snapshot.spec import SessionSpec

JOB_LOG = "job.log"


class WarmJob:
    """`borrow` takes the place of `launcher.running`; the process keeps to a directory `home`."""

    def __init__(self, home: Path) -> None:
        self._home = home
        self._child: JobProcess | None = None
        self._session: SessionSpec | None = None

    @property
    def is_warm(self) -> bool:
        """Whether a process waits for work."""
        return self._child is not None

    @asynccontextmanager
    async def borrow(self, wanted: SessionSpec, _log_path: Path) -> AsyncIterator[JobProcess]:
        """The process that waits, or a new one; not for two at a time.

        It stays, unless its export was cancelled or failed in a way that is not the caller's.
        """
        child = await self._ready(wanted)
        is_fit = False
        try:
            yield child
            is_fit = True
        except (ConfigError, Refused):
            is_fit = True
            raise
        finally:
            if not is_fit:
                await self.end()

    async def end(self) -> None:
        """Ends the process, if there is one; who was cancelled meanwhile calls it again."""
        if self._child is not None:
            await self._child.end()
            self._child = None

    async def _ready(self, wanted: SessionSpec) -> JobProcess:
        scratch = self._home / "spark"
        session = msgspec.structs.replace(wanted, scratch=str(scratch.absolute()))
        if self._child is not None and not (self._child.is_alive and session == self._session):
            await self.end()
        if self._child is None:
            scratch.mkdir(exist_ok=True)
            self._child = await JobProcess.start(session, self._home / JOB_LOG)
            self._session = session
        return self._child
