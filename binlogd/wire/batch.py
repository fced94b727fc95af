"""The messages of `binlogd.BatchWriter`, encoded and decoded by slicing.

Source: `batch.proto` beside this file.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import NamedTuple

from binlogd.errors import MalformedBinlog
from binlogd.wire.fields import (
    BYTES,
    VARINT,
    each_field,
    end_of,
    field_at,
    last_fields,
    read_uvarint,
    uvarint,
)

WRITE_BATCH = "/binlogd.BatchWriter/Write"
BINLOGS_MAX = 65_536
"""Of one batch: in memory, a small binlog is many times as large as in its message."""

_BATCH: Mapping[int, tuple[str, int]] = {
    1: ("Number", VARINT),
    2: ("ClusterID", VARINT),
    3: ("Payloads", BYTES),
}
_ANSWER: Mapping[int, tuple[str, int]] = {1: ("Number", VARINT), 2: ("Refusals", BYTES)}
_REFUSAL: Mapping[int, tuple[str, int]] = {
    1: ("Position", VARINT),
    2: ("Status", VARINT),
    3: ("Message", BYTES),
}
_PAYLOAD_TAG = 0x1A


class Batch(NamedTuple):
    """WriteBatch."""

    number: int
    cluster_id: int
    payloads: Sequence[bytes]


class Refusal(NamedTuple):
    """Why the binlog at a position of its batch was not taken."""

    position: int
    status: int
    message: str


class BatchAnswer(NamedTuple):
    """WriteBatchAnswer; what is not refused is durable."""

    number: int
    refusals: Sequence[Refusal]


def encode_batch(batch: Batch) -> bytes:
    """WriteBatch."""
    parts = [_varint(b"\x08", batch.number), _varint(b"\x10", batch.cluster_id)]
    for payload in batch.payloads:
        parts += (b"\x1a", uvarint(len(payload)), payload)
    return b"".join(parts)


def decode_batch(message: bytes) -> Batch:
    """WriteBatch. Raises MalformedBinlog."""
    number = cluster_id = at = 0
    payloads: list[bytes] = []
    end = len(message)
    while at < end and len(payloads) <= BINLOGS_MAX:
        if message[at] == _PAYLOAD_TAG:
            size, begin = read_uvarint(message, at + 1)
            at = end_of(message, begin, size)
            payloads.append(message[begin:at])
            continue
        field = field_at(message, at, "WriteBatch", _BATCH)
        if field.number == 1:
            number = field.value
        elif field.number == 2:
            cluster_id = field.value
        elif field.number == 3:  # its tag written in an unusual way
            payloads.append(message[field.value : field.end])
        at = field.end
    if len(payloads) > BINLOGS_MAX:
        raise MalformedBinlog(f"a batch has at most {BINLOGS_MAX} binlogs")
    return Batch(number, cluster_id, payloads)


def encode_answer(answer: BatchAnswer) -> bytes:
    """WriteBatchAnswer."""
    parts = [_varint(b"\x08", answer.number)]
    for position, status, text in answer.refusals:
        words = text.encode("utf-8", "replace")
        inner = _varint(b"\x08", position) + _varint(b"\x10", status)
        inner += b"\x1a" + uvarint(len(words)) + words if words else b""
        parts += (b"\x12", uvarint(len(inner)), inner)
    return b"".join(parts)


def decode_answer(message: bytes) -> BatchAnswer:
    """WriteBatchAnswer. Raises MalformedBinlog."""
    number = 0
    refusals = []
    for field in each_field(message, "WriteBatchAnswer", _ANSWER):
        if field.number == 1:
            number = field.value
        elif field.number == 2:
            refusals.append(_refusal(message[field.value : field.end]))
    return BatchAnswer(number, refusals)


def _refusal(message: bytes) -> Refusal:
    found = last_fields(message, "Refusal", _REFUSAL)
    text = found.get(3, b"").decode("utf-8", "replace")
    return Refusal(found.get(1, 0), found.get(2, 0), text)


def _varint(tag: bytes, value: int) -> bytes:
    return tag + uvarint(value) if value else b""
