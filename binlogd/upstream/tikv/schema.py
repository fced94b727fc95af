"""TiDB's schema where TiDB itself keeps it: the finished DDL jobs, and all tables at a timestamp.

A job is in the history a moment after its binlog (TiDB files it when every server has loaded the
schema), and jobs end in another order than they begin; so a look at the history is at all of its
keys, and at the JSON of what is not known yet.

Source: pingcap/tidb meta/meta.go, GetHistoryDDLJob, GetAllHistoryDDLJobs, ListDatabases,
ListTables; tidb-binlog drainer/util.go, loadHistoryDDLJobs, loadTableInfos.
"""

from __future__ import annotations

from collections.abc import AsyncGenerator, Iterator, Sequence
from itertools import groupby

import msgspec
import structlog

from binlogd.errors import Corrupt, UpstreamUnavailable
from binlogd.ports import TsoSource
from binlogd.tidb import meta_keys
from binlogd.tidb.job_index import JobIndex
from binlogd.tidb.meta_keys import KeyRange
from binlogd.tidb.model import Table, database_from_json, table_from_json
from binlogd.tidb.schema import SchemaTracker
from binlogd.tso import Tso
from binlogd.upstream.history import HistoryLimits, stored_job
from binlogd.upstream.store import StoredJob
from binlogd.upstream.tikv.client import TikvClient
from binlogd.upstream.tikv.regions import RegionDirectory

log = structlog.get_logger(__name__)

_GIVEN_BYTES = 4 << 20
"""Of jobs that are kept in one go."""
_HOLD_S = 300
"""As long as the original holds what it reads."""


_NO_JOBS = (
    "TiKV holds no DDL job: no TiDB has been started on this cluster yet, or its TiDBs have a"
    " keyspace-name; keyspaces (API V2) are not spoken, and tables of such a TiDB stay unknown"
)


class TikvJobs:
    """A `JobSource`: the history of DDL jobs in TiKV."""

    def __init__(
        self, client: TikvClient, tso: TsoSource, limits: HistoryLimits | None = None
    ) -> None:
        self._client, self._tso = client, tso
        self.name, self.missing_s = "TiKV", (limits or HistoryLimits()).missing_at_url_s
        self._has_warned = False

    async def jobs(
        self, known: JobIndex, wanted: int | None = None
    ) -> AsyncGenerator[Sequence[StoredJob], None]:
        """See JobSource; everything is read as of one timestamp."""
        ts = await self._tso.next()
        if wanted is not None:
            raw = await self._client.get(meta_keys.job_key(wanted), ts)
            yield [_job(raw)] if raw is not None else []
            return
        ids: list[int] = []
        async for pairs in self._client.scan(
            meta_keys.hash_range(meta_keys.HISTORY), ts, only_keys=True
        ):
            ids += [_job_id(key) for key, _ in pairs]
        if not ids and not self._has_warned:
            self._has_warned = True
            log.warning("ddl_history_empty", cause=_NO_JOBS)
        some: list[StoredJob] = []
        for keys in _unknown(ids, known):
            async for pairs in self._client.scan(keys, ts):
                some += [_job(raw) for _, raw in pairs]
                if sum(len(raw) for _, raw in some) >= _GIVEN_BYTES:
                    yield some
                    some = []
        yield some


class TikvSchema:
    """All tables at once, without the jobs that made them."""

    def __init__(self, client: TikvClient, places: RegionDirectory, service: str) -> None:
        """`service` is the name under which garbage collection is held off; one for each node."""
        self._client, self._places, self._service = client, places, service

    async def tracker(self, ts: Tso) -> SchemaTracker | None:
        """What goes on from the schema as of `ts`; None if garbage collection has passed it.

        Raises UpstreamUnavailable, Corrupt.
        """
        lowest = await self._places.hold_gc(self._service, ts, _HOLD_S)
        try:
            if lowest > ts or await self._places.gc_safe_point(ts) > ts:
                log.warning("schema_collected", ts=ts, gc_safe_point=lowest)
                return None
            found = await self._read(ts)
            if await self._places.gc_safe_point(ts) > ts:  # reading took longer than it was held
                log.warning("schema_collected", ts=ts, gc_safe_point="above it by now")
                return None
            return found
        finally:
            await self._let_go(ts)

    async def _let_go(self, ts: Tso) -> None:
        try:
            await self._places.hold_gc(self._service, ts, 0)
        except UpstreamUnavailable as error:  # what was read is whole, and the hold ends by itself
            log.warning("gc_hold_left", ts=ts, ends_after_s=_HOLD_S, cause=str(error))

    async def _read(self, ts: Tso) -> SchemaTracker:
        version = await self._client.get(meta_keys.string_key(meta_keys.SCHEMA_VERSION), ts)
        databases = [
            database_from_json(raw) for _, raw in await self._fields(meta_keys.DATABASES, ts)
        ]
        tables: list[tuple[int, Table]] = []
        for database in databases:
            for field, raw in await self._fields(meta_keys.database_name(database.id), ts):
                if meta_keys.table_id_of(field) is not None:
                    tables.append((database.id, table_from_json(raw)))
        log.info("schema_read", ts=ts, databases=len(databases), tables=len(tables))
        return SchemaTracker.of_tables(_number(version), databases, tables)

    async def _fields(self, name: bytes, ts: Tso) -> list[tuple[bytes, bytes]]:
        found = []
        async for pairs in self._client.scan(meta_keys.hash_range(name), ts):
            found += [(meta_keys.field_of(key)[1], raw) for key, raw in pairs]
        return found


def _unknown(ids: Sequence[int], known: JobIndex) -> Iterator[KeyRange]:
    """Ranges of keys in which no job is known, in order."""
    for is_known, run in groupby(ids, known.__contains__):
        if not is_known:
            some = list(run)
            yield KeyRange(meta_keys.job_key(some[0]), meta_keys.job_key(some[-1]) + b"\0")


def _job_id(key: bytes) -> int:
    try:
        return meta_keys.job_id_of(meta_keys.field_of(key)[1])
    except Corrupt as error:
        raise UpstreamUnavailable(f"TiKV: {error}") from error


def _job(raw: bytes) -> StoredJob:
    try:
        return stored_job(raw)
    except (msgspec.DecodeError, UnicodeDecodeError) as error:
        raise UpstreamUnavailable(f"TiKV: a job of the DDL history is no JSON: {error}") from error


def _number(raw: bytes | None) -> int:
    if raw is None:
        return 0
    if not raw.isdigit():
        raise Corrupt(f"TiKV: the schema version is {raw[:40]!r}")
    return int(raw)
