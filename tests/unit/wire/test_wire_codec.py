"""The service's messages have the Go encoder's bytes and betterproto's meaning."""

from __future__ import annotations

import tracemalloc

import pytest
from hypothesis import given
from hypothesis import strategies as st

from binlogd.binlog import CommittedBinlog
from binlogd.errors import MalformedBinlog
from binlogd.grpc.prefix import MessageCutter
from binlogd.tso import Tso
from binlogd.wire import codec
from binlogd.wire.binlogs import commit_binlog, prewrite_binlog
from binlogd.wire.generated import binlog as pb

CLUSTER = 6791641053252586769
JOINED = bytes.fromhex("0801100118022a017638004000")

int64s = st.integers(-(1 << 63), (1 << 63) - 1)
uint64s = st.integers(0, (1 << 64) - 1)
_TIMESTAMPS = st.integers(1 << 56, (1 << 62) - 1) | st.integers(1, 1 << 62)


@pytest.mark.parametrize(
    ("built", "expected"),
    [
        (
            codec.encode_write_request(CLUSTER, prewrite_binlog(Tso(1))),
            "08919ad2a8deb1b0a05e120a08001001180038004000",
        ),
        (codec.encode_write_request(CLUSTER, b""), "08919ad2a8deb1b0a05e"),
        (codec.encode_pull_request(CLUSTER, Tso(1000)), "08919ad2a8deb1b0a05e120310e807"),
        (codec.encode_pull_request(CLUSTER, Tso(0)), "08919ad2a8deb1b0a05e1200"),
        (
            b"".join(codec.pull_answer_parts(CommittedBinlog(Tso(1), Tso(2), JOINED))),
            "0a170a00120d0801100118022a017638004000220408011002",
        ),
        (b"".join(codec.pull_answer_parts(CommittedBinlog(Tso(0), Tso(0), b""))), "0a040a002200"),
    ],
)
def test_bytes_equal_those_of_the_go_encoder(built: bytes, expected: str) -> None:
    assert built.hex() == expected


@given(uint64s, st.binary(max_size=300))
def test_write_requests_read_as_betterproto_reads_them(cluster_id: int, payload: bytes) -> None:
    encoded = codec.encode_write_request(cluster_id, payload)
    assert encoded == bytes(pb.WriteBinlogReq(cluster_id=cluster_id, payload=payload))
    assert codec.decode_write_request(encoded) == (cluster_id, payload)


@given(
    uint64s,
    st.binary(max_size=20) | st.sampled_from([127, 128, 16_383, 16_384, 70_000]).map(bytes),
    st.integers(0, 30),
    st.integers(0, 255),
    st.booleans(),
)
def test_many_requests_at_once_read_as_each_by_itself(
    cluster_id: int,
    payload: bytes,
    at: int,
    byte: int,
    is_damaged: bool,  # noqa: FBT001
) -> None:
    """Or they are left to the one that takes any form."""
    message = bytearray(codec.encode_write_request(cluster_id, payload))
    if is_damaged and at < len(message):
        message[at] = byte
    (found,) = codec.own_payloads([bytes(message)], cluster_id)
    if found is not None:
        assert codec.decode_write_request(bytes(message)) == (cluster_id, found)
    else:
        assert is_damaged or not payload or not cluster_id or len(payload) < 3


def test_a_write_request_is_read_in_any_order_and_with_unknown_fields() -> None:
    message = b"\x12\x01p\x1a\x01x\x08\x07"
    assert codec.decode_write_request(message) == (7, b"p")


@pytest.mark.parametrize(
    ("message", "words"),
    [
        (b"\x08\x01\x12\x05ab", "unexpected EOF"),
        (b"\x0a\x00", "proto: wrong wireType = 2 for field ClusterID"),
        (b"\x04", "proto: WriteBinlogReq: wiretype end group for non-group"),
    ],
)
def test_a_malformed_write_request_is_refused(message: bytes, words: str) -> None:
    with pytest.raises(MalformedBinlog) as caught:
        codec.decode_write_request(message)
    assert str(caught.value) == words


@given(uint64s, int64s)
def test_pull_requests_read_as_betterproto_reads_them(cluster_id: int, after: int) -> None:
    encoded = codec.encode_pull_request(cluster_id, Tso(after))
    message = pb.PullBinlogReq().parse(encoded)
    assert (message.cluster_id, message.start_from.offset) == (cluster_id, after)
    assert codec.decode_pull_request(encoded) == (cluster_id, after)
    assert codec.decode_pull_request(bytes(message)) == (cluster_id, after)


@given(int64s, int64s, st.binary(max_size=300))
def test_pull_answers_read_as_betterproto_reads_them(
    start_ts: int, commit_ts: int, payload: bytes
) -> None:
    binlog = CommittedBinlog(Tso(start_ts), Tso(commit_ts), payload)
    encoded = b"".join(codec.pull_answer_parts(binlog))
    entity = pb.PullBinlogResp().parse(encoded).entity
    assert entity.payload == payload
    assert (entity.meta.start_ts, entity.meta.commit_ts) == (start_ts, commit_ts)
    assert codec.decode_pull_answer(encoded) == binlog
    assert codec.decode_pull_answer(bytes(pb.PullBinlogResp(entity))) == binlog


@given(_TIMESTAMPS, _TIMESTAMPS, _TIMESTAMPS, st.binary(max_size=300))
def test_what_is_said_of_a_payload_is_what_its_binlog_says(
    start_ts: int, commit_ts: int, other: int, rows: bytes
) -> None:
    """Its timestamps are taken out of it where they are those."""
    for of, at in ((start_ts, commit_ts), (other, commit_ts), (start_ts, other)):
        payload = commit_binlog(Tso(of), Tso(at), ddl_query=rows)
        binlog = CommittedBinlog(Tso(start_ts), Tso(commit_ts), payload)
        encoded = b"".join(codec.pull_answer_parts(binlog))
        meta = pb.PullBinlogResp().parse(encoded).entity.meta
        assert (meta.start_ts, meta.commit_ts) == (start_ts, commit_ts)
        assert codec.decode_pull_answer(encoded) == binlog


def test_a_write_answer_carries_the_error_of_an_old_server() -> None:
    assert codec.decode_write_answer(b"") == ""
    assert codec.decode_write_answer(bytes(pb.WriteBinlogResp(errmsg="no online"))) == "no online"


@given(st.lists(st.binary(max_size=90), max_size=30), st.integers(1, 200), st.data())
def test_messages_survive_joining_and_any_cut(
    payloads: list[bytes], chunk_bytes: int, data: st.DataObject
) -> None:
    binlogs = [CommittedBinlog(Tso(n), Tso(n + 1), p) for n, p in enumerate(payloads)]
    stream = b"".join(codec.pull_chunks(binlogs, chunk_bytes=chunk_bytes))
    cuts = sorted(data.draw(st.lists(st.integers(0, len(stream)), max_size=8)))
    cutter = MessageCutter(1000)
    messages = []
    for begin, end in zip([0, *cuts], [*cuts, len(stream)], strict=True):
        messages += cutter.feed(stream[begin:end])
    assert not cutter.is_inside
    assert [codec.decode_pull_answer(message) for message in messages] == binlogs


def test_chunks_end_at_the_first_message_that_reaches_their_size() -> None:
    binlogs = [CommittedBinlog(Tso(n), Tso(n), b"x" * 100) for n in range(1, 11)]
    chunks = list(codec.pull_chunks(binlogs, chunk_bytes=300))
    assert len(chunks) == 4
    assert all(len(chunk) < 500 for chunk in chunks)


@pytest.mark.parametrize("piece_bytes", [65_536, 1_000_003, 9_000_000])
def test_a_large_message_among_small_ones_survives_any_cut(piece_bytes: int) -> None:
    sizes = (10, 3_000_000, 0, 2_000_000, 2_000_000, 7)
    binlogs = [CommittedBinlog(Tso(n), Tso(n + 1), bytes([n]) * n) for n in sizes if n < 100]
    large = [CommittedBinlog(Tso(n), Tso(n + 1), b"x" * n) for n in sizes if n > 100]
    binlogs = [*binlogs, *large, *binlogs]
    stream = b"".join(codec.pull_chunks(binlogs, chunk_bytes=65_536))
    cutter = MessageCutter(1 << 30)
    messages = []
    for begin in range(0, len(stream), piece_bytes):
        messages += cutter.feed(stream[begin : begin + piece_bytes])
    assert not cutter.is_inside
    assert [codec.decode_pull_answer(message) for message in messages] == binlogs


def test_a_large_answer_is_held_twice_at_most_while_it_is_read() -> None:
    size = 20_000_000
    stream = b"".join(
        codec.pull_chunks([CommittedBinlog(Tso(1), Tso(2), b"x" * size)], chunk_bytes=65_536)
    )
    cutter = MessageCutter(1 << 30)
    tracemalloc.start()
    try:
        messages: list[bytes] = []
        for begin in range(0, len(stream), 65_536):
            messages += cutter.feed(stream[begin : begin + 65_536])
        (message,) = messages
        binlog = codec.decode_pull_answer(message)
        _, peak = tracemalloc.get_traced_memory()
    finally:
        tracemalloc.stop()
    assert len(binlog.payload) == size
    assert peak < 2.1 * size
