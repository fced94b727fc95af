"""Compares a published snapshot with the tables of a live server, by one checksum for each table.

The server sums up what it has: of each row the CRC-32 of its values' texts. The same is computed of
the snapshot's rows, so only three numbers of a table travel. Columns that servers print in their
own way (FLOAT, DOUBLE, JSON), that lost values on their way out, or whose text may mean several
values (an ENUM or SET with an empty label) are left out, by name.

Source for the idea: tidb-tools sync_diff_inspector; `tools/verify` compares two servers alike.
"""

from __future__ import annotations

import re
import zlib
from collections.abc import AsyncIterator, Callable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from binlogd.drainer import sql
from binlogd.drainer.mysql.connection import Server, SqlRefused, SqlSession
from binlogd.errors import ConfigError
from binlogd.snapshot.formats import read_files
from binlogd.snapshot.spec import ColumnEntry, Manifest, TableEntry
from binlogd.tidb.times import duration_text
from binlogd.tools.verify import hexadecimal
from binlogd.tso import NO_TS, Tso

_LABEL = re.compile(r"'((?:[^']|'')*)'")
_OWN_PRINT = frozenset({"float", "double", "json"})
_INTEGERS = frozenset({"tinyint", "smallint", "mediumint", "int", "bigint"})
ROWS_AT_A_TIME = 10_000


@dataclass(frozen=True, slots=True)
class Verdict:
    """How a table of the snapshot compares; `reason` is "" when it is equal. `left_out` are columns
    that were not compared."""

    database: str
    table: str
    rows: int
    reason: str = ""
    left_out: tuple[str, ...] = ()


@dataclass(slots=True)
class _Sums:
    rows: int = 0
    total: int = 0
    xor: int = 0

    def add(self, text: str) -> None:
        crc = zlib.crc32(text.encode())
        self.rows += 1
        self.total += crc
        self.xor ^= crc


async def compare(
    server: Server, at_ts: Tso, snapshot: Path, manifest: Manifest
) -> AsyncIterator[Verdict]:
    """The verdict on each table of a snapshot. `at_ts`: a TiDB is read as of then, NO_TS is now.

    Raises DownstreamUnavailable, ConfigError where rows of this format cannot be read back.
    """
    if not read_files.can_be_read(manifest):
        raise ConfigError(
            f"{snapshot} holds {manifest.data_format} in the {manifest.layout} layout, which is"
            " not read back; import it, and compare with `binlogd verify`"
        )
    session = await SqlSession.connect(server)
    try:
        if at_ts != NO_TS:
            await session.run(b"SET SESSION tidb_snapshot = '%d'" % at_ts)
        for table in manifest.tables:
            yield await _verdict(session, snapshot, manifest, table)
    except SqlRefused as error:
        raise ConfigError(f"{server} cannot be compared with: {error}") from error
    finally:
        session.close()


async def _verdict(
    session: SqlSession, snapshot: Path, manifest: Manifest, table: TableEntry
) -> Verdict:
    name = sql.text(table.database), sql.text(table.table)
    told = await session.rows(
        b"SELECT LOWER(column_name) FROM information_schema.columns"
        b" WHERE table_schema = %b AND table_name = %b" % name
    )
    theirs = {_str(column) for (column,) in told}
    verdict = Verdict(table.database, table.table, table.rows)
    if not theirs:
        return Verdict(table.database, table.table, table.rows, "is not there")
    compared = [each for each in table.columns if _is_comparable(table, each)]
    missing = [each.name for each in compared if each.name.lower() not in theirs]
    if missing:
        return Verdict(
            table.database, table.table, table.rows, f"has no column {', '.join(missing)}"
        )
    left_out = tuple(each.name for each in table.columns if each not in compared)
    ours = _sums(snapshot, manifest, table, compared)
    rows, counted, total, xor = await _their_sums(session, table, compared)
    reason = ""
    if rows != ours.rows:
        reason = f"has {rows} rows, the snapshot {ours.rows}"
    elif compared and counted != rows:
        reason = "has rows that are too long for the server's max_allowed_packet to be summed up"
    elif compared and (total, xor) != (ours.total, ours.xor):
        reason = "has other values"
    return Verdict(verdict.database, verdict.table, verdict.rows, reason, left_out)


def _str(value: Any) -> str:
    return value.decode() if isinstance(value, bytes) else str(value)


def _is_comparable(table: TableEntry, column: ColumnEntry) -> bool:
    kind = kind_of(column)
    is_narrowed = kind in _INTEGERS and column.arrow_type == "bool"
    is_ambiguous = kind in ("enum", "set") and "" in _LABEL.findall(column.mysql_type)
    is_told = not is_narrowed and not is_ambiguous and not table.losses.get(column.name)
    return kind not in _OWN_PRINT and is_told


def kind_of(column: ColumnEntry) -> str:
    """The name of a MySQL type without its sizes."""
    return re.split(r"[( ]", column.mysql_type)[0]


async def _their_sums(
    session: SqlSession, table: TableEntry, columns: Sequence[ColumnEntry]
) -> tuple[int, int, int, int]:
    name = sql.qualified(table.database, table.table)
    if not columns:
        ((rows,),) = await session.rows(b"SELECT COUNT(*) FROM " + name)
        return int(rows), int(rows), 0, 0
    texts = b", '#', ".join(
        b"IF(%b IS NULL, 'N', %b)"
        % (sql.ident(each.name), hexadecimal(sql.ident(each.name), kind_of(each)))
        for each in columns
    )
    row = b"CRC32(CONCAT(" + texts + b"))"
    ((rows, counted, total, xor),) = await session.rows(
        b"SELECT COUNT(*), COUNT(%b), COALESCE(SUM(%b), 0), BIT_XOR(%b) FROM %b"
        % (row, row, row, name)
    )
    return int(rows), int(counted), int(total), int(xor)


def _sums(
    snapshot: Path, manifest: Manifest, table: TableEntry, columns: Sequence[ColumnEntry]
) -> _Sums:
    places = {column.name: place for place, column in enumerate(table.columns)}
    renders = [(places[each.name], each, _renderer(each)) for each in columns]
    sums = _Sums()
    for file in table.files:
        for batch in read_files.batches(snapshot / file.name, manifest, table):
            texts = [
                [
                    "N" if value is None else render(value)
                    for value in read_files.decoded(batch.column(place), each).to_pylist()
                ]
                for place, each, render in renders
            ]
            if not texts:
                sums.rows += batch.num_rows
            for row in zip(*texts, strict=True):
                sums.add("#".join(row))
    return sums


_Render = Callable[[Any], str]


def _renderer(column: ColumnEntry) -> _Render:
    """A value as the server's expression makes it."""
    kind = kind_of(column)
    if kind in ("enum", "set"):
        labels = [label.replace("''", "'") for label in _LABEL.findall(column.mysql_type)]
        numbers = {label: number for number, label in enumerate(labels)}
        if kind == "enum":
            return lambda label: f"{numbers.get(label, -1) + 1:X}"
        return lambda found: f"{_mask(found, numbers):X}"
    if kind == "bit":
        return lambda value: f"{int(value):X}"
    text = _text_renderer(kind, column.mysql_type)
    return lambda value: text(value).hex().upper()


def _mask(found: str | list[str], numbers: dict[str, int]) -> int:
    labels = found.split(",") if isinstance(found, str) else found
    return sum(1 << numbers[label] for label in labels if label)


def _text_renderer(kind: str, mysql_type: str) -> Callable[[Any], bytes]:
    digits = re.search(r"\((\d)\)", mysql_type)
    fraction = int(digits[1]) if digits else 0
    cut = 19 + (fraction + 1 if fraction else 0)
    texts: dict[str, Callable[[Any], str]] = {
        "year": lambda value: f"{value:04d}",
        "decimal": lambda value: value if isinstance(value, str) else f"{value:f}",
        "date": str,
        "datetime": lambda value: _moment(value)[:cut],
        "timestamp": lambda value: _moment(value)[:cut],
        "time": lambda value: _span(value, fraction),
        **dict.fromkeys(_INTEGERS, lambda value: str(int(value))),
    }
    if kind in texts:
        text = texts[kind]
        return lambda value: text(value).encode()
    return lambda value: value if isinstance(value, bytes) else value.encode()


def _moment(value: Any) -> str:
    if isinstance(value, str):
        return value
    return f"{value:%Y-%m-%d %H:%M:%S.%f}".rjust(26, "0")


def _span(value: Any, fraction: int) -> str:
    return value if isinstance(value, str) else duration_text(value * 1000, fraction)
