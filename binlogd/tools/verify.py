"""Comparing the tables of two servers, part by part: is the replica what the upstream is?

A part is a range of an integer key, or the rows whose key falls into one of some buckets, of some
rows and bytes, so that memory is bounded. First each server sums up its part by itself; where the
sums differ, or a column has types that servers print in their own way (FLOAT, DOUBLE, JSON), the
rows are fetched and compared by what they mean. Where replication goes on meanwhile a part that
differs is looked at again a few times: its rows may be on their way.

Source for the idea: pt-table-checksum, tidb-tools sync_diff_inspector.
"""

from __future__ import annotations

import asyncio
import json
from collections import Counter
from collections.abc import AsyncIterator, Callable, Iterator, Sequence
from contextlib import closing
from dataclasses import dataclass
from functools import partial
from typing import Any, NamedTuple

from binlogd.drainer import sql
from binlogd.drainer.filtering.filter import TableFilter
from binlogd.drainer.filtering.loopback import MARK_DATABASE, MARK_TABLE
from binlogd.drainer.mysql import catalog
from binlogd.drainer.mysql.connection import MySqlServer, SqlRefused, SqlSession
from binlogd.errors import ConfigError
from binlogd.tidb.known_tables import Named
from binlogd.tools.checksums import INTEGERS, NUMBERED, TEMPORAL, checksums, hexadecimal, text_of
from binlogd.tools.shown import decoded
from binlogd.tso import Tso

PART_ROWS = 20_000
PART_BYTES = 64 << 20
"""By what the upstream says of its rows: a part may have to be fetched from both servers."""
LOOKS = 5
LOOK_AGAIN_S = 1.0
SHOWN_ROWS_MAX = 10
SHOWN_LETTERS_MAX = 80
_OWN_PRINT = frozenset({"float", "double", "json", "longtext"})

Row = tuple[Any, ...]


@dataclass(frozen=True, slots=True)
class VerifyRequest:
    """What is compared: the replicated tables of both servers; `at_ts` 0 is now.

    `own_schemas` are those that binlogd keeps downstream for itself.
    """

    upstream: MySqlServer
    downstream: MySqlServer
    wanted: TableFilter
    at_ts: Tso
    own_schemas: tuple[str, ...]
    part_rows: int = PART_ROWS
    part_bytes: int = PART_BYTES
    look_again_s: float = LOOK_AGAIN_S


@dataclass(frozen=True, slots=True)
class TableVerdict:
    """How a table compares; `reason` is "" when it is equal. `rows` counts the upstream's."""

    database: str
    table: str
    rows: int
    reason: str = ""
    examples: tuple[str, ...] = ()


class _Column(NamedTuple):
    name: str
    data_type: str


@dataclass(frozen=True, slots=True)
class _Shape:
    """A table as one server has it."""

    columns: tuple[_Column, ...]
    key: tuple[str, ...]


class _Both(NamedTuple):
    upstream: SqlSession
    downstream: SqlSession


async def _read_at(session: SqlSession, request: VerifyRequest) -> None:
    try:
        await session.run(b"SET SESSION tidb_snapshot = '%d'" % request.at_ts)
    except SqlRefused as error:
        raise ConfigError(
            f"{request.upstream} cannot be read as of {request.at_ts} ({error}): only a TiDB can,"
            " within its tikv_gc_life_time; say --at now, and stop the writes"
        ) from error


async def verify(
    request: VerifyRequest, progress: Callable[[str, int, int], None] = lambda *_: None
) -> AsyncIterator[TableVerdict]:
    """The verdict on each replicated table of either server. `progress` is told the table, how many
    of its parts are compared, and how many there are. Raises DownstreamUnavailable."""
    wanted, routes = request.wanted, request.wanted.routes
    with (
        closing(await SqlSession.connect(request.upstream)) as upstream,
        closing(await SqlSession.connect(request.downstream)) as downstream,
    ):
        both = _Both(upstream, downstream)
        if request.at_ts:
            await _read_at(upstream, request)
        ours = await _tables(both.upstream, request)
        theirs = {_key(name): name for name in await _tables(both.downstream, request)}
        routed = {_key(routes.name(name)) for name in ours}
        ours = [name for name in ours if wanted.replicates(name.database, name.table)]
        for name in sorted(ours, key=_key):
            target = routes.name(name)
            there = theirs.get(_key(target))
            if there is None:
                called = f" (as {target.database}.{target.table})" if target != name else ""
                yield TableVerdict(name.database, name.table, 0, "is missing downstream" + called)
            else:
                yield await _Pair(both, name, there, request, progress).verdict()
        databases = {routes.name(name).database.lower() for name in ours}
        for key, name in sorted(theirs.items()):
            is_expected = (
                key[0] in databases
                if routes.has_rules
                else wanted.replicates(name.database, name.table)
            )
            if key not in routed and is_expected:
                yield TableVerdict(name.database, name.table, 0, "is not upstream")


def _key(name: Named) -> tuple[str, str]:
    return name.database.lower(), name.table.lower()


async def _tables(session: SqlSession, request: VerifyRequest) -> list[Named]:
    """All that this user may see, but those of the server and of binlogd."""
    rows = await session.rows(
        b"SELECT table_schema, table_name FROM information_schema.tables"
        b" WHERE table_type = 'BASE TABLE' AND table_schema NOT IN ('mysql', 'sys',"
        b" 'information_schema', 'performance_schema', 'metrics_schema', 'inspection_schema')"
    )
    own = {each.lower() for each in request.own_schemas}
    found = [Named(database, table) for database, table in rows if database.lower() not in own]
    return [name for name in found if _key(name) != (MARK_DATABASE, MARK_TABLE)]


class _Pair:
    """One table on both servers."""

    def __init__(
        self,
        both: _Both,
        upstream: Named,
        downstream: Named,
        request: VerifyRequest,
        progress: Callable[[str, int, int], None],
    ) -> None:
        self._both, self._request, self._progress = both, request, progress
        self._name = upstream
        self._verdict = partial(TableVerdict, upstream.database, upstream.table)
        self._tables = _qualified(upstream), _qualified(downstream)
        self._downstream = downstream
        self._part_rows = request.part_rows

    async def verdict(self) -> TableVerdict:
        """Other columns, the first part whose rows differ with examples of them, or no difference.
        A part that differs is looked at again, as the downstream may be behind."""
        ours = await shape_of(self._both.upstream, self._name)
        theirs = await shape_of(self._both.downstream, self._downstream)
        names = {each.name.lower() for each in ours.columns}
        others = {each.name.lower() for each in theirs.columns}
        if names != others:
            odd = ", ".join(sorted(names ^ others))
            return self._verdict(0, f"has other columns: {odd}")
        rows, parts = await self._parts(ours)
        kinds = {each.name.lower(): each.data_type for each in theirs.columns}
        selected = [_reader(each, kinds[each.name.lower()]) for each in ours.columns]
        for number, part in enumerate(parts):
            examples = await self._differences(selected, part)
            if examples:
                reason = f"rows differ in part {number + 1} of {len(parts)}"
                return self._verdict(rows, reason, tuple(examples))
            self._progress(f"{self._name.database}.{self._name.table}", number + 1, len(parts))
        return self._verdict(rows)

    async def _parts(self, shape: _Shape) -> tuple[int, list[bytes]]:
        """How many rows the upstream has, and conditions that divide those of both servers."""
        session, table = self._both.upstream, self._tables[0]
        ((count,),) = await session.rows(b"SELECT COUNT(*) FROM " + table)
        size = self._part_rows = await self._rows_of_a_part()
        if count <= size:
            return count, [b"1 = 1"]
        kinds = {each.name: each.data_type for each in shape.columns}
        if len(shape.key) == 1 and kinds[shape.key[0]] in INTEGERS:
            return count, [each async for each in self._ranges(sql.ident(shape.key[0]))]
        buckets = -(-count // size)
        of = [each for each in shape.key if kinds[each] not in _OWN_PRINT]
        of = of or [each.name for each in shape.columns if each.data_type not in _OWN_PRINT]
        if not of:
            return count, [b"1 = 1"]
        texts = b", ".join(hexadecimal(sql.ident(each), kinds[each]) for each in of)
        bucket = b"CRC32(CONCAT_WS('#', " + texts + b"))"
        return count, [bucket + b" %% %d = %d" % (buckets, each) for each in range(buckets)]

    async def _rows_of_a_part(self) -> int:
        where = catalog.where(self._name.database, self._name.table)
        sizes = await self._both.upstream.rows(
            b"SELECT avg_row_length FROM information_schema.tables" + where
        )
        row_bytes = max(int(sizes[0][0] or 0), 1) if sizes else 1
        return max(1, min(self._request.part_rows, self._request.part_bytes // row_bytes))

    async def _ranges(self, key: bytes) -> AsyncIterator[bytes]:
        after = b""
        while True:  # ends where no whole part follows
            where = b" WHERE " + after if after else b""
            edge = await self._both.upstream.rows(
                b"SELECT %b FROM %b%b ORDER BY %b LIMIT 1 OFFSET %d"
                % (key, self._tables[0], where, key, self._part_rows - 1)
            )
            if not edge:
                yield after or b"1 = 1"
                return
            upper = key + b" <= %d" % edge[0][0]
            yield after + b" AND " + upper if after else upper
            after = key + b" > %d" % edge[0][0]

    async def _differences(self, selected: Sequence[_Reader], part: bytes) -> list[str]:
        """Some rows that differ for good; [] when none does."""
        examples: list[str] = []
        for look in range(LOOKS):
            if look:
                await asyncio.sleep(self._request.look_again_s)
            if await self._has_equal_sums(selected, part):
                return []
            ours = await self._rows(self._both.upstream, self._tables[0], selected, part)
            theirs = await self._rows(self._both.downstream, self._tables[1], selected, part)
            if ours == theirs:
                return []
            examples = [
                *(f"missing: {_shown(selected, row)}" for row in _some(ours - theirs)),
                *(f"surplus: {_shown(selected, row)}" for row in _some(theirs - ours)),
            ]
            if self._request.at_ts:
                break  # the upstream stands still: there is nothing to wait for
        return examples

    async def _has_equal_sums(self, selected: Sequence[_Reader], part: bytes) -> bool:
        if any(each.has_own_print for each in selected):
            return False
        texts = [each.text for each in selected]
        ours = await checksums(self._both.upstream, self._tables[0], texts, part)
        theirs = await checksums(self._both.downstream, self._tables[1], texts, part)
        return ours == theirs and ours.rows == ours.counted

    async def _rows(
        self, session: SqlSession, table: bytes, selected: Sequence[_Reader], part: bytes
    ) -> Counter[Row]:
        names = b", ".join(each.expression for each in selected)
        rows = await session.rows(b"SELECT " + names + b" FROM " + table + b" WHERE " + part)
        return Counter(
            tuple(each.read(value) for each, value in zip(selected, row, strict=True))
            for row in rows
        )


def _some(rows: Counter[Row]) -> Iterator[Row]:
    yield from sorted(rows.elements(), key=repr)[:SHOWN_ROWS_MAX]


def _shown(selected: Sequence[_Reader], row: Row) -> str:
    return ", ".join(
        f"{each.name}={_text(value)}" for each, value in zip(selected, row, strict=True)
    )


def _text(value: Any) -> str:
    if not isinstance(value, bytes):
        return str(value)[:SHOWN_LETTERS_MAX]
    text = decoded(value)
    return f"x'{value.hex()[:SHOWN_LETTERS_MAX]}'" if text is None else text[:SHOWN_LETTERS_MAX]


def _qualified(name: Named) -> bytes:
    return sql.qualified(name.database, name.table)


async def shape_of(session: SqlSession, name: Named) -> _Shape:
    """How a server has a table; without columns where it has none."""
    where = catalog.where(name.database, name.table)
    columns = await session.rows(
        b"SELECT column_name, data_type FROM information_schema.columns"
        + where
        + b" ORDER BY ordinal_position"
    )
    key = await session.rows(
        b"SELECT column_name FROM information_schema.statistics"
        + where
        + b" AND index_name = 'PRIMARY' ORDER BY seq_in_index"
    )
    return _Shape(
        tuple(_Column(name, str(kind).lower()) for name, kind in columns),
        tuple(name for (name,) in key),
    )


# --- one column ------------------------------------------------------------------------------


class _Reader(NamedTuple):
    """How the values of a column are asked for and compared."""

    name: str
    expression: bytes
    text: bytes
    has_own_print: bool
    read: Callable[[Any], Any]


def _reader(column: _Column, downstream_type: str) -> _Reader:
    name, kind = sql.ident(column.name), column.data_type
    read: Callable[[Any], Any] = _as_it_is
    if kind in ("float", "double"):
        expression = name + b" + 0e0"
    elif kind in NUMBERED:
        expression = name + b" + 0"
    elif kind == "json":
        expression, read = b"CAST(" + name + b" AS CHAR)", _json
    elif kind in INTEGERS or "blob" in kind or "binary" in kind:
        expression = name
    elif kind in TEMPORAL:
        expression = b"CAST(" + name + b" AS CHAR)"
    else:  # not in hexadecimal digits: twice as long, it may be too long for a server
        expression = b"CAST(CONVERT(" + name + b" USING utf8mb4) AS BINARY)"
    # a server without a JSON type keeps it as text, so that both are read as JSON
    own = kind in ("float", "double", "json") or downstream_type == "json"
    return _Reader(column.name, expression, text_of(column.name, kind), own, read)


def _as_it_is(value: Any) -> Any:
    return value


def _json(value: Any) -> Any:
    if value is None:
        return None
    text = value.decode() if isinstance(value, bytes) else str(value)
    return json.dumps(json.loads(text), sort_keys=True)
