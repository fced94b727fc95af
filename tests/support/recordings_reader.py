"""Recordings of a real TiDB: what it sent to its Pumps, its DDL history, and what its tables held.

A recording is a directory of `binlogs.rec.gz` (per request, little-endian: u64 arrival in
microseconds since 1970, u32 index of the Pump, u32 length, then the payload),
`ddl_history.json.gz` (the answer of `/ddl/history` at the end), `expected.jsonl.gz` (the tables at
the end, one to a line) and `info.json`.

Two values are equal when they mean the same (`canonical_value`): numbers by value (FLOAT by its
32 bits), DECIMAL by its digits, BIT, ENUM and SET by number, binary types by bytes, text by
characters, JSON by value, times by their text (TIMESTAMP in UTC). Rows are compared as multisets.
The same rules gave the digests of large tables, so they cannot be changed here.
"""

from __future__ import annotations

import gzip
import hashlib
import heapq
import json
import re
import struct
from collections import Counter
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass
from decimal import Decimal
from pathlib import Path
from typing import Any, NamedTuple

import pymysql
import pymysql.connections

from binlogd.binlog import CommittedBinlog
from binlogd.tso import Tso
from tests.support.tried import tried

RECORDINGS = Path(__file__).parents[1] / "recordings"

IN_DOUBT = {
    "race": {"fahr-plan.teile": 1},
    "windows": {"part.l_keyed": 2, "part.r_plain": 20, "part.r_keyed": 8},
}
"""Rows that were committed while a DDL of their partition took its last step."""

INTEGERS = frozenset({"tinyint", "smallint", "mediumint", "int", "bigint", "year"})
BYTES = frozenset({"binary", "varbinary", "tinyblob", "blob", "mediumblob", "longblob", "bit"})
SYSTEM_SCHEMAS = (
    "mysql",
    "information_schema",
    "performance_schema",
    "sys",
    "tidb_binlog",
    "metrics_schema",
    "inspection_schema",
)
SHOWN_ROWS_MAX = 10
RECORD_HEAD = struct.Struct("<QII")

Canonical = int | float | str | None
Row = tuple[Canonical, ...]


# --- what TiDB sent ----------------------------------------------------------------------


class Recorded(NamedTuple):
    """One WriteBinlog request."""

    arrival_us: int
    pump: int
    payload: bytes


def records(directory: Path) -> Iterator[Recorded]:
    """All requests over all Pumps in the order of their arrival."""
    _say_whose(directory)
    with gzip.open(directory / "binlogs.rec.gz", "rb") as stream:
        while head := stream.read(RECORD_HEAD.size):
            arrival_us, pump, size = RECORD_HEAD.unpack(head)
            payload = stream.read(size)
            assert len(payload) == size, f"{directory}: the last record is cut"
            yield Recorded(arrival_us, pump, payload)


def committed(directory: Path) -> Iterator[CommittedBinlog]:
    """Commits joined with their prewrites, in commit_ts order; no Pump needed.

    Each is yielded as soon as no open prewrite can come before it, so that a recording of large
    transactions is not held in memory twice.
    """
    opened: dict[int, bytes] = {}
    ready: list[tuple[int, int, bytes]] = []
    for record in records(directory):
        kind, start_ts, commit_ts = _head(record.payload)
        if kind == 0:
            opened[start_ts] = record.payload
            continue
        prewrite = opened.pop(start_ts)
        if kind == 1:
            heapq.heappush(ready, (commit_ts, start_ts, _joined(prewrite, record.payload)))
        # whoever is open commits later than everything that was seen when it was opened, at least
        # later than its own start_ts; with nothing open, everything seen is complete
        floor = min(opened, default=None)
        while ready and (floor is None or ready[0][0] < floor):
            yield _popped(ready)
    while ready:
        yield _popped(ready)


def _popped(ready: list[tuple[int, int, bytes]]) -> CommittedBinlog:
    commit_ts, start_ts, payload = heapq.heappop(ready)
    return CommittedBinlog(Tso(start_ts), Tso(commit_ts), payload)


def history(directory: Path) -> bytes:
    """The DDL history, word for word as `/ddl/history` served it at the end."""
    _say_whose(directory)
    return gzip.decompress((directory / "ddl_history.json.gz").read_bytes())


def info(directory: Path) -> dict[str, Any]:
    """Versions, cluster id, first and last TSO, counts."""
    answer = json.loads((directory / "info.json").read_text())
    assert isinstance(answer, dict)
    return answer


def _say_whose(directory: Path) -> None:
    if directory.parent != RECORDINGS:
        return  # what a test wrote in the same form
    whose = str(info(directory)["source"]).removeprefix("recorded from a TiDB ").partition(",")[0]
    tried("TiDB, as recorded", whose.replace(" cluster", ""))


def _uvarint(data: bytes, at: int) -> tuple[int, int]:
    value = shift = 0
    while True:  # ends at the first byte below 0x80
        byte = data[at]
        at += 1
        value |= (byte & 0x7F) << shift
        if byte < 0x80:
            return value, at
        shift += 7


def _fields(payload: bytes) -> Iterator[tuple[int, int | bytes, bytes]]:
    """(number, value, the whole field as it stands) of each field."""
    at = 0
    while at < len(payload):
        begin = at
        tag, at = _uvarint(payload, at)
        value, at = _uvarint(payload, at)
        if tag & 7 == 2:
            at += value
            yield tag >> 3, payload[at - value : at], payload[begin:at]
        else:
            assert tag & 7 == 0, f"wire type {tag & 7}"
            yield tag >> 3, value, payload[begin:at]


def _head(payload: bytes) -> tuple[int, int, int]:
    scalars = {number: value for number, value, _ in _fields(payload) if isinstance(value, int)}
    return scalars.get(1, 0), scalars.get(2, 0), scalars.get(3, 0)


def _joined(prewrite: bytes, commit: bytes) -> bytes:
    """The commit, with prewrite_value and the ddl_* fields of the prewrite."""
    fields = {number: raw for number, _, raw in _fields(commit)}
    fields.update((number, raw) for number, _, raw in _fields(prewrite) if number >= 5)
    return b"".join(fields[number] for number in sorted(fields))


# --- what the tables held ----------------------------------------------------------------


@dataclass(frozen=True, slots=True)
class Column:
    """A column as information_schema.columns of TiDB described it."""

    name: str
    type: str
    data_type: str


@dataclass(frozen=True, slots=True)
class Table:
    """A table, view or sequence at the end of a recording.

    `rows` holds canonical rows; None where the recording kept only count, digest and first rows.
    """

    db: str
    name: str
    kind: str
    columns: tuple[Column, ...]
    rows: tuple[Row, ...] | None
    count: int
    digest: str
    first: tuple[Row, ...]

    @property
    def label(self) -> str:
        return f"{self.db}.{self.name}"


@dataclass(frozen=True, slots=True)
class Difference:
    """One way in which a server does not hold what was recorded."""

    table: str
    text: str

    def __str__(self) -> str:
        return f"{self.table}: {self.text}"


def expected(directory: Path) -> Iterator[Table]:
    """Every table, view and sequence of the user schemas at the end."""
    with gzip.open(directory / "expected.jsonl.gz", "rt", encoding="utf-8") as stream:
        for line in stream:
            yield _table(json.loads(line))


def _table(line: dict[str, Any]) -> Table:
    columns = tuple(
        Column(column["name"], column["type"], column["data_type"]) for column in line["columns"]
    )
    readers = tuple(canonical_value(column) for column in columns)

    def canonical(row: Sequence[Any]) -> Row:
        return tuple(read(value) for read, value in zip(readers, row, strict=True))

    rows = tuple(canonical(row) for row in line["rows"]) if "rows" in line else None
    return Table(
        db=line["db"],
        name=line["table"],
        kind=line["kind"],
        columns=columns,
        rows=rows,
        count=line["count"] if rows is None else len(rows),
        digest=line["digest"] if rows is None else "",
        first=tuple(canonical(row) for row in line["first"]) if rows is None else rows[:100],
    )


def canonical_value(column: Column) -> Callable[[Any], Canonical]:
    """A function from a value in the notation of `expected.jsonl.gz` to its canonical form."""
    kind = column.data_type
    read: Callable[[Any], Canonical]
    if kind in INTEGERS:
        read = int
    elif kind == "float":
        read = _float32
    elif kind == "double":
        read = _number
    elif kind == "decimal":
        read = _decimal
    elif kind == "bit":
        read = _bits
    elif kind in ("enum", "set"):
        read = _member_of(kind)
    elif kind == "json":
        read = _json_text
    else:
        read = _text
    return lambda value: None if value is None else read(value)


def _float32(value: str) -> Canonical:
    return _number(struct.unpack("<f", struct.pack("<f", float(value)))[0])


def _number(value: str | float) -> Canonical:
    number = float(value)
    return int(number) if number.is_integer() else number


def _decimal(text: str) -> Canonical:
    digits = text.lstrip("-0")  # ZEROFILL pads
    if not digits or digits.startswith("."):
        digits = "0" + digits
    is_zero = not digits.strip("0.")
    return digits if is_zero or not text.startswith("-") else "-" + digits


def _bits(value: dict[str, str]) -> Canonical:
    return int(value["hex"] or "0", 16)


def _member_of(kind: str) -> Callable[[dict[str, Any]], Canonical]:
    return lambda value: int(value[kind])


def _text(value: str | dict[str, str]) -> Canonical:
    return "hex:" + value["hex"] if isinstance(value, dict) else value


def _json_text(text: str | dict[str, str]) -> Canonical:
    if isinstance(text, dict):
        return "no JSON: hex " + text["hex"]
    try:
        return json.dumps(_json_value(json.loads(text)), sort_keys=True)
    except ValueError:  # a downstream without a JSON type holds any text
        return "no JSON: " + text


def _json_value(value: Any) -> Any:
    if isinstance(value, float) and value.is_integer():
        return int(Decimal(repr(value)))  # 1e20 is printed with all its digits
    if isinstance(value, list):
        return [_json_value(item) for item in value]
    if isinstance(value, dict):
        return {key: _json_value(item) for key, item in value.items()}
    return value


# --- a server beside a recording ---------------------------------------------------------


def connect(host: str, port: int, user: str = "root", password: str = "") -> Any:
    """A PyMySQL connection as `compare` needs it: bytes as they are, times in UTC."""
    connection = pymysql.connect(
        host=host,
        port=port,
        user=user,
        password=password,
        charset="utf8mb4",
        use_unicode=False,
        conv={},
        autocommit=True,
        ssl_disabled=True,  # or the authorities of the whole world are read for each connection
    )
    _query(connection, "SET time_zone = '+00:00', sql_mode = ''")
    return connection


def compare(
    directory: Path,
    connection: Any,
    skip: Iterable[str] = (),
    upstream_names: Mapping[str, str] | None = None,
) -> list[Difference]:
    """How the tables of a server differ from the recording; empty when they are the same.

    `upstream_names` gives upstream's name for a schema that is called otherwise on the server.

    `skip` names schemas (`db`) or tables (`db.table`, with `*` for any characters). Sequences are
    not compared. Surplus tables in recorded schemas are differences as well.
    """
    is_skipped = skipping(skip)
    there = _places(connection, upstream_names or {})
    found: list[Difference] = []
    known: set[str] = set()
    schemas: set[str] = set()
    for table in expected(directory):
        known.add(table.label.lower())
        if is_skipped(table.label) or table.kind == "sequence":
            continue
        schemas.add(table.db.lower())
        place = there.get(table.label.lower())
        if place is None:
            found.append(Difference(table.label, f"the {table.kind} is missing"))
        else:
            found += _compare_table(table, connection, *place)
    for label, (_, _, kind) in sorted(there.items()):
        is_ours = label.partition(".")[0] in schemas
        is_surplus = is_ours and label not in known and kind != "sequence"
        if is_surplus and not is_skipped(label):
            found.append(Difference(label, "exists, but not upstream"))
    return found


def skipping(skip: Iterable[str]) -> Callable[[str], bool]:
    """Whether a `db.table` is one of these names (`db`, or `db.table` with `*`)."""
    patterns = [
        re.compile(re.escape(name.lower()).replace(r"\*", ".*") + ("" if "." in name else r"\..*"))
        for name in skip
    ]
    return lambda label: any(pattern.fullmatch(label.lower()) for pattern in patterns)


def _query(connection: Any, sql: str) -> list[tuple[bytes | None, ...]]:
    with connection.cursor() as cursor:
        cursor.execute(sql)
        return list(cursor.fetchall())


def _places(connection: Any, upstream_names: Mapping[str, str]) -> dict[str, tuple[str, str, str]]:
    system = ", ".join(f"'{name}'" for name in SYSTEM_SCHEMAS)
    rows = _query(
        connection,
        "SELECT table_schema, table_name, table_type FROM information_schema.tables"
        f" WHERE table_schema NOT IN ({system})",
    )
    kinds = {b"VIEW": "view", b"SEQUENCE": "sequence"}
    places = {}
    for db, name, kind in rows:
        assert db is not None
        assert name is not None
        place = db.decode(), name.decode(), kinds.get(kind or b"", "table")
        database = upstream_names.get(place[0], place[0])
        places[f"{database}.{place[1]}".lower()] = place
    return places


def _compare_table(
    table: Table, connection: Any, db: str, name: str, kind: str
) -> list[Difference]:
    if kind != table.kind:
        return [Difference(table.label, f"is a {kind} instead of a {table.kind}")]
    rows = _query(
        connection,
        "SELECT column_name FROM information_schema.columns"
        f" WHERE table_schema = {_quoted(db)} AND table_name = {_quoted(name)}",
    )
    there = {column.decode().lower() for (column,) in rows if column is not None}
    wanted = {column.name.lower() for column in table.columns}
    if there != wanted:
        text = f"columns missing {sorted(wanted - there)}, too many {sorted(there - wanted)}"
        return [Difference(table.label, text)]
    try:
        return compare_rows(table, _rows(table, connection, db, name))
    except (ValueError, OverflowError, pymysql.err.MySQLError) as error:
        return [Difference(table.label, f"cannot be read as it should be: {error}")]


def _rows(table: Table, connection: Any, db: str, name: str) -> Counter[Row]:
    wanted, readers = [], []
    for column in table.columns:
        wanted.append(_expression(column))
        readers.append(_reader(column))
    sql = f"SELECT {', '.join(wanted)} FROM {_ident(db)}.{_ident(name)}"
    return Counter(
        tuple(read(value) for read, value in zip(readers, row, strict=True))
        for row in _query(connection, sql)
    )


def _expression(column: Column) -> str:
    name = _ident(column.name)
    if column.data_type == "float":
        return f"CAST({name} AS DOUBLE)"  # as itself it is printed with six digits
    if column.data_type in ("enum", "set"):
        return f"CAST({name} AS UNSIGNED)"
    return name


def _reader(column: Column) -> Callable[[bytes | None], Canonical]:
    canonical = canonical_value(column)

    def read(raw: bytes | None) -> Canonical:
        if raw is None:
            return None
        if column.data_type in BYTES:
            return canonical({"hex": raw.hex()})
        if column.data_type in ("enum", "set"):
            return int(raw)
        with suppress(UnicodeDecodeError):
            return canonical(raw.decode())
        return canonical({"hex": raw.hex()})

    return read


def compare_rows(table: Table, found: Counter[Row]) -> list[Difference]:
    """How canonical rows differ from those of a recorded table."""
    if table.rows is None:
        lines = sorted(json.dumps(row) + "\n" for row in found.elements())
        if hashlib.sha256("".join(lines).encode()).hexdigest() == table.digest:
            return []
        text = f"digest differs, {len(lines)} rows instead of {table.count}"
        missing, surplus = Counter(table.first) - found, Counter[Row]()
    else:
        wanted = Counter(table.rows)
        missing, surplus = wanted - found, found - wanted
        if not missing and not surplus:
            return []
        text = f"{missing.total()} of {table.count} rows missing, {surplus.total()} too many"
    return [
        Difference(table.label, text),
        *(Difference(table.label, f"missing {_shown(table, row)}") for row in _few(missing)),
        *(Difference(table.label, f"surplus {_shown(table, row)}") for row in _few(surplus)),
    ]


def _few(rows: Counter[Row]) -> list[Row]:
    return sorted(rows.elements(), key=json.dumps)[:SHOWN_ROWS_MAX]


def _shown(table: Table, row: Row) -> str:
    return ", ".join(
        f"{column.name}={json.dumps(value, ensure_ascii=False)[:120]}"
        for column, value in zip(table.columns, row, strict=True)
    )


def _ident(name: str) -> str:
    return "`" + name.replace("`", "``") + "`"


def _quoted(text: str) -> str:
    return "'" + text.replace("\\", "\\\\").replace("'", "''") + "'"
