"""Compares a published snapshot with the tables of a live server, by one checksum for each table.

The server sums up what it has: of each row the CRC-32 of its values' texts. The same is computed of
the snapshot's rows, so only three numbers of a table travel. Columns that servers print in their
own way (FLOAT, DOUBLE, JSON), that lost values on their way out, or whose text may mean several
values (an ENUM or SET with an empty label) are left out, by name.

Source for the idea: tidb-tools sync_diff_inspector; `tools/verify` compares two servers alike.
"""

from __future__ import annotations

import re
from collections import Counter
from collections.abc import AsyncIterator, Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import Any

from binlogd.drainer import sql
from binlogd.drainer.mysql.connection import MySqlServer, SqlRefused, SqlSession
from binlogd.errors import ConfigError
from binlogd.snapshot.bases.read_back import mask_of, micros_of, moment_text
from binlogd.snapshot.formats import read_files
from binlogd.snapshot.spec import ColumnEntry, Manifest, TableEntry
from binlogd.tidb.known_tables import Named
from binlogd.tidb.times import duration_text
from binlogd.tools.checksums import INTEGERS, NULL, Checksums, checksums, checksums_of, text_of
from binlogd.tools.verify import shape_of
from binlogd.tso import NO_TS, Tso

_OWN_PRINT = frozenset({"float", "double", "json"})


@dataclass(frozen=True, slots=True)
class Verdict:
    """How a table of the snapshot compares; `reason` is "" when it is equal. `left_out` are columns
    that were not compared."""

    database: str
    table: str
    rows: int
    reason: str = ""
    left_out: tuple[str, ...] = ()
    differences: tuple[str, ...] = ()
    """Some of the rows that differ, and how."""


async def compare(
    server: MySqlServer, at_ts: Tso, snapshot: Path, manifest: Manifest
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
    verdict = partial(Verdict, table.database, table.table, table.rows)
    shape = await shape_of(session, Named(table.database, table.table))
    theirs = {column.name.lower() for column in shape.columns}
    if not theirs:
        return verdict("is not there")
    compared = [each for each in table.columns if _is_comparable(table, each)]
    missing = [each.name for each in compared if each.name.lower() not in theirs]
    if missing:
        return verdict(f"has no column {', '.join(missing)}")
    left_out = tuple(each.name for each in table.columns if each not in compared)
    ours = Checksums(rows=table.rows)
    if compared:
        ours = checksums_of(_texts_of(snapshot, manifest, table, compared))
    name = sql.qualified(table.database, table.table)
    there = await checksums(session, name, [_expression(each) for each in compared])
    reason = ""
    if there.rows != ours.rows:
        reason = f"has {there.rows} rows, the snapshot {ours.rows}"
    elif compared and there.counted != there.rows:
        reason = "has rows that are too long for the server's max_allowed_packet to be summed up"
    elif compared and there != ours:
        reason = "has other values"
    said = await _differing(session, snapshot, manifest, table, compared) if reason else ()
    return verdict(reason, left_out, said)


def _is_comparable(table: TableEntry, column: ColumnEntry) -> bool:
    kind = _kind_of(column)
    is_narrowed = kind in INTEGERS and column.arrow_type == "bool"
    is_ambiguous = kind in ("enum", "set") and "" in _LABEL.findall(column.mysql_type)
    is_kept_whole = not is_narrowed and not is_ambiguous and not table.losses.get(column.name)
    return kind not in _OWN_PRINT and is_kept_whole


# --- rows that differ, by their keys ----------------------------------------------------------

COMPARED_ROWS_MAX = 200_000
"""Of either side; of larger tables no rows are named."""
SHOWN_MAX = 10
SHOWN_CHARS = 40

_Row = tuple[str, ...]


async def _differing(
    session: SqlSession,
    snapshot: Path,
    manifest: Manifest,
    table: TableEntry,
    columns: Sequence[ColumnEntry],
) -> tuple[str, ...]:
    """Sentences about some rows that differ in these columns, and how many there are in all."""
    keys = [each for each in columns if each.name in table.primary_key]
    name = sql.qualified(table.database, table.table)
    ((count,),) = await session.rows(b"SELECT COUNT(*) FROM " + name)
    if not columns or max(int(count), table.rows) > COMPARED_ROWS_MAX:
        return (f"which rows differ is told of tables with up to {COMPARED_ROWS_MAX} rows only",)
    texts = b", ".join(map(_expression, columns))
    answer = await session.rows(b"SELECT " + texts + b" FROM " + name)
    theirs = [
        tuple(each.decode() if isinstance(each, bytes) else str(each) for each in row)
        for row in answer
    ]
    ours = _texts_of(snapshot, manifest, table, columns)
    if table.primary_key and len(keys) == len(table.primary_key):
        found = _by_key(ours, theirs, columns, keys)
    else:
        found = _by_value(ours, theirs, columns)
    more = len(found) - SHOWN_MAX
    return (*found[:SHOWN_MAX], *([f"and {more} more"] if more > 0 else []))


def _by_key(
    ours: Iterable[_Row],
    theirs: Iterable[_Row],
    columns: Sequence[ColumnEntry],
    keys: Sequence[ColumnEntry],
) -> list[str]:
    places = [columns.index(each) for each in keys]

    def key(row: _Row) -> _Row:
        return tuple(row[place] for place in places)

    held, there = {key(row): row for row in ours}, {key(row): row for row in theirs}
    found = []
    for each in sorted(held.keys() | there.keys()):
        ours_now, theirs_now = held.get(each), there.get(each)
        if ours_now == theirs_now:
            continue
        label = _shown(keys, each)
        if ours_now is None:
            found.append(f"{label}: only the server has it")
        elif theirs_now is None:
            found.append(f"{label}: only the snapshot has it")
        else:
            found.append(f"{label}: {_changed(columns, ours_now, theirs_now)}")
    return found


def _changed(columns: Sequence[ColumnEntry], ours: _Row, theirs: _Row) -> str:
    return "; ".join(
        f"{column.name} is {_value(column, there)} there, {_value(column, here)} in the snapshot"
        for column, here, there in zip(columns, ours, theirs, strict=True)
        if here != there
    )


def _by_value(
    ours: Iterable[_Row], theirs: Iterable[_Row], columns: Sequence[ColumnEntry]
) -> list[str]:
    """Of a table without a primary key: rows that one side has more often."""
    held, there = Counter(ours), Counter(theirs)
    here_only = [f"{_shown(columns, row)}: only the snapshot has it" for row in held - there]
    there_only = [f"{_shown(columns, row)}: only the server has it" for row in there - held]
    return sorted(here_only) + sorted(there_only)


def _shown(columns: Sequence[ColumnEntry], row: _Row) -> str:
    pairs = zip(columns, row, strict=True)
    return ", ".join(f"{column.name}={_value(column, text)}" for column, text in pairs)


def _value(column: ColumnEntry, text: str) -> str:
    """What a text of `_texts_of` stands for, as people read it."""
    if text == NULL:
        return "NULL"
    kind = _kind_of(column)
    if kind in ("bit", "enum", "set"):
        return str(int(text, 16))
    content = bytes.fromhex(text)
    if kind in ("binary", "varbinary") or kind.endswith("blob"):
        return f"x'{_cut(content.hex())}'"
    is_text = kind in ("char", "varchar") or kind.endswith("text")
    return _cut(repr(content.decode(errors="replace")) if is_text else content.decode())


def _cut(text: str) -> str:
    return text if len(text) <= SHOWN_CHARS else f"{text[:SHOWN_CHARS]}…"


# --- rows as the texts that a server is asked for ---------------------------------------------

_LABEL = re.compile(r"'((?:[^']|'')*)'")


def _kind_of(column: ColumnEntry) -> str:
    """The name of a MySQL type without its sizes."""
    return re.split(r"[( ]", column.mysql_type)[0]


def _expression(column: ColumnEntry) -> bytes:
    """What a server is asked for: the text of a column."""
    return text_of(column.name, _kind_of(column))


def _texts_of(
    snapshot: Path, manifest: Manifest, table: TableEntry, columns: Sequence[ColumnEntry]
) -> Iterator[tuple[str, ...]]:
    """The texts of these columns, row by row. Raises as `read_files.batches`."""
    places = {column.name: place for place, column in enumerate(table.columns)}
    renders = [(places[each.name], each, _renderer(each)) for each in columns]
    for file in table.files:
        for batch in read_files.batches(snapshot / file.name, manifest, table):
            texts = [
                [
                    NULL if value is None else render(value)
                    for value in read_files.decoded(batch.column(place), each).to_pylist()
                ]
                for place, each, render in renders
            ]
            yield from zip(*texts, strict=True)


def _renderer(column: ColumnEntry) -> Callable[[Any], str]:
    """A value as the server's expression makes it."""
    kind = _kind_of(column)
    if kind in ("enum", "set"):
        labels = [label.replace("''", "'") for label in _LABEL.findall(column.mysql_type)]
        numbers = {label: number for number, label in enumerate(labels, 1)}
        if kind == "enum":
            return lambda label: f"{numbers.get(label, 0):X}"
        return lambda found: f"{mask_of(found, numbers):X}"
    if kind == "bit":
        return lambda value: f"{int(value):X}"
    text = _text_renderer(kind, column.mysql_type)
    return lambda value: text(value).hex().upper()


def _text_renderer(kind: str, mysql_type: str) -> Callable[[Any], bytes]:
    digits = re.search(r"\((\d)\)", mysql_type)
    fraction = int(digits[1]) if digits else 0
    texts: dict[str, Callable[[Any], str]] = {
        **dict.fromkeys(INTEGERS, lambda value: str(int(value))),
        "year": lambda value: f"{value:04d}",
        "decimal": lambda value: value if isinstance(value, str) else f"{value:f}",
        "date": str,
        "datetime": lambda value: moment_text(value, fraction),
        "timestamp": lambda value: moment_text(value, fraction),
        "time": lambda value: _span(value, fraction),
    }
    if kind in texts:
        text = texts[kind]
        return lambda value: text(value).encode()
    return lambda value: value if isinstance(value, bytes) else value.encode()


def _span(value: Any, fraction: int) -> str:
    return value if isinstance(value, str) else duration_text(micros_of(value) * 1000, fraction)
