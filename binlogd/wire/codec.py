"""The messages of the Pump's service, encoded and decoded by slicing.

Invariant. Bytes equal those of the Go encoder: proto3, zero scalars left out, the sub-messages
PullBinlogReq.startFrom, PullBinlogResp.entity, Entity.pos and Entity.meta written even when empty.
Why by hand: WriteBinlog and PullBinlogs carry every binlog, and a message object for each would
cost more than all the rest. Every other message is betterproto's (`wire/generated`).

Source: pingcap/tipb proto/binlog/pump.proto; the length prefix is gRPC over HTTP/2's.
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Iterator, Mapping, Sequence
from functools import lru_cache
from typing import NamedTuple

from binlogd.binlog import CommittedBinlog, Payload
from binlogd.errors import MalformedBinlog
from binlogd.grpc.prefix import MESSAGE_PREFIX_BYTES
from binlogd.tidb.varint import bytes_field
from binlogd.tso import Tso
from binlogd.wire.fields import (
    BYTES,
    VARINT,
    each_field,
    int64,
    last_fields,
    read_uvarint,
    signed,
    uvarint,
)
from binlogd.wire.stamps import COMMIT_AT, START_AT, TIMESTAMP_BYTES, is_stamped


class WriteRequest(NamedTuple):
    """WriteBinlogReq; an empty payload is a probe."""

    cluster_id: int
    payload: bytes


class WriteRequestHead(NamedTuple):
    """What stands before the payload of a WriteBinlogReq whose payload comes last."""

    cluster_id: int
    payload_at: int


class PullRequest(NamedTuple):
    """PullBinlogReq: binlogs with commit_ts > after."""

    cluster_id: int
    after: Tso


_WRITE: Mapping[int, tuple[str, int]] = {1: ("ClusterID", VARINT), 2: ("Payload", BYTES)}
_WRITE_ANSWER: Mapping[int, tuple[str, int]] = {1: ("Errmsg", BYTES)}
_PULL: Mapping[int, tuple[str, int]] = {1: ("ClusterID", VARINT), 2: ("StartFrom", BYTES)}
_POS: Mapping[int, tuple[str, int]] = {1: ("Suffix", VARINT), 2: ("Offset", VARINT)}
_PULL_ANSWER: Mapping[int, tuple[str, int]] = {1: ("Entity", BYTES)}
_ENTITY: Mapping[int, tuple[str, int]] = {
    1: ("Pos", BYTES),
    2: ("Payload", BYTES),
    3: ("Checksum", BYTES),
    4: ("Meta", BYTES),
}
_META: Mapping[int, tuple[str, int]] = {1: ("StartTs", VARINT), 2: ("CommitTs", VARINT)}

_VARINT = rb"([\x80-\xff]{0,9}[\x00-\x7f])"
_WRITE_HEAD = re.compile(rb"\x08" + _VARINT + rb"\x12")
_META_TAIL = re.compile(rb"\x08" + _VARINT + rb"\x10" + _VARINT)


def encode_write_request(cluster_id: int, payload: bytes) -> bytes:
    """WriteBinlogReq."""
    head = b"\x08" + uvarint(cluster_id) if cluster_id else b""
    return head + bytes_field(b"\x12", payload) if payload else head


def decode_write_request(message: bytes) -> WriteRequest:
    """WriteBinlogReq. Raises MalformedBinlog."""
    head = _WRITE_HEAD.match(message)
    if head is not None:
        length, pos = read_uvarint(message, head.end())
        if pos + length == len(message):
            return WriteRequest(_cluster_id(head[1]), message[pos:])
    found = last_fields(message, "WriteBinlogReq", _WRITE)
    return WriteRequest(found.get(1, 0), found.get(2, b""))


def own_payloads(messages: Sequence[bytes], cluster_id: int) -> list[bytes | None]:
    """The payloads of WriteBinlogReq messages of that cluster, as nearly every client writes them;
    None for a message that has to be decoded by itself, be it of another cluster or in another
    form. Hot."""
    head = b"\x08" + uvarint(cluster_id) + b"\x12"
    at = len(head)
    payloads: list[bytes | None] = []
    for message in messages:
        size = len(message)
        payload: bytes | None = None
        if size > at + 3 and message.startswith(head):
            length = message[at]
            begin = at + 1
            if length >= 0x80:
                length += (message[at + 1] << 7) - 0x80
                begin = at + 2
                if length >= 1 << 14:
                    length += (message[at + 2] << 14) - (1 << 14)
                    begin = at + 3
            if begin + length == size and message[begin - 1] < 0x80:
                payload = message[begin:]
        payloads.append(payload)
    return payloads


@lru_cache(64)  # that of all calls but those of somebody who is lost
def _cluster_id(varint: bytes) -> int:
    return read_uvarint(varint, 0)[0]


def write_request_head(begin: bytes, *, message_bytes: int) -> WriteRequestHead | None:
    """The head of a WriteBinlogReq by its first bytes, a few dozen at least; None unless the
    payload is its last field."""
    head = _WRITE_HEAD.match(begin)
    if head is None:
        return None
    try:
        cluster_id, _ = read_uvarint(head[1], 0)
        length, pos = read_uvarint(begin, head.end())
    except MalformedBinlog:  # who decodes all of it says what is wrong
        return None
    return WriteRequestHead(cluster_id, pos) if pos + length == message_bytes else None


def decode_write_answer(message: bytes) -> str:
    """WriteBinlogResp.errmsg; empty when the binlog is durable. Raises MalformedBinlog."""
    errmsg: bytes = last_fields(message, "WriteBinlogResp", _WRITE_ANSWER).get(1, b"")
    return errmsg.decode("utf-8", "replace")


def encode_pull_request(cluster_id: int, after: Tso) -> bytes:
    """PullBinlogReq."""
    pos = b"\x10" + uvarint(after) if after else b""
    head = b"\x08" + uvarint(cluster_id) if cluster_id else b""
    return head + bytes_field(b"\x12", pos)


def decode_pull_request(message: bytes) -> PullRequest:
    """PullBinlogReq. Raises MalformedBinlog."""
    cluster_id = after = 0
    for number, value, _, end in each_field(message, "PullBinlogReq", _PULL):
        if number == 1:
            cluster_id = value
        elif number == 2:
            pos = message[value:end]
            for inner in each_field(pos, "Pos", _POS):
                if inner.number == 2:
                    after = signed(inner.value)
    return PullRequest(cluster_id, Tso(after))


def pull_answer_parts(binlog: CommittedBinlog) -> Iterator[bytes]:
    """PullBinlogResp with this binlog as its entity; its payload is as it is."""
    begin, end = _around_payload(binlog)
    yield begin
    yield from _pieces(binlog.payload, max(1, len(binlog.payload)))
    yield end


def _around_payload(binlog: CommittedBinlog) -> tuple[bytes, bytes]:
    """What stands before and behind the payload in a PullBinlogResp. Hot."""
    start_ts, commit_ts, payload = binlog.start_ts, binlog.commit_ts, binlog.payload
    size = len(payload)
    if isinstance(payload, bytes) and is_stamped(payload, start_ts, commit_ts):
        tail = (
            b"\x22\x14\x08"
            + payload[START_AT : START_AT + TIMESTAMP_BYTES]
            + b"\x10"
            + payload[COMMIT_AT : COMMIT_AT + TIMESTAMP_BYTES]
        )
    else:
        meta = b"\x08" + uvarint(start_ts) if start_ts else b""
        if commit_ts:
            meta += b"\x10" + uvarint(commit_ts)
        tail = bytes_field(b"\x22", meta)
    head = b"\x0a\x00\x12" + uvarint(size) if size else b"\x0a\x00"
    return b"\x0a" + uvarint(len(head) + size + len(tail)) + head, tail


def decode_pull_answer(message: bytes) -> CommittedBinlog:
    """PullBinlogResp. Raises MalformedBinlog."""
    begin = payload_at = payload_end = meta_at = meta_end = 0
    for number, value, _, end in each_field(message, "PullBinlogResp", _PULL_ANSWER):
        if number == 1:
            begin = value
            if end < len(message):
                message = message[:end]
    for number, value, _, end in each_field(message, "Entity", _ENTITY, begin):
        if number == 2:
            payload_at, payload_end = value, end
        elif number == 4:
            meta_at, meta_end = value, end
    meta = message[meta_at:meta_end]
    tail = _META_TAIL.fullmatch(meta)
    if tail is not None:
        start_ts, commit_ts = int64(tail[1]), int64(tail[2])
    else:
        numbers = last_fields(meta, "Meta", _META)
        start_ts, commit_ts = signed(numbers.get(1, 0)), signed(numbers.get(2, 0))
    return CommittedBinlog(Tso(start_ts), Tso(commit_ts), message[payload_at:payload_end])


def pull_chunks(binlogs: Iterable[CommittedBinlog], *, chunk_bytes: int) -> Iterator[bytes]:
    """PullBinlogResp messages with their prefixes, joined until `chunk_bytes` are reached. A
    message that is larger than that comes in pieces; its payload is never held twice."""
    parts: list[bytes] = []
    size = 0
    for binlog in binlogs:
        payload = binlog.payload
        begin, end = _around_payload(binlog)
        length = len(begin) + len(payload) + len(end)
        parts.append(b"\x00" + length.to_bytes(4, "big"))
        parts.append(begin)
        if length >= chunk_bytes or not isinstance(payload, bytes):
            yield b"".join(parts)
            yield from _pieces(payload, chunk_bytes)
            parts, size = [end], len(end)
        else:
            parts.append(payload)
            parts.append(end)
            size += MESSAGE_PREFIX_BYTES + length
        if size >= chunk_bytes:
            yield b"".join(parts)
            parts, size = [], 0
    if parts:
        yield b"".join(parts)


def _pieces(payload: Payload, chunk_bytes: int) -> Iterator[bytes]:
    if not isinstance(payload, bytes):
        yield from payload.pieces()
        return
    view = memoryview(payload)
    for at in range(0, len(payload), chunk_bytes):
        yield bytes(view[at : at + chunk_bytes])
