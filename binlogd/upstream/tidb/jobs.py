"""DDL jobs from a TiDB: all of them at /ddl/history, one of them from `mysql.tidb_ddl_history`.

The route exists in every version and answers with the whole list up to 8.3; the table exists from
6.2 on and costs a point query, so that a single job that just came is looked for there first. When
no status port answers, the table is read whole. `ADMIN SHOW DDL JOBS` would not do: it has no table
infos. TiDB writes the table beside its meta data, and only logs it when that fails: what is not
there may still be at the route.
Source: TiDB pkg/ddl/job_table.go; pkg/session/bootstrap.go (mysql.tidb_ddl_history).
"""

from __future__ import annotations

from collections.abc import AsyncGenerator, Sequence
from contextlib import aclosing

import msgspec
import structlog

from binlogd.errors import UpstreamUnavailable
from binlogd.tidb.job_index import JobIndex
from binlogd.upstream.history import HistoryLimits, UrlJobs, stored_job
from binlogd.upstream.store import StoredJob
from binlogd.upstream.tidb.servers import Several
from binlogd.upstream.tidb.sql import TidbSql
from binlogd.upstream.tidb.status_port import StatusPort

log = structlog.get_logger(__name__)

_PATH = "/ddl/history"
_TABLE = "mysql.tidb_ddl_history"
_ROWS = 200


class TidbJobs:
    """A JobSource."""

    def __init__(
        self, ports: Several[StatusPort], sql: Several[TidbSql], limits: HistoryLimits | None = None
    ) -> None:
        self._ports, self._sql = ports, sql
        self._limits = limits or HistoryLimits()
        self.name, self.missing_s = "tidb", self._limits.missing_at_url_s

    async def jobs(
        self, known: JobIndex, wanted: int | None = None
    ) -> AsyncGenerator[Sequence[StoredJob], None]:
        """See JobSource."""
        if wanted is not None:
            try:
                found = await self._read([wanted])
            except UpstreamUnavailable as error:
                log.debug("ddl_job_not_in_table", job_id=wanted, cause=str(error))
                found = []
            if found:
                yield found
                return
        try:
            parts = await self._ports.ask(lambda port: self._at_route(port, known, wanted))
        except UpstreamUnavailable as refused:
            async with aclosing(self._in_table(known, refused)) as answers:
                async for jobs in answers:
                    yield jobs
            return
        for jobs in parts:
            yield jobs

    async def _at_route(
        self, port: StatusPort, known: JobIndex, wanted: int | None
    ) -> Sequence[Sequence[StoredJob]]:
        """All parts of an answer: half of one from this and half from that TiDB would have a gap
        that nobody sees."""
        route = UrlJobs(port.url(_PATH), self._limits, port.tls)
        async with aclosing(route.jobs(known, wanted)) as answers:
            return [[job for job in jobs if job[0].id not in known] async for jobs in answers]

    async def _in_table(
        self, known: JobIndex, refused: UpstreamUnavailable
    ) -> AsyncGenerator[Sequence[StoredJob], None]:
        try:
            rows = await self._sql.ask(lambda sql: sql.rows(f"SELECT job_id FROM {_TABLE}"))
        except UpstreamUnavailable as error:
            raise UpstreamUnavailable(f"{refused}; {error}") from error
        log.warning("ddl_history_read_from_table", cause=str(refused))
        missing = sorted(int(job_id) for (job_id,) in rows if int(job_id) not in known)
        for begin in range(0, len(missing), _ROWS):
            yield await self._read(missing[begin : begin + _ROWS])

    async def _read(self, job_ids: Sequence[int]) -> list[StoredJob]:
        wanted = ", ".join(str(int(job_id)) for job_id in job_ids)
        rows = await self._sql.ask(
            lambda sql: sql.rows(f"SELECT job_meta FROM {_TABLE} WHERE job_id IN ({wanted})")
        )
        try:
            return [stored_job(_bytes(meta)) for (meta,) in rows]
        except (msgspec.DecodeError, UnicodeDecodeError, ValueError) as error:
            raise UpstreamUnavailable(f"{_TABLE}: job_meta is no job: {error}") from error


def _bytes(meta: bytes | str) -> bytes:
    return meta.encode() if isinstance(meta, str) else bytes(meta)
