"""Keys of TiKV in which TiDB keeps its schema, and those of rows.

What TiDB knows of itself lies under `m`: strings, hashes and lists, each with a name, all of them
in memcomparable form, so that the fields of a hash are one range of keys. PD cuts regions in
another form of the same keys: the whole key made memcomparable once more.

Source: pingcap/tidb structure/type.go, meta/meta.go, tablecodec/tablecodec.go; util/codec/bytes.go.
"""

from __future__ import annotations

import re
from typing import NamedTuple

from binlogd.errors import Corrupt, CorruptRow
from binlogd.tidb.datum import memcomparable, read_memcomparable

DATABASES = b"DBs"
HISTORY = b"DDLJobHistory"
SCHEMA_VERSION = b"SchemaVersionKey"

_PREFIX = b"m"
_KIND_BYTES = 8
_STRING, _FIELD = (bytes(7) + kind for kind in (b"s", b"h"))
_TABLE_FIELD = re.compile(rb"Table:([0-9]{1,19})")


class KeyRange(NamedTuple):
    """Keys in [begin, end)."""

    begin: bytes
    end: bytes


def string_key(name: bytes) -> bytes:
    """Where a string is."""
    return _PREFIX + memcomparable(name) + _STRING


def hash_key(name: bytes, field: bytes) -> bytes:
    """Where a field of a hash is."""
    return _PREFIX + memcomparable(name) + _FIELD + memcomparable(field)


def hash_range(name: bytes) -> KeyRange:
    """All fields of a hash, in the order of the fields."""
    prefix = _PREFIX + memcomparable(name) + _FIELD
    return KeyRange(prefix, after_prefix(prefix))


def database_name(database_id: int) -> bytes:
    """The hash of a database's tables; also its field in `DBs`."""
    return b"DB:%d" % database_id


def table_id_of(field: bytes) -> int | None:
    """The table of a field; None: it is a counter or the like."""
    found = _TABLE_FIELD.fullmatch(field)
    return int(found[1]) if found else None


def job_key(job_id: int) -> bytes:
    """Where a finished DDL job is."""
    return hash_key(HISTORY, job_id.to_bytes(8, "big"))


def job_id_of(field: bytes) -> int:
    """The job of a field of the history. Raises Corrupt."""
    if len(field) != 8:
        raise Corrupt(f"the history of DDL jobs has a field of {len(field)} bytes: {field[:40]!r}")
    return int.from_bytes(field, "big")


def field_of(key: bytes) -> tuple[bytes, bytes]:
    """The name and field of a hash's key. Raises Corrupt."""
    try:
        if key[:1] != _PREFIX:
            raise CorruptRow("it does not begin with m")
        name, at = read_memcomparable(key, 1)
        if key[at : at + _KIND_BYTES] != _FIELD:
            raise CorruptRow("it is of no hash")
        field, end = read_memcomparable(key, at + _KIND_BYTES)
        if end != len(key):
            raise CorruptRow("something is behind its field")
    except (CorruptRow, IndexError) as error:
        raise Corrupt(f"key {key.hex()} is no field of TiDB's schema: {error}") from error
    return name, field


def after_prefix(prefix: bytes) -> bytes:
    """The first key behind all that begin with `prefix`; empty: there is none."""
    kept = prefix.rstrip(b"\xff")
    return kept[:-1] + bytes((kept[-1] + 1,)) if kept else b""


def pd_key(key: bytes) -> bytes:
    """A key in the form in which PD cuts regions; empty stays empty, which is no bound."""
    return memcomparable(key) if key else b""


def key_of_pd(bound: bytes) -> bytes:
    """The key of a region's bound. Raises Corrupt."""
    if not bound:
        return b""
    try:
        key, end = read_memcomparable(bound, 0)
        if end != len(bound):
            raise CorruptRow(f"{len(bound) - end} bytes are behind it")
    except (CorruptRow, IndexError) as error:
        raise Corrupt(f"{bound.hex()} is no bound of a region: {error}") from error
    return key
