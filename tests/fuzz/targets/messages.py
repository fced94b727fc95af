"""The messages of the Pump's services: read or refused, and as betterproto reads them."""

from __future__ import annotations

from contextlib import suppress

from binlogd.binlog import CommittedBinlog
from binlogd.errors import MalformedBinlog
from binlogd.grpc.compression import Inflater, NotGzip, deflated
from binlogd.grpc.prefix import MessageCutter, prefixed
from binlogd.tso import Tso
from binlogd.wire import batch, codec
from binlogd.wire.generated import binlog as pb


def seeds() -> list[bytes]:
    """One of each message."""
    request = codec.encode_write_request(6791641053252586769, b"payload" * 9)
    return [
        request,
        prefixed(request) * 2,
        codec.encode_pull_request(7, Tso(1 << 60)),
        b"".join(codec.pull_answer_parts(CommittedBinlog(Tso(5), Tso(6), b"payload"))),
        batch.encode_batch(batch.Batch(1, 7, [b"one", b"two", b""])),
        batch.encode_answer(batch.BatchAnswer(1, [batch.Refusal(1, 3, "why")])),
        b"".join(deflated([request, request])),
    ]


def run(data: bytes) -> None:
    """As each of them."""
    request: codec.WriteRequest | None = None
    with suppress(MalformedBinlog):
        request = codec.decode_write_request(data)
    if request is not None:
        again = codec.encode_write_request(*request)
        assert codec.decode_write_request(again) == request
        told = pb.WriteBinlogReq().parse(again)
        assert (told.cluster_id, told.payload) == request
    quick = codec.own_payloads([data], 7)[0]
    if quick is not None:
        assert request == (7, quick)
    head = codec.write_request_head(data[:64], message_bytes=len(data))
    if head is not None:
        assert request == (head.cluster_id, data[head.payload_at :])
    for decode in (codec.decode_pull_request, codec.decode_pull_answer, codec.decode_write_answer):
        try:
            decode(data)
        except MalformedBinlog:
            continue
    _batches(data)
    _stream(data)


def _batches(data: bytes) -> None:
    try:
        found = batch.decode_batch(data)
        assert batch.decode_batch(batch.encode_batch(found)) == found
    except MalformedBinlog:
        pass
    try:
        answer = batch.decode_answer(data)
        assert batch.decode_answer(batch.encode_answer(answer)) == answer
    except MalformedBinlog:
        pass


def _stream(data: bytes) -> None:
    """Messages are the same wherever the stream is cut."""
    ways: list[object] = []
    for size in (len(data) or 1, 3):
        cutter, found = MessageCutter(1 << 16), list[bytes]()
        try:
            for at in range(0, len(data), size):
                found += cutter.feed(data[at : at + size])
            ways.append(found)
        except MalformedBinlog:
            ways.append("refused")
    assert ways[0] == ways[1]
    inflater = Inflater()
    try:
        for piece in inflater.steps(data, 1 << 10):
            assert len(piece) <= 1 << 10
        inflater.end()
    except NotGzip:
        return
