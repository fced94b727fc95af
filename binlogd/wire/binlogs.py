"""A serialised `Binlog` field by field: read in any form as Go reads it, and made canonical.

The slow way of `wire/peek.py`, and who makes binlogs. Source: pingcap/tipb
proto/binlog/binlog.proto and gogo/protobuf's generated Unmarshal and Marshal.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, NamedTuple, TypedDict, Unpack

from binlogd.binlog import BinlogType
from binlogd.tso import Tso
from binlogd.wire.fields import BYTES, VARINT, each_field, signed, signed32, uvarint

BINLOG: Mapping[int, tuple[str, int]] = {
    1: ("Tp", VARINT),
    2: ("StartTs", VARINT),
    3: ("CommitTs", VARINT),
    4: ("PrewriteKey", BYTES),
    5: ("PrewriteValue", BYTES),
    6: ("DdlQuery", BYTES),
    7: ("DdlJobId", VARINT),
    8: ("DdlSchemaState", VARINT),
}
"""Names and wire types of its fields, by their numbers."""
_Bytes = bytes | memoryview


class Fields(NamedTuple):
    """A binlog's fields in the order of their numbers, then the unknown ones as they came; of bytes
    None where there are none."""

    tp: int
    start_ts: int
    commit_ts: int
    prewrite_key: _Bytes | None = None
    prewrite_value: _Bytes | None = None
    ddl_query: _Bytes | None = None
    ddl_job_id: int = 0
    ddl_schema_state: int = 0
    unknown: bytes = b""


def fields_of(payload: bytes, cut_from: _Bytes) -> Fields:
    """The fields, those of bytes as slices of `cut_from`, which is the payload or a view of it.
    Raises MalformedBinlog."""
    found: list[Any] = list(Fields(0, 0, 0))
    unknown: list[bytes] = []
    for number, value, begin, end in each_field(payload, "Binlog", BINLOG):
        if number == 0:
            unknown.append(payload[begin:end])
        elif 4 <= number <= 6:
            found[number - 1] = cut_from[value:end]
        else:
            found[number - 1] = signed32(value) if number in (1, 8) else signed(value)
    found[-1] = b"".join(unknown)
    return Fields(*found)


def encode(fields: Fields) -> bytes:
    """The canonical bytes of a binlog."""
    tp, start_ts, commit_ts, key, value, query, ddl_job_id, ddl_schema_state, unknown = fields
    parts: list[_Bytes] = [b"\x08", uvarint(tp), b"\x10", uvarint(start_ts)]
    parts += (b"\x18", uvarint(commit_ts))
    for tag, content in ((b"\x22", key), (b"\x2a", value), (b"\x32", query)):
        if content is not None:
            parts += (tag, uvarint(len(content)), content)
    parts += (b"\x38", uvarint(ddl_job_id), b"\x40", uvarint(ddl_schema_state), unknown)
    return b"".join(parts)


def fake(ts: Tso) -> bytes:
    """A binlog that only moves the watermark: a Rollback with start_ts == commit_ts."""
    return encode(Fields(tp=BinlogType.ROLLBACK, start_ts=ts, commit_ts=ts))


class _Others(TypedDict, total=False):
    """Fields 4 to 8 of a binlog; None leaves one out, b"" writes it empty."""

    prewrite_key: bytes | None
    prewrite_value: bytes | None
    ddl_query: bytes | None
    ddl_job_id: int
    ddl_schema_state: int


def prewrite_binlog(start_ts: Tso, **others: Unpack[_Others]) -> bytes:
    """A canonical Prewrite."""
    return encode(Fields(BinlogType.PREWRITE, start_ts, 0, **others))


def commit_binlog(start_ts: Tso, commit_ts: Tso, **others: Unpack[_Others]) -> bytes:
    """A canonical Commit; TiDB leaves the key and the DDL fields of the Prewrite in it."""
    return encode(Fields(BinlogType.COMMIT, start_ts, commit_ts, **others))


def rollback_binlog(start_ts: Tso, **others: Unpack[_Others]) -> bytes:
    """A canonical Rollback."""
    return encode(Fields(BinlogType.ROLLBACK, start_ts, 0, **others))
