"""The few fields of a serialised `Binlog` that a Pump needs, read and rewritten by slicing.

Invariant. Every answer equals what the generated Go decoder and encoder of tipb would give: the
same value, or `MalformedBinlog` with the same words. Canonical bytes (of `head_and_canonical`) are
what lies on disk: fields ascending, 1, 2, 3, 7 and 8 always there, unknown fields at the end.
Why it holds. A fast path accepts only bytes that are canonical already, and leaves everything else
to the slow one (`wire/binlogs.py`), which follows the Go decoder step by step.

Source: pingcap/tipb proto/binlog/binlog.proto and gogo/protobuf's generated Unmarshal and Marshal.
"""

from __future__ import annotations

import re
from typing import TYPE_CHECKING, Final, NamedTuple

from binlogd.binlog import Payload
from binlogd.errors import MalformedBinlog
from binlogd.wire.binlogs import encode, fields_of
from binlogd.wire.fields import end_of, int64

if TYPE_CHECKING:
    from mypy_extensions import i64

NO_DDL: Final = b"\x38\x00\x40\x00"
"""How the canonical form ends of all binlogs but those of a DDL."""


class Head(NamedTuple):
    """What a Pump wants to know about a payload. `ddl_job_id` > 0 means DDL."""

    tp: int
    start_ts: int
    commit_ts: int
    ddl_job_id: int


class Body(NamedTuple):
    """What a Drainer wants to know about a joined payload; absent fields are empty or 0."""

    prewrite_value: bytes
    ddl_query: bytes
    ddl_job_id: int
    ddl_schema_state: int

    @property
    def query(self) -> str:
        """The text of the DDL."""
        return self.ddl_query.decode("utf-8", "surrogateescape")

    @property
    def is_setval(self) -> bool:
        """Whether it is no DDL but the record of a sequence's next batch, whose job never is."""
        return self.ddl_query[:64].lstrip().lower().startswith(b"select setval")


def peek(payload: bytes) -> Head:
    """The head of a payload; b"" is a Prewrite with all zero. Raises MalformedBinlog."""
    marks = marks_of(payload)
    if marks is not None:
        return _head(marks)
    fields = fields_of(payload, payload)
    return Head(fields.tp, fields.start_ts, fields.commit_ts, fields.ddl_job_id)


def head_and_canonical(payload: bytes) -> tuple[Head, bytes]:
    """`peek`, and the payload as a Pump stores it, itself if it is so already. Raises
    MalformedBinlog."""
    marks = marks_of(payload)
    if marks is not None:
        return _head(marks), payload
    fields = fields_of(payload, memoryview(payload))  # which nothing is copied out of
    head = Head(fields.tp, fields.start_ts, fields.commit_ts, fields.ddl_job_id)
    rebuilt = encode(fields)
    return head, payload if rebuilt == payload else rebuilt


def plain_numbers(payload: bytes) -> tuple[int, int, int] | None:
    """Type and timestamps of a canonical payload that is no DDL; None for any other one. Hot."""
    try:
        if payload[0] != 0x08 or payload[1] > 0x7F or payload[2] != 0x10:
            return None
        start_ts, at = _number(payload, 3)
        if start_ts < 0 or payload[at] != 0x18:
            return None
        commit_ts, at = _number(payload, at + 1)
    except IndexError:
        return None
    if commit_ts < 0 or not plain_value_at(payload, at):
        return None
    return payload[1], start_ts, commit_ts


def _number(payload: bytes, at: i64) -> tuple[i64, i64]:
    """An int64 at `at` and where it ends; -1 for one below zero, or with a byte too many. Raises
    IndexError."""
    byte: i64 = payload[at]
    at += 1
    value: i64 = byte & 0x7F
    shift: i64 = 7
    while byte > 0x7F and shift < 63:
        byte = payload[at]
        at += 1
        value |= (byte & 0x7F) << shift
        shift += 7
    is_minimal = byte <= 0x7F and (byte > 0 or shift == 7)
    return (value if is_minimal else -1), at


def plain_value_at(payload: bytes, at: i64) -> i64:
    """Where fields 5 to 8 begin, if what stands at `at` is the rest of a canonical payload that is
    no DDL; 0 otherwise."""
    try:
        if payload[at] == 0x22:
            _, at = _content(payload, at + 1)
        value_at: i64 = at
        if payload[at] == 0x2A:
            _, at = _content(payload, at + 1)
        if payload[at] == 0x32:
            _, at = _content(payload, at + 1)
    except (IndexError, MalformedBinlog):
        return 0
    return value_at if payload[at:] == NO_DDL else 0


def prewrite_key(payload: bytes) -> bytes:
    """The transaction's primary key, raw; b"" if there is none. Raises MalformedBinlog."""
    marks = marks_of(payload)
    if marks is not None:
        return payload[marks.key_at : marks.value_at]
    return bytes(fields_of(payload, payload).prewrite_key or b"")


def body(payload: Payload) -> Body:
    """Rows and DDL of a payload. Raises MalformedBinlog."""
    payload = bytes(payload)
    marks = marks_of(payload)
    if marks is not None:
        return Body(
            payload[marks.rows_at : marks.rows_end],
            payload[marks.query_at : marks.query_end],
            int64(marks.ddl_job_id),
            payload[-1],
        )
    fields = fields_of(payload, payload)
    return Body(
        bytes(fields.prewrite_value or b""),
        bytes(fields.ddl_query or b""),
        fields.ddl_job_id,
        fields.ddl_schema_state,
    )


def ddl(payload: Payload) -> Body | None:
    """The body of a payload with a DDL; None where there are rows. Raises MalformedBinlog. Hot."""
    if not isinstance(payload, bytes) or payload.endswith(NO_DDL):
        return None
    found = body(payload)
    return found if found.ddl_job_id > 0 else None


# --- the fast path: bytes that are canonical already -------------------------------------

_MINIMAL = rb"([\x80-\xff]{0,8}[\x01-\x7f]|\x00|[\x80-\xff]{9}\x01)"
TIMESTAMPS = re.compile(rb"\x08([\x00-\x7f])\x10" + _MINIMAL + rb"\x18" + _MINIMAL)
_DDL_NUMBERS = re.compile(rb"\x38" + _MINIMAL + rb"\x40[\x00-\x7f]")


class FieldMarks(NamedTuple):
    """Where things are; the numbers are still varints, because few who look want them."""

    head: re.Match[bytes]
    key_at: int
    value_at: int
    """Where fields 5 to 8 begin, and the key ends."""
    rows_at: int
    rows_end: int
    query_at: int
    query_end: int
    ddl_job_id: bytes


def _head(marks: FieldMarks) -> Head:
    tp, start_ts, commit_ts = marks.head.groups()
    return Head(tp[0], int64(start_ts), int64(commit_ts), int64(marks.ddl_job_id))


def marks_of(payload: bytes) -> FieldMarks | None:
    """Where the fields of a canonical payload are; None for any other payload. Hot: no loop."""
    head = TIMESTAMPS.match(payload)
    if head is None:
        return None
    key_at = value_at = head.end()
    try:
        if payload[key_at] == 0x22:
            key_at, value_at = _content(payload, key_at + 1)
        rows_at = rows_end = value_at
        if payload[value_at] == 0x2A:
            rows_at, rows_end = _content(payload, value_at + 1)
        query_at = query_end = rows_end
        if payload[rows_end] == 0x32:
            query_at, query_end = _content(payload, rows_end + 1)
    except (IndexError, MalformedBinlog):
        return None
    if payload[query_end:] == NO_DDL:
        job_id = b"\0"
    else:
        tail = _DDL_NUMBERS.fullmatch(payload, query_end)
        if tail is None:
            return None
        job_id = tail[1]
    return FieldMarks(head, key_at, value_at, rows_at, rows_end, query_at, query_end, job_id)


def _content(payload: bytes, at: i64) -> tuple[i64, i64]:
    """Begin and end of the bytes whose length is at `at`. Raises MalformedBinlog if that is not
    canonical, or too large to go on with, IndexError."""
    size: i64 = payload[at]
    if size < 0x80:
        return at + 1, at + 1 + size
    size, begin = _number(payload, at)
    if size < 0:
        raise MalformedBinlog("a length below zero, or with a byte too many")
    return begin, end_of(payload, begin, size)
